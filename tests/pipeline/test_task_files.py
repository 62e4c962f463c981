"""The key of stage accuracy: every file that decides what a task asks, and how it is scored."""

import os

import pytest

from pipeline.core.errors import PipelineError
from pipeline.inputs.harness_tasks import task_entries

TASK = """
include: ../base/common.yaml
task: words
dataset_path: json
dataset_kwargs:
  data_files: {test: ../rows.jsonl, train: ["more-*.csv"]}
  cache_dir: cache
doc_to_text: !function code.prompts.text
process_results: !function outside.score
metadata: {file: letters, table: sub/table.csv, notes: rows/}
"""
FILES = {  # below the task's folder, but for ..; whether the task depends on it
    "words.yaml": (TASK, True),
    "../base/common.yaml": ("include: [deeper.yaml]\n", True),
    "../base/deeper.yaml": ("test_split: test\n", True),
    "../rows.jsonl": ("{}", True),
    "more-1.csv": ("a,b", True),
    "code/prompts.py": (
        "import helpers\nhere = 'x'\npath = f'{here}/answers.txt'\nfolder = 'lists'\n", True),
    "code/helpers.py": ("from pkg import inner\n", True),
    "code/pkg/inner.py": ("", True),
    "code/answers.txt": ("yes", True),
    "code/lists/one.bin": ("1", True),
    "letters.csv": ("a", True),
    "sub/table.csv": ("a", True),
    "rows/deep/x.parquet": ("a", True),
    "../path/outside.py": ("", True),
    "less-1.csv": ("a", False),
    "cache/x.arrow": ("a", False),
    "code/lists/.hidden": ("a", False),
    "code/other.py": ("", False),
    "more-1.csv.txt": ("", False),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, (text, _) in FILES.items():
        path = tmp_path / "task" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    return tmp_path / "task"


@pytest.mark.parametrize("name", FILES)
def test_the_key_follows_every_file_of_a_task(name, folder):
    def content():
        return task_entries(str(folder / "words.yaml"))["content"]

    before = content()
    assert content() == before
    with (folder / name).open("a") as file:
        file.write("\n")
    assert (content() != before) == FILES[name][1]


def test_the_key_does_not_depend_on_the_place(folder, tmp_path):
    before = task_entries(str(folder / "words.yaml"))
    assert task_entries(str(folder.rename(tmp_path / "moved") / "words.yaml")) == before


def test_data_sets_are_looked_for_in_the_working_directory_too(tmp_path, monkeypatch):
    """And below, where the data set is a folder."""
    (tmp_path / "set").mkdir()
    (tmp_path / "at").mkdir()
    (tmp_path / "at/t.yaml").write_text("task: t\ndataset_path: set\n")
    monkeypatch.chdir(tmp_path)
    found = set()
    for text in ("1", "2"):
        (tmp_path / "set/rows.json").write_text(text)
        found.add(task_entries("at/t.yaml")["content"])
    assert len(found) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("include: ../none.yaml", r"includes \.\./none\.yaml, which does not exist"),
        ("task: [", "is no YAML"),
        (b"\xff\xfe", "is no text in UTF-8"),
        ("data_dir: many", "names .*many, a folder of more than 3 files"),
    ],
)
def test_what_can_t_be_followed_is_refused(text, said, tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.inputs.task_files.MAX_FILES", 3)
    (tmp_path / "many").mkdir()
    for number in range(4):
        (tmp_path / "many" / str(number)).touch()
    path = tmp_path / "t.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PipelineError, match=rf"accuracy\.tasks: .*t\.yaml {said}"):
        task_entries(str(path))
    (tmp_path / "many/0").unlink()
    path.write_text("data_dir: many")
    assert task_entries(str(path))["name"] == "t"


@pytest.mark.parametrize("name", ["../rows.jsonl", "more-1.csv", "sub/table.csv", "letters.csv"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_has_no_end_is_refused(name, make, folder):
    (folder / name).unlink()
    make(folder / name)
    with pytest.raises(
        PipelineError, match=r"accuracy\.tasks: .*(rows|more-1|table|letters)\.\w+ is no file"
    ):
        task_entries(str(folder / "words.yaml"))

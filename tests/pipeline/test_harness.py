"""Tasks of lm-evaluation-harness in stage accuracy and in its own runner, where it is installed."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline import harness as command
from pipeline.decoding.pair import load_decoding_pair
from pipeline.errors import PipelineError
from pipeline.execution import runner
from pipeline.models.load import pair_tokenizer
from pipeline.stages.accuracy.compute import content
from pipeline.store.artifacts import Store
from pipeline.tasks import harness
from pipeline.tasks.items import FOLDER, read_items
from tests.pipeline.answering import METHODS, study, write_place
from tests.results.models import WORDS

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
ITEMS = 4
DATA = f"""
from datasets import Dataset

WORDS = {WORDS!r}


def load(**_):
    rows = [
        {{"question": " ".join(WORDS[4 + (7 * at + i) % 44] for i in range(3 + at)),
          "answer": WORDS[4 + 7 * at % 44]}}
        for at in range(6)
    ]
    return {{"test": Dataset.from_list(rows), "train": Dataset.from_list(rows[::-1])}}


def named(doc, results):
    return {{"named": float(doc["answer"] in results[0].split())}}


def graded(doc, results):
    return {{"grade": 0.5}}
"""
TASK = f"""
task: words
dataset_path: nowhere
custom_dataset: !function data.load
test_split: test
fewshot_split: train
num_fewshot: 1
output_type: generate_until
doc_to_text: "{WORDS[4]} {{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
process_results: !function data.named
generation_kwargs: {{until: ["{WORDS[9]}"], max_gen_toks: 20, do_sample: false}}
filter_list:
  - name: whole
    filter: [{{function: take_first}}]
  - name: nothing
    filter: [{{function: regex, regex_pattern: "(no such text)"}}, {{function: take_first}}]
metric_list: [{{metric: named, aggregation: mean, higher_is_better: true}}]
metadata: {{version: 1}}
"""
VARIANTS = {
    "chosen": ("output_type: generate_until", "output_type: multiple_choice"),
    "often": ("num_fewshot: 1", "num_fewshot: 1\nrepeats: 3"),
    "code": ("num_fewshot: 1", "num_fewshot: 1\nunsafe_code: true"),
    "grades": ("data.named", "data.graded"),
    "broken": ("data.load", "data.missing"),
}


def write_tasks(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "data.py").write_text(DATA)
    (folder / "words.yaml").write_text(TASK)
    for name, (old, new) in VARIANTS.items():
        assert old in TASK
        text = TASK.replace("task: words", f"task: {name}").replace(old, new)
        (folder / f"{name}.yaml").write_text(text)
    (folder / "many.yaml").write_text("group: many\ntask: [words, code]\n")
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("lm_eval")
    folder = write_place(tmp_path_factory.mktemp("harness_tasks"))
    write_tasks(folder / "tasks")
    return folder


def node_of(place: Path, *overrides: str, include: str = "tasks", items: int = ITEMS) -> Any:
    given = study(
        place,
        "accuracy.tasks=[words]",
        f"accuracy.include='{place / include}'",
        f"accuracy.items={items}",
        *overrides,
    )
    return given.nodes["accuracy"][0]


def test_the_stage_gives_the_scores_of_the_harness_item_by_item(place: Path) -> None:
    """With a shot, a stop, a filter, and a task of the project; likelihoods are refused."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    node = node_of(place, "accuracy.tasks=[words,facts]")
    (artifact,) = runner.ensure([node], Store(place / "outputs" / "artifacts"))
    table = artifact.read().to_pandas()
    tokenizer = pair_tokenizer(node.config, node.settings, "targets.local")
    pair = load_decoding_pair(node, 1 + max(tokenizer.get_vocab().values()), 0)
    assert len(pair.runs) == len(METHODS) + 2
    folders = [str(place / "tasks"), str(FOLDER)]
    manager = TaskManager(include_path=folders, include_defaults=False)
    names = {"words": "words", "facts": "draft_acceptance_facts"}
    for run, method in enumerate(pair.runs):
        model = command.decoding_model(pair, method, tokenizer)
        found = simple_evaluate(
            model,
            tasks=list(names.values()),
            limit=ITEMS,
            task_manager=manager,
            apply_chat_template=True,
            bootstrap_iters=0,
        )
        for task, asked in names.items():
            mine = table[(table["run"] == run) & (table["task"] == task)]
            first = "whole" if task == "words" else "none"
            samples = [one for one in found["samples"][asked] if one["filter"] == first]
            samples.sort(key=lambda one: one["doc_id"])
            metric = "named" if task == "words" else "acc"
            assert found["results"][asked][f"{metric},{first}"] == mine["correct"].mean()
            assert [bool(one[metric]) for one in samples] == mine["correct"].tolist()
            if task == "words" or not method.temperature:  # noise is keyed by the task's name
                assert [one["resps"][0][0] for one in samples] == mine["answer"].tolist()
        assert 1 <= model.emitted / model.calls <= 4
        with pytest.raises(PipelineError, match="by likelihoods, which no method changes"):
            model.loglikelihood([SimpleNamespace(task_name="words")])
    words = table[table["task"] == "words"]
    assert 0 < words["correct"].mean() < 1
    assert not words["answer"].str.contains(WORDS[9]).any()
    alone = words[words["run"] == 0]
    assert (alone["n_tokens"] > alone["answer"].str.split().str.len()).any()  # a stop cut one
    documents = {task["name"]: content(task) for task in node.config["tasks"]}
    assert artifact.record["facts"]["tasks"] == documents


def fresh(place: Path, *overrides: str, include: str = "tasks", items: int = ITEMS) -> str:
    """Return the fingerprint as another process would."""
    harness._index.cache_clear()
    harness.load_task.cache_clear()
    return str(node_of(place, *overrides, include=include, items=items).fingerprint)


def test_its_documents_code_and_filter_determine_the_artifact_and_its_place_does_not(
    place: Path,
) -> None:
    before = fresh(place)
    shutil.copytree(place / "tasks", place / "moved")
    moved = place / "moved"
    assert fresh(place, include="moved") == before
    (moved / "data.py").write_text(DATA.replace("3 + at", "4 + at"))
    assert fresh(place, include="moved") != before  # other questions
    (moved / "data.py").write_text(DATA.replace("float(", "1 - float("))
    assert fresh(place, include="moved") != before  # the same, scored otherwise
    (moved / "data.py").write_text(DATA)
    (moved / "words.yaml").write_text(TASK.replace("max_gen_toks: 20", "max_gen_toks: 19"))
    assert fresh(place, include="moved") != before
    (moved / "words.yaml").write_text(TASK)
    assert fresh(place, include="moved") == before
    others = {fresh(place, items=3), fresh(place, "accuracy.tasks=['words:nothing']"), before}
    assert len(others) == 3


def test_the_chosen_filter_scores_and_grades_are_no_verdicts(place: Path) -> None:
    node = node_of(place, "accuracy.tasks=['words:nothing']", items=2)
    (artifact,) = runner.ensure([node], Store(place / "outputs" / "artifacts"))
    assert not any(artifact.read()["correct"].to_pylist())  # its filter leaves no text
    node = node_of(place, "accuracy.tasks=[grades]", items=1)
    with pytest.raises(PipelineError, match=r"grade of grades is 0\.5, neither 0 nor 1"):
        runner.ensure([node], Store(place / "outputs" / "artifacts"))


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("chosen", "chosen is answered by multiple_choice, which no method changes"),
        ("often", "often asks for 3 answers to a question"),
        ("many", "many is a group of tasks"),
        ("broken", "lm-evaluation-harness can't load broken: "),
        ("gsm9k", r"gsm9k is no task: give arithmetic, .* a file \*\.jsonl, or a task of lm-eval"),
        ("'words:none'", "words:none names a filter .*: give one of whole, nothing"),
    ],
)
def test_what_can_not_be_asked_is_refused_in_a_line(
    task: str, said: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = harness._index

    def quick(include: str | None, *, defaults: bool) -> Any:  # indexing all takes seconds
        return SimpleNamespace(task_index={}) if defaults else index(include, defaults=False)

    monkeypatch.setattr(harness, "_index", quick)
    with pytest.raises(PipelineError, match=said) as refused:
        node_of(place, f"accuracy.tasks=[{task}]")
    assert "\n" not in str(refused.value)


def test_code_runs_only_where_it_is_allowed(place: Path) -> None:
    with pytest.raises(PipelineError, match=r"give accuracy\.foreign_code=true"):
        node_of(place, "accuracy.tasks=[code]")
    assert node_of(place, "accuracy.tasks=[code]", "accuracy.foreign_code=true").config["tasks"]


def test_no_folder_is_refused_and_other_stages_read_no_documents(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PipelineError, match=r"accuracy\.include=.*nowhere is no folder"):
        node_of(place, include="nowhere")

    def never(*_: Any) -> Any:
        raise AssertionError("documents were read")

    monkeypatch.setattr(harness, "load_task", never)
    given = study(
        place, "accuracy.tasks=[words]", f"accuracy.include='{place / 'tasks'}'", stage="drafts"
    )
    assert given.nodes["accuracy"] == []


def test_without_the_package_all_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (harness, command):
        monkeypatch.setattr(module, "find_spec", lambda _: None)
    folder = write_place(tmp_path / "place")
    with pytest.raises(PipelineError, match=r'gsm8k is no task: .* pip install -e "\.\[harness\]"'):
        study(folder, "accuracy.tasks=[gsm8k]")
    with pytest.raises(PipelineError, match=r'pip install -e "\.\[harness\]"'):
        command.evaluate(["facts"], 1, [])


def test_the_tasks_of_the_harness_are_the_projects() -> None:
    """The YAML files name the data and allow as many tokens as the rows."""
    tasks = sorted(path.stem for path in FOLDER.glob("*.jsonl"))
    assert sorted(path.stem for path in FOLDER.glob("[!_]*.yaml")) == tasks
    for task in tasks:
        lines = (FOLDER / f"{task}.yaml").read_text().splitlines()
        items = read_items(FOLDER / f"{task}.jsonl")
        (limit,) = {item["max_tokens"] for item in items}
        assert f"task: draft_acceptance_{task}" in lines
        assert f"metadata: {{version: 1, file: {task}}}" in lines
        assert any(f"max_gen_toks: {limit}," in line for line in lines), task
        code = any(item["kind"] == "python" for item in items)
        assert ("unsafe_code: true" in lines) is code

"""Tasks of lm-evaluation-harness with every method, where it is installed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline import harness as command
from pipeline.decoding.pair import load_decoding_pair
from pipeline.errors import PipelineError
from pipeline.execution import runner
from pipeline.models.load import pair_tokenizer
from pipeline.store import Store
from pipeline.tasks.items import FOLDER, read_items
from tests.pipeline.answering import METHODS, overrides_of, study, write_place
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


def write_tasks(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "data.py").write_text(DATA)
    (folder / "words.yaml").write_text(TASK)
    code = TASK.replace("task: words", "task: code")
    (folder / "code.yaml").write_text(f"{code}unsafe_code: true\n")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("lm_eval")
    folder = write_place(tmp_path_factory.mktemp("harness_tasks"))
    write_tasks(folder / "tasks")
    return folder


def test_the_harness_gives_the_answers_of_the_stage_and_its_own_scores(place: Path) -> None:
    """With a shot, a stop, a filter, and a task of the project; likelihoods are refused."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    node = study(place, "accuracy.tasks=[facts]", f"accuracy.items={ITEMS}").nodes["accuracy"][0]
    (artifact,) = runner.ensure([node], Store(place / "outputs" / "artifacts"))
    table = artifact.read().to_pandas()
    tokenizer = pair_tokenizer(*models_of(node))
    pair = load_decoding_pair(node, 1 + max(tokenizer.get_vocab().values()), 0)
    assert len(pair.runs) == len(METHODS) + 2
    folders = [str(place / "tasks"), str(FOLDER)]
    manager = TaskManager(include_path=folders, include_defaults=False)
    for run, method in enumerate(pair.runs):
        model = command.decoding_model(pair, method, tokenizer)
        found = simple_evaluate(
            model,
            tasks=["words", "draft_acceptance_facts"],
            limit=ITEMS,
            task_manager=manager,
            apply_chat_template=True,
            bootstrap_iters=0,
        )
        mine = table[table["run"] == run]
        samples = sorted(found["samples"]["draft_acceptance_facts"], key=lambda one: one["doc_id"])
        if not method.temperature:  # noise is keyed by the task's name
            assert [one["resps"][0][0] for one in samples] == mine["answer"].tolist()
            assert [bool(one["acc"]) for one in samples] == mine["correct"].tolist()
        words = [one for one in found["samples"]["words"] if one["filter"] == "whole"]
        said = [one["resps"][0][0] for one in words]
        named = [
            one["doc"]["answer"] in text.split() for one, text in zip(words, said, strict=True)
        ]
        assert found["results"]["words"]["named,whole"] == sum(named) / ITEMS
        assert not any(WORDS[9] in text for text in said)
        assert any(len(text.split()) < 20 for text in said)  # a stop cut one
        assert 1 <= model.emitted / model.calls <= 4
        with pytest.raises(PipelineError, match="by the target's likelihoods, which no method"):
            model.loglikelihood([SimpleNamespace(task_name="words")])


def test_the_command_runs_tasks_of_a_folder(place: Path) -> None:
    """Every method, the baselines included; code runs only where it is allowed."""
    overrides = overrides_of(place)
    rows = command.evaluate(["words"], 1, str(place / "tasks"), overrides)
    assert len(rows) == 2 * (len(METHODS) + 2)  # two filters
    with pytest.raises(PipelineError, match=r"one of code runs code .* --confirm_run_unsafe_code"):
        command.evaluate(["code"], 1, str(place / "tasks"), overrides)
    assert command.evaluate(["code"], 1, str(place / "tasks"), overrides, unsafe_code=True)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda _: None)
    with pytest.raises(PipelineError, match=r'pip install -e "\.\[harness\]"'):
        command.evaluate(["facts"], 1, None, [])


def test_the_tasks_of_the_harness_are_the_projects() -> None:
    """The YAML files name the data and allow as many tokens as the rows."""
    tasks = sorted(path.stem for path in FOLDER.glob("*.jsonl"))
    assert sorted(path.stem for path in FOLDER.glob("[!_]*.yaml")) == tasks
    for task in tasks:
        lines = (FOLDER / f"{task}.yaml").read_text().splitlines()
        items = read_items(FOLDER / f"{task}.jsonl")
        (limit,) = {item["max_tokens"] for item in items}
        assert f"task: draft_acceptance_{task}" in lines
        assert f"metadata: {{version: 2, file: {task}}}" in lines
        assert any(f"max_gen_toks: {limit}," in line for line in lines), task

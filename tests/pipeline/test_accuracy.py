"""Stage accuracy on the fixed models: tasks, scores, pairing, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from analysis.decoding import paired_accuracy as answers
from analysis.report.accuracy_tables import accuracy_sections
from pipeline.core.errors import PipelineError
from pipeline.core.store import Store
from pipeline.inputs import harness_tasks
from pipeline.inputs.decoded_artifacts import read_answered
from pipeline.models.loading import load_tokenizer
from pipeline.models.tokens import chat_text, encode
from pipeline.stages import accuracy
from pipeline.study import Study
from tests import methods
from tests.results.models import WORDS, write_model

METHODS = [
    "{drafter: model, rule: greedy, draft_length: 3, temperature: 0}",
    "{drafter: model, rule: additive, t: 0.6, draft_length: 3, temperature: 0}",
    "{drafter: model, sampling: races, draft_length: 3, temperature: 0.7}",
]
PROMPTS = [" ".join(WORDS[4 + (7 * at + i) % 44] for i in range(3 + at)) for at in range(6)]
ROWS = [  # in the words of the models; right is a word that they like to say
    {"id": f"item {at}", "kind": "answer", "prompt": prompt, "expected": WORDS[10:30], "wrong": []}
    for at, prompt in enumerate(PROMPTS)
]
LIMIT = 5  # tokens of an answer


def write(path, items):
    """Write a task beside its rows, in the form of the project's own."""
    path.parent.mkdir(exist_ok=True)
    path.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in items))
    path.write_text(
        f"include: {harness_tasks.FOLDER}/_base.yaml\ntask: {path.stem}\n"
        f"generation_kwargs: {{until: [], max_gen_toks: {LIMIT}}}\n"
        f"metadata: {{file: '{path.with_suffix('.jsonl')}'}}\n"
    )
    return path


def study(place, *overrides, stage="accuracy"):
    """Compose the study in a folder of the fixture `place`."""
    return Study(
        "study=mini", "target=local", f"targets.local.path='{place / 'wide'}'",
        "targets.local.label=wide", "targets.local.dtype=float32",
        "drafter=local", f"drafter.path='{place / 'narrow'}'",
        "drafter.label=narrow", "drafter.dtype=float32",
        f"prompts.source='{place / 'own.jsonl'}'", "prompts.count=1", "prompts.min_tokens=3",
        f"accuracy.tasks=['{place / 'own.yaml'}',facts]", "accuracy.items=4",
        *methods.overrides(*METHODS),
        "device={name: cpu, threads: 1}", f"outputs='{place / 'outputs'}'", f"stage={stage}",
        *overrides,
    )  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("accuracy")
    write_model(folder / "wide")
    write_model(folder / "narrow", noise=0.06)
    write(folder / "own.yaml", ROWS)
    return folder


@pytest.fixture(scope="module")
def made(place):
    (task,) = study(place).tasks["accuracy"]
    return task, Store(place / "outputs" / "artifacts").get(task)


def test_every_method_answers_every_item(made):
    _, artifact = made
    runs, table = artifact.metadata["runs"], artifact.read().to_pandas()
    assert [(run["drafter"], run["baseline"]) for run in runs] == [
        *(("none", 0), ("none", 1), ("model", 0), ("model", 0), ("model", 1))
    ]
    assert table.groupby(["task", "item_id"])["run"].apply(list).tolist() == [list(range(5))] * 8
    assert table.groupby("task", sort=False).size().to_dict() == {"own": 20, "facts": 20}
    assert artifact.read("failures").num_rows == 0
    own = table[table["task"] == "own"]
    assert (own["n_tokens"] <= LIMIT).all()
    assert (own["n_tokens"].to_numpy() == [len(ids) for ids in own["token_ids"]]).all()
    assert (own["emitted"] == own["n_tokens"] - 1).all()  # one comes with the prompt


def test_an_item_that_does_not_fit_is_named_and_the_others_go_on(place):
    path = write(place / "long/long.yaml", [*ROWS[:2], ROWS[2] | {"prompt": "ba " * 2000}])
    (task,) = study(place, f"accuracy.tasks=['{path}']").tasks["accuracy"]
    artifact = Store(place / "outputs" / "artifacts").get(task)
    (failure,) = artifact.read("failures").to_pylist()
    assert failure["item_id"] == "item 2"
    assert "exceed the context" in failure["reason"]
    assert set(artifact.read()["item_id"].to_pylist()) == {"item 0", "item 1"}


def test_what_determines_the_artifact_is_in_its_name(place):
    def name(*overrides):
        return study(place, *overrides).tasks["accuracy"][0].key

    before = name()
    assert name("accuracy.margin=0.1") == before
    singles = ["accuracy.items=2", "accuracy.seed=1", "prompts.template=none", "decoding.lookup=1"]
    assert len({before, *map(name, singles)}) == 1 + len(singles)
    write(place / "own.yaml", ROWS[:5])
    assert name() != before
    write(place / "own.yaml", ROWS)
    (place / "beside.jsonl").write_text("")  # no file of the task
    assert name() == before


def test_lossless_greedy_methods_are_scored_once():
    greedy = {"drafter": "model", "rule": "greedy", "draft_length": [2, 3]}
    others = [
        {"drafter": "model", "rule": "tree", "m": 3, "draft_length": 2},
        {"drafter": "model", "rule": "mars", "theta": 0.9, "draft_length": 2},
        {"drafter": "model", "sampling": "races", "draft_length": 2, "temperature": 0.7},
        {"drafter": "model", "rule": "additive", "t": 0.1, "draft_length": 2}
        | {"tree": "optimal", "nodes": 4},  # whose shape is not known
    ]
    names = [method.name for method in accuracy.scored(methods.build([greedy, *others]))]
    assert names == ["greedy", "mars theta=0.9", "exponential races"]


GIVEN = """
dataset_path: json
dataset_name: null
dataset_kwargs: {data_files: {train: PLACE/rows.json, test: PLACE/rows.json}, cache_dir: PLACE}
"""  # in place of data of the hub
WORDS_TASK = f"""
task: words
test_split: test
fewshot_split: train
num_fewshot: 1
output_type: generate_until
doc_to_text: "{WORDS[4]} {{{{question}}}}"
doc_to_target: ni
generation_kwargs: {{until: ["{WORDS[9]}"], max_gen_toks: 20}}
filter_list:
  - name: first word
    filter: [{{function: regex, regex_pattern: '(\\w+)'}}, {{function: take_first}}]
  - name: nothing
    filter: [{{function: regex, regex_pattern: none}}, {{function: take_first}}]
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""


def harness_task(place, name, text):
    """Write a task over local rows; return the override that asks for it."""
    (place / "more").mkdir(exist_ok=True)
    rows = [{"question": row["prompt"], "answer": f"{row['prompt']} #### 12"} for row in ROWS]
    (place / "more/rows.json").write_text(json.dumps(rows))
    path = place / f"more/{name}.yaml"
    path.write_text((text + GIVEN).replace("PLACE", str(place / "more")))
    return f"accuracy.tasks=['{path}']"


def asked(place, *overrides):
    (task,) = study(place, *overrides).tasks["accuracy"]
    tokenizer = load_tokenizer(str(place / "wide"), None, "test")
    return harness_tasks.questions(task.runtime.tasks, task.settings, tokenizer)


@pytest.mark.thorough
def test_prompts_stops_and_scores_are_those_of_the_harness(place):
    """Its own runner, on the answers of the stage, asks and scores the same."""
    from lm_eval import simple_evaluate
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

    class Replayed(LM):
        loglikelihood = loglikelihood_rolling = None
        tokenizer_name = ""

        def apply_chat_template(self, chat_history, add_generation_prompt=True):
            return chat_text(tokenizer, chat_history, add_generation_prompt, enable_thinking=False)

        def generate_until(self, requests, disable_tqdm=False):
            return [answered[str(request.doc_id)] for request in requests]

    wanted = harness_task(place, "words", WORDS_TASK)
    (task,) = study(place, wanted).tasks["accuracy"]
    artifact = Store(place / "outputs" / "artifacts").get(task)
    assert artifact.metadata["tasks"] == ["words"]
    tokenizer = load_tokenizer(str(place / "wide"), None, "test")
    prompts = [question.harness[1].args[0] for question in asked(place, wanted)]
    for _, run in artifact.read().to_pandas().groupby("run"):
        answered = dict(zip(run["item_id"], run["answer"], strict=True))
        found = simple_evaluate(
            Replayed(), tasks=[str(place / "more/words.yaml")], limit=4, bootstrap_iters=0,
            task_manager=TaskManager(include_defaults=False), apply_chat_template=True,
        )  # fmt: skip
        assert found["results"]["words"]["exact_match,first word"] == run["correct"].mean()
        samples = [one for one in found["samples"]["words"] if one["filter"] == "first word"]
        assert [one["arguments"][0][0] for one in samples] == prompts
        whole = [tokenizer.decode(ids, skip_special_tokens=True) for ids in run["token_ids"]]
        assert run["answer"].tolist() == [text.split(WORDS[9])[0] for text in whole]
    assert 0 < artifact.read().to_pandas()["correct"].mean() < 1
    plain = asked(place, wanted, "prompts.template=none")
    for question, row in zip(plain, ROWS, strict=False):
        text = " ".join(WORDS[at] for at in question.token_ids)
        assert text.endswith(f" {WORDS[4]} {row['prompt']}")


def test_gsm8k_is_asked_and_scored_as_the_harness_does(place):
    """Its own definition, on rows that stand for the hub's."""
    import lm_eval

    file = Path(lm_eval.__file__).with_name("tasks") / "gsm8k/gsm8k.yaml"
    wanted = harness_task(place, "gsm8k_here", f"include: {file}\n").replace("]", ",facts]")
    one, *others = asked(place, wanted)
    assert [other.task for other in others[:2]] == ["facts", "gsm8k"]  # they take turns
    assert (one.max_tokens, one.until[0]) == (256, "Question:")
    assert one.harness[1].args[0].count("Question:") == 6  # five shots
    assert one.right("5 + 7 = 12\n#### 12")
    assert not one.right("It is 12.")  # strict-match, the first filter
    assert not one.right("#### 13")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("output_type: generate_until", "output_type: multiple_choice\ndoc_to_choice: [a, b]",
         "words: only tasks whose answers are generated"),
        ("task: words", "task: words\nunsafe_code: true", "words: it runs code"),
        ("task: words", "task: facts", "facts: two tasks have this name"),
        ("test_split: test", "test_split: other", r"words.yaml: KeyError: 'other'"),
    ],
)  # fmt: skip
def test_a_task_that_no_method_answers_is_refused(place, old, new, said):
    wanted = harness_task(place, "words", WORDS_TASK.replace(old, new)).replace("]", ",facts]")
    with pytest.raises(PipelineError, match=f"^accuracy.tasks: .*{said}"):
        asked(place, wanted)


def test_what_is_missing_is_named(place, monkeypatch):
    with pytest.raises(PipelineError, match=r"accuracy\.tasks: there is no file none\.yaml"):
        study(place, "accuracy.tasks=[facts,none.yaml]")
    monkeypatch.setattr("lm_eval.tasks.TaskManager.task_index", {})  # without reading all of them
    monkeypatch.setattr("lm_eval.tasks._index.TaskIndex.build", lambda *_: {})
    with pytest.raises(PipelineError, match=r"none is no task: give arithmetic, facts, .* a file"):
        asked(place, "accuracy.tasks=[facts,none]")
    monkeypatch.setattr("pipeline.study.check_models", lambda _: pytest.fail("models were loaded"))
    with pytest.raises(PipelineError, match=r"accuracy\.tasks: none is no task"):
        study(place, "accuracy.tasks=[facts,none]").make("accuracy")


def test_the_report_has_a_section_only_once_the_answers_are_there(place, made):
    (with_answers,) = study(place, stage="report").tasks["report"]
    assert with_answers.inputs["accuracy/local"].key == made[0].key
    (without,) = study(place, "accuracy.seed=77", stage="report").tasks["report"]
    assert "accuracy/local" not in without.inputs
    assert without.settings["margin"] is None


def test_the_section_shows_accuracy_by_task(made):
    one = read_answered("wide", made[1])
    table = answers.accuracy(one, *made[0].runtime.statistics, 0.05)
    [found] = accuracy_sections("narrow", [one], [table], 0.05, 0.95)[0].items
    shown = found.cells.loc["all", ["lost, won", "changed"]]
    assert shown.loc["Strict greedy"].tolist() == ["0, 0", "0.0 %"]
    assert shown.loc["Additive (t = 0.6)", "changed"] not in ("0.0 %", "–")
    assert set(found.cells.index.get_level_values(0)) == {*found.data["task"]}


def test_answers_are_read_again_by_the_target(place, made):
    """Beside transformers; what is lossless departs from the target's first choices nowhere."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(place / "wide", dtype=torch.float32)
    tokenizer = load_tokenizer(str(place / "wide"), None, "test")
    item = ROWS[2]
    ids = encode(tokenizer, item["prompt"], "chat", enable_thinking=False)
    table = made[1].read().to_pandas().query("task == 'own'")
    for row in table[table["item_id"] == item["id"]].to_dict("records"):
        answer = list(row["token_ids"])
        with torch.inference_mode():
            logits = model(torch.tensor([ids + answer])).logits[0, len(ids) - 1 : -1].double()
        log_p = logits.log_softmax(-1).numpy()
        chosen = log_p[np.arange(len(answer)), answer]
        assert row["departures"] == (log_p.argmax(1) != answer).sum()
        assert row["nats_given_up"] == pytest.approx((log_p.max(1) - chosen).sum(), abs=1e-3)
        at = row["common_prefix"]
        if at < len(answer):  # where it parts from the target alone
            first, second = np.sort(log_p[at])[:-3:-1]
            assert row["gap"] == pytest.approx(first - second, abs=1e-3)
    departures = made[1].read().to_pandas().groupby("run")["departures"].sum()
    for run, facts in enumerate(made[1].metadata["runs"]):
        exact = facts["temperature"] == 0 and facts["lossless"]
        assert (departures[run] == 0) == exact


def test_the_end_of_the_stage_says_what_is_excluded(made):
    """Eight items exclude no loss of 5 points; a margin of 99 points is excluded."""
    rows = {row["method"]: row["loss"] for row in accuracy.summary(*made)}
    assert rows["Strict greedy"] == rows["Autoregressive"] == ""
    assert rows["Additive (t = 0.6)"] == "open"
    wide = replace(made[0], runtime=replace(made[0].runtime, tolerated_loss=0.99))
    assert "excluded" in {row["loss"] for row in accuracy.summary(wide, made[1])}

"""Stage accuracy on the fixed models: scores, pairing, resuming, caching, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from analysis.decoding import answers
from analysis.report.records import Section, Table
from analysis.report.render import files, lines
from pipeline.decoding.decoded import read_answered
from pipeline.errors import PipelineError
from pipeline.models.load import load_tokenizer
from pipeline.models.prompt_tokens import encode
from pipeline.plan.facts import AccuracyFacts
from pipeline.plan.plain import from_plain
from pipeline.stage import Task
from pipeline.stages.accuracy import summary
from pipeline.stages.report.compute import answer_sections
from pipeline.store import Artifact
from pipeline.tasks.items import read_items
from tests.pipeline.answering import METHODS, note_asked, rows, study, write, write_place
from tests.results.models import WORDS

TIE = 1e-5  # of two logits: a pass over several tokens may choose the other one
LOSSLESS = [
    "{drafter: model, rule: greedy, draft_length: 3, temperature: 0}",
    "{drafter: model, rule: tree, m: 3, draft_length: 3, temperature: 0}",
    "{drafter: model, rule: greedy, draft_length: 3, temperature: 0, tree: dynamic, width: 2, "
    "nodes: 6}",
    "{drafter: prompt_lookup, rule: greedy, draft_length: 3, temperature: 0}",
    "{drafter: model, sampling: races, draft_length: 3, temperature: 0.7}",
    "{drafter: model, sampling: races, draft_length: 2, temperature: 0.7, tree: symmetric, "
    "width: 2}",
    "{drafter: prompt_lookup, sampling: races, draft_length: 3, temperature: 0.7}",
]
RELAXED = [
    "{drafter: model, rule: additive, t: 0.6, draft_length: 3, temperature: 0}",
    "{drafter: model, rule: mars, theta: 0.5, draft_length: 3, temperature: 0}",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_place(tmp_path_factory.mktemp("accuracy"))


@pytest.fixture(scope="module")
def made(place: Path) -> tuple[Task, Artifact]:
    return answered(place)


def answered(
    place: Path, *overrides: str, decoded: Sequence[str] = METHODS
) -> tuple[Task, Artifact]:
    made = study(place, *overrides, decoded=decoded)
    (task,) = made.tasks["accuracy"]
    return task, made.store.get(task)


def test_every_method_answers_every_item(made: tuple[Task, Artifact]) -> None:
    _, artifact = made
    runs, table = from_plain(AccuracyFacts, artifact.facts).runs, artifact.read().to_pandas()
    assert [run.method for run in runs] == [
        "autoregressive",
        "autoregressive (exponential races)",
        "greedy",
        "additive t=0.6",
        "exponential races",
    ]
    assert [run.baseline for run in runs] == [0, 1, 0, 0, 1]
    assert table.groupby(["task", "item_id"])["run"].apply(list).tolist() == [list(range(5))] * 8
    assert table.groupby("task", sort=False).size().to_dict() == {"own": 20, "facts": 20}
    assert artifact.read("failures").num_rows == 0
    limits = {row["id"]: row["max_tokens"] for row in rows()}
    own = table[table["task"] == "own"]
    assert (own["n_tokens"] <= own["item_id"].map(limits)).all()
    assert (own["n_tokens"].to_numpy() == [len(ids) for ids in own["token_ids"]]).all()
    assert (own["emitted"] == own["n_tokens"] - 1).all()  # one comes with the prompt


def test_answers_are_scored_as_the_item_says(made: tuple[Task, Artifact]) -> None:
    own = made[1].read().to_pandas().query("task == 'own'")
    wanted = [
        bool(set(text.split()) & set(WORDS[10:30])) and not set(text.split()) & set(WORDS[30:36])
        for text in own["answer"]
    ]
    assert own["correct"].tolist() == wanted
    assert 0 < sum(wanted) < len(wanted)


@pytest.mark.thorough
def test_it_goes_on_where_it_was_stopped_and_is_then_cached(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = ["accuracy.items=3", "accuracy.seed=5"]
    asked = note_asked(monkeypatch, stop_after=2)
    with pytest.raises(KeyboardInterrupt):
        answered(place, *three)
    first = list(asked)
    assert [key.split("/")[0] for key in first] == ["own", "facts"]  # the tasks take turns
    answered(place, *three)
    assert len(asked) == len(set(asked)) == 6
    answered(place, *three)
    assert len(asked) == 6


def test_an_item_that_does_not_fit_is_named_and_the_others_go_on(place: Path) -> None:
    path = write(place / "long.jsonl", [*rows()[:2], rows()[2] | {"max_tokens": 2000}])
    _, artifact = answered(place, f"accuracy.tasks=['{path}']")
    (failure,) = artifact.read("failures").to_pylist()
    assert failure["item_id"] == "item 2"
    assert "exceed the context" in failure["reason"]
    assert set(artifact.read()["item_id"].to_pylist()) == {"item 0", "item 1"}


def test_what_determines_the_artifact_is_in_its_name(place: Path) -> None:
    def name(*overrides: str) -> str:
        return study(place, *overrides).tasks["accuracy"][0].key

    before = name()
    assert name("accuracy.margin=0.1") == name("statistics.resamples=7") == before
    tree = (
        "{drafter: model, rule: greedy, draft_length: 3, temperature: 0, tree: symmetric, width: W}"
    )
    others = [
        study(place, decoded=[tree.replace("W", width)]).tasks["accuracy"][0].key for width in "23"
    ]
    singles = ["accuracy.items=2", "accuracy.seed=1", "accuracy.tasks=[facts]",
               "prompts.template=none", "decoding.lookup=1"]  # fmt: skip
    names = {before, *others, *map(name, singles)}
    assert len(names) == 1 + len(others) + len(singles)
    write(place / "own.jsonl", rows()[:5])
    assert name() != before
    write(place / "own.jsonl", rows())
    assert name() == before


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("accuracy.tasks=[facts,none]", "accuracy.tasks: none is no task: give arithmetic, "),
        ("+decoding.methods.a={rule: greedy}", "decoding.methods.a: the key 'drafter' is missing"),
        (
            "accuracy.tasks=[functions]",
            "functions is no task: give .* a model's code, are run by python -m pipeline.harness",
        ),
        ("accuracy.tasks=[facts,more/facts.jsonl]", "two of facts, facts have the same name"),
    ],
)
def test_what_is_wrong_is_said_before_any_work(
    place: Path, override: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    (place / "more").mkdir(exist_ok=True)
    write(place / "more" / "facts.jsonl", rows())
    with pytest.raises(PipelineError, match=said):
        study(place, override)


def test_the_report_has_a_section_only_once_the_answers_are_there(
    place: Path, made: tuple[Task, Artifact]
) -> None:
    (with_answers,) = study(place, stage="report").tasks["report"]
    assert made[0].key in {task.key for task in with_answers.inputs.values()}
    (without,) = study(place, "accuracy.seed=77", stage="report").tasks["report"]
    assert "accuracy" not in {task.stage.name for task in without.inputs.values()}
    assert without.spec.margin is None


def _tables(part: Section) -> dict[str, Table]:
    return {item.name: item for item in part.shown if isinstance(item, Table)}


def test_the_section_shows_losses_tasks_and_differing_answers(
    place: Path, made: tuple[Task, Artifact]
) -> None:
    (node,) = study(place, stage="report").tasks["report"]
    part, timed = answer_sections(node.spec, [made[1]])
    assert "methods that must not change answers changed none." in part.paragraphs[0]
    losses = _tables(part)["accuracy_losses"]
    [(_, rows)] = lines(losses)
    headings = [column.heading for column in losses.columns]
    printed = {name: dict(zip(headings, cells, strict=True)) for name, cells, _ in rows}
    assert printed["Autoregressive"]["lost and won"] == "–"
    strict = printed["Strict greedy"]
    assert [strict[name] for name in ("lost and won", "changed", "nats given up")] == [
        "0 and 0", "0 %", "0",
    ]  # fmt: skip
    assert printed["Additive (t = 0.6)"]["changed"] not in ("0 %", "–")
    contents = dict(content for item in part.shown for content in files(item))
    csv = contents["tables/accuracy_differing.csv"].decode()
    assert all(text in csv for text in answers.differing(read_answered("wide", made[1]))["answer"])
    # what depends on the clock is apart
    assert (part.timed, timed.timed) == (False, True)
    assert not any(b"speedup" in text or b"seconds" in text
                   for name, text in contents.items() if name.endswith(".csv"))  # fmt: skip


def test_answers_are_read_again_by_the_target(place: Path, made: tuple[Task, Artifact]) -> None:
    """Beside transformers; what is lossless departs from the target's first choices nowhere."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(place / "wide", dtype=torch.float32)
    tokenizer = load_tokenizer(str(place / "wide"), None, "test")
    item = read_items(place / "own.jsonl")[2]
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
    departures = made[1].read().to_pandas().groupby("run")["departures"].sum()
    for run, facts in enumerate(from_plain(AccuracyFacts, made[1].facts).runs):
        exact = facts.decoded.temperature == 0 and facts.lossless
        assert (departures[run] == 0) == exact


def test_the_end_of_the_stage_says_what_is_excluded(made: tuple[Task, Artifact]) -> None:
    """Eight items exclude no loss of 5 points; a margin of 99 points is excluded."""
    rows = {row["method"]: row["loss"] for row in summary(*made)}
    assert rows["Strict greedy"] == rows["Autoregressive"] == ""
    assert rows["Additive (t = 0.6)"] == "open"
    wide = replace(made[0], spec=replace(made[0].spec, margin=0.99))
    found = {row["method"]: row["loss"] for row in summary(wide, made[1])}
    assert found["Additive (t = 0.6)"] == "excluded"


def test_what_is_lossless_leaves_every_answer_as_it_is(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strict greedy, on trees as well, and races at equal seeds; near-ties are listed."""
    items = [row | {"max_tokens": 24} for row in rows()]  # answers long enough to part
    tasks = f"accuracy.tasks=['{write(place / 'parting.jsonl', items)}',facts]"
    monkeypatch.setattr("pipeline.stages.accuracy.scored", list)  # lossless ones, too
    node, artifact = answered(place, tasks, decoded=[*LOSSLESS, *RELAXED])
    one = read_answered("wide", artifact)
    assert [method.lossless for method in node.spec.methods] == [True] * len(LOSSLESS) + [
        False,
        False,
    ]
    left = answers.differing(one)
    parted, left = left[left["exact"]], left[~left["exact"]]
    assert (parted["gap"] < TIE).all(), f"answers that part:\n{parted}"
    assert set(left["method"]) == {"Additive (t = 0.6)", "MARS (θ = 0.5)"}
    drafted = one.data[one.data["run"] >= 2].groupby("run")["accepted"].sum()
    assert (drafted > 0).all()  # something was accepted, so something could go wrong
    sampled = one.runs.index[(one.runs["temperature"] > 0) & (one.runs["drafter"] == "none")]
    both = one.data[one.data["run"].isin([0, *sampled])].groupby(["task", "item_id"])["answer"]
    assert (both.nunique() > 1).any()  # races do not choose what greedy decoding does

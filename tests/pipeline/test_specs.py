"""Specifications and facts as plain values: what artifacts are found by, and what they record."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import DamagedError
from pipeline.hub import Identity
from pipeline.loader import Study
from pipeline.plan.facts import (
    AccuracyFacts,
    DecodingFacts,
    DistributionsFacts,
    DraftsFacts,
    ExcludedRows,
    RunFacts,
    SampledFacts,
    TreeFacts,
)
from pipeline.plan.specs import model_at
from pipeline.store.artifacts import Artifact
from pipeline.store.node import fingerprint
from pipeline.store.plain import from_plain, to_plain
from pipeline.store.records import MadeFrom, Record
from tests import methods
from tests.pipeline.fakes import record

LISTED = Path(__file__).with_name("specs.json")  # by stage and label; versions are not in it


def test_artifacts_of_the_embedded_study_are_found_under_the_names_they_have(
    tmp_path: Path,
) -> None:
    """The list is of plain mappings, as they were before specifications were dataclasses.

    Where a stage takes one more setting that is not left out at its default, all its artifacts are
    made anew; its entries then have to be replaced.
    """
    nodes = Study("study=mini", f"outputs={tmp_path}").nodes
    digests = {
        stage: {
            node.label: fingerprint({"stage": stage, "config": node.config})[:16] for node in made
        }
        for stage, made in nodes.items()
    }
    assert digests == json.loads(LISTED.read_text())


def runs() -> list[RunFacts]:
    entries = [
        {"drafter": "model", "rule": "additive", "t": 0.1, "draft_length": 3, "temperature": 0},
        {"drafter": "model", "sampling": "races", "draft_length": 3, "temperature": 0.5},
        {"drafter": "model", "rule": "greedy", "draft_length": 2, "tree": "symmetric", "width": 2},
    ]  # fmt: skip
    shape = TreeFacts("symmetric", "2 wide", nodes=6, depth=2, parents=[-1, -1, 0, 0, 1, 1])
    return [
        RunFacts(method.name, method.lossless, method, shape=None if method.tree is None else shape)
        for method in methods.build(entries)
    ]


FACTS = [
    SampledFacts({"too short": ExcludedRows(3, [{"source_row": 4, "prompt_id": "id"}])}),
    DistributionsFacts(vocab_size=9, k=3, certified_temperature=0.5, model="m"),
    DraftsFacts(vocab_size=9, k=3, sampled_temperature=0.5, completed=True),
    DecodingFacts(runs(), {"target": {"model": 5}}, "cpu", 2, vocab_size=9, failed_prompts=1),
    AccuracyFacts({"facts": "digest"}, runs()),
    MadeFrom("name", 3, {"above": "content"}),
]


@pytest.mark.parametrize("facts", FACTS, ids=lambda facts: type(facts).__name__)
def test_facts_are_read_as_they_were_written(facts: Any) -> None:
    written = json.loads(json.dumps(to_plain(facts)))
    assert from_plain(type(facts), written | {"of a later version": 1}) == facts


def test_entries_stand_beside_those_of_their_owner_and_defaults_are_left_out() -> None:
    spec = replace(model_at("o/n", "printed"), identity=Identity(hub="o/n", commit="1b"))
    assert to_plain(spec) == {
        "hub": "o/n", "commit": "1b", "dtype": "float32", "head_dtype": "float32",
        "attention": "sdpa",
    }  # fmt: skip
    assert "baseline" not in to_plain(runs()[1])
    assert to_plain(runs()[1])["sampling"] == "races"


def test_a_record_without_an_entry_is_damage(tmp_path: Path) -> None:
    record(tmp_path, "drafts", {"k": 3, "vocab": 9})
    with pytest.raises(DamagedError, match=r"record.json lacks 'vocab_size'"):
        Artifact(tmp_path).facts(DraftsFacts)


def test_a_record_keeps_names_of_values_that_equal_no_default() -> None:
    """Nothing of a record is left out: readers of record.json find every entry."""
    made = Record(
        "drafts", label="", fingerprint="", version=0, config={}, upstream=[], content="", files={},
        rows={}, artifact_schema=0, facts={},
    )  # fmt: skip
    assert list(to_plain(made)) == list(Record.__dataclass_fields__)

"""The section on a drafter: what golden files of the fixed study do not have, and its notes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysis.report.measured import Results
from analysis.report.records import Table, together
from analysis.report.render import lines
from analysis.report.sections.acceptance import acceptance_section
from analysis.report.text import share_text
from analysis.rules import AbsoluteThreshold, Additive, Multiplicative, StrictGreedy, Tree
from pipeline.stages.report.inputs import PAIR_FRAMES
from tests.pipeline.test_acceptance import drafts, logits, run

RULES = [StrictGreedy(), Additive(0.1), AbsoluteThreshold(0.05), Tree(4)]
PRESET = Multiplicative(0.5)
T = "target A"


def measured(folder: Path, missing: bool = False, sampled: float | None = 0.5) -> Results:
    """A drafter, which lacks a token or not, of which 8 of 20 target tokens are stored."""
    z, w = logits(0.3)
    if missing:
        w[:, 3] = -np.inf
    pair = drafts(folder, z, w, sampled, deeper=(logits(1.0)[1],))
    found, _ = run(folder, pair, rules=RULES, presets={"engine": PRESET})
    frames = {
        name: together({T: found.read(file).to_pandas()}) for name, file in PAIR_FRAMES.items()
    }
    frames["listing"] = found.read("listing").to_pandas()
    rules = {rule.label: rule for rule in (*RULES, PRESET)}
    return Results([T], rules, frames, "D", {"sampled": sampled})


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return measured(tmp_path_factory.mktemp("full"))


def tables(results: Results) -> dict[str, Table]:
    shown = acceptance_section(results).shown
    return {item.name: item for item in shown if isinstance(item, Table)}


def cells(table: Table) -> dict[str, list[str]]:
    """The printed cells of each row, by its name."""
    return {name: texts for _, rows in lines(table) for name, texts, _ in rows}


def test_what_golden_files_do_not_have(full: Results, tmp_path: Path) -> None:
    """The cells of the fixed study's tables are in tests/results/report.json."""
    found = tables(full)
    assert any(note.startswith("Some certificates are") for note in found["acceptance"].notes)
    steps = full["breakdown"].set_index(["rule", "depth", "statistic"])["value"].sort_index()
    laid = lines(found["depths"])
    assert [heading for heading, _ in laid] == ["", "Accepted", "Certified"]
    name, texts, _ = laid[1][1][1]
    assert name == "Additive (t = 0.1)"
    wanted = [steps.loc[("additive t=0.1", depth, "acceptance")].item() for depth in (1, 2)]
    assert texts == [share_text(value) for value in wanted]
    drawn = [item for item in acceptance_section(full).shown if not isinstance(item, Table)]
    assert [item.name for item in drawn] == ["acceptance_rules"]
    certified = drawn[0].data.set_index("rule")["certified"]
    value = full["acceptance"].set_index(["rule", "statistic"])["value"]
    assert all(certified[rule.label] == value[rule.label, "certified"] for rule in RULES)
    law = "Speculative sampling, 1 − TV(p, q)"
    assert cells(found["acceptance"])[law][0] == share_text(
        value["speculative sampling", "acceptance"]
    )
    assert law not in cells(tables(measured(tmp_path, sampled=None))["acceptance"])


def test_a_reduced_vocabulary_is_said_below_the_table(tmp_path: Path) -> None:
    found = tables(measured(tmp_path, missing=True))
    said = [note for note in found["acceptance"].notes if "the drafter lacks" in note]
    assert [note[:32] for note in said] == ["Steps with a finite KL: 0 %. At "[:32]]

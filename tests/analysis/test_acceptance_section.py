"""The section on a drafter: what golden files of the fixed study do not have, and its notes."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.acceptance.judgement import Judgement
from analysis.report.acceptance import acceptance_table, depth_table, part_statistics, parts_table
from analysis.report.results import Results, Target
from analysis.report.table import together
from analysis.report.text import number_text, percent_text
from analysis.rules import AbsoluteThreshold, Additive, Multiplicative, StrictGreedy, Tree
from analysis.statistics.bootstrap import PromptBootstrap
from pipeline.stages.report.inputs import ACCEPTANCE
from tests.pipeline.test_acceptance import drafts, logits, run

RULES = [StrictGreedy(), Additive(0.1), AbsoluteThreshold(0.05), Tree(4), Multiplicative(0.5)]
T = "target A"


def measured(folder, missing=False, sampled=0.5):
    """A drafter, which lacks a token or not, of which 8 of 20 target tokens are stored."""
    z, w = logits(0.3)
    if missing:
        w[:, 3] = -np.inf
    pair = drafts(folder, z, w, sampled, deeper=(logits(1.0)[1],))
    found, _ = run(folder, pair, rules=RULES)
    frames = {
        name: together([(T, found.read(file).to_pandas())]) for name, file in ACCEPTANCE.items()
    }
    rules = {rule.label: rule for rule in RULES}
    return Results([T], rules, frames, "D")


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    return measured(tmp_path_factory.mktemp("full"))


def depths(results):
    found = depth_table(results)
    assert found is not None
    return found


def test_what_golden_files_do_not_have(full, tmp_path):
    """The cells of the fixed study's tables are in tests/results/report.json."""
    steps = full["breakdown"].set_index(["rule", "depth", "statistic"])["value"].sort_index()
    shown = depths(full).shown
    assert shown.index.get_level_values(0).unique().tolist() == [
        *("KL(p‖q), median, nats", "accepted", "certified")
    ]
    wanted = [steps.loc[("additive t=0.1", depth, "acceptance")].item() for depth in (1, 2)]
    texts = shown.loc[("accepted", "Additive (t = 0.1)")].tolist()
    assert texts == [percent_text(value) for value in wanted]
    value = full["acceptance"].set_index(["rule", "statistic"])["value"]
    cells = acceptance_table(full).shown[T]
    law = "Speculative sampling, 1 − TV(p, q)"
    assert cells.loc[law, "accepted"] == percent_text(value["speculative sampling", "acceptance"])
    assert cells.loc["Tree (m = 4)", "p given up"] != cells.loc["Tree (m = 4)", "p given up"]
    assert law not in acceptance_table(measured(tmp_path, sampled=None)).shown.index


def test_what_an_infinite_kl_cannot_say_is_left_out(full, tmp_path):
    """A drafter that lacks a token, whose KL is infinite at every step of depth 1."""
    found = measured(tmp_path, missing=True)
    assert not {"certified", "coverage"} & set(acceptance_table(found).shown[T])
    assert {"certified", "coverage"} < set(acceptance_table(full).shown[T])
    shown = depths(found).shown
    assert shown.loc["finite KL"].to_numpy().ravel().tolist() == ["0.0 %", "100.0 %"]
    for name in ("KL(p‖q), median, nats", "certified"):
        assert shown.loc[name, (T, "depth 1")].isna().all()
        assert shown.loc[name, (T, "depth 2")].notna().all()


def test_parts_are_by_margin_and_by_half_of_the_answer():
    """Two answers of 4 and of 3 steps, by hand; the middle one of three is in the first half."""
    rules, margin = [StrictGreedy(), Additive(0.1)], np.array([0.1, 0.6, 3, 9, 0.2, 0.4, 1.5])
    lower = np.array([0.1, 0.2, 0.3, np.inf, 0.05, 0.15, 0.25])
    accepted = np.array([1, 0, 1, 1, 0, 0, 1], dtype=bool)
    certified = accepted & (lower > 0.2)
    target = Target(
        T,
        dict.fromkeys(rules, (lower, lower)),
        PromptBootstrap(np.repeat([0, 1], [4, 3]), 20, 0.9, 0),
        np.zeros(7, dtype=np.int32),
        [],
        margin=margin,
        judged={r.label: Judgement(r, lower, lower, accepted, certified) for r in rules},
    )
    frame = part_statistics(target)
    value = frame.set_index(["part", "rule", "statistic"])["value"].sort_index()
    assert value["0 to 0.5", "", "share"] == 3 / 7
    assert value["0 to 0.5", "greedy", "acceptance"] == 1 / 3
    assert value["above 4", "greedy", "certified"] == 1
    assert value["first", "", "share"] == 4 / 7
    assert value["first", "greedy", "acceptance"] == 1 / 4
    assert value["second", "greedy", "acceptance"] == 1
    named = {rule.label: rule for rule in rules}
    shown = parts_table(Results([T], named, {"parts": frame}, "D")).shown
    assert shown.loc[("accepted", "Strict greedy")].tolist() == [
        *("33.3 %", "0.0 %", "100.0 %", "100.0 %", "100.0 %", "25.0 %", "100.0 %")
    ]
    alone = part_statistics(replace(target, judged={}))
    shown = parts_table(Results([T], named, {"parts": alone})).shown
    medians = [0.1, 0.2, 0.25, 0.3, StrictGreedy().ceiling, 0.1, 0.3]
    assert shown.loc[("median R, nats", "Strict greedy")].tolist() == [
        number_text(value, 3) for value in medians
    ]

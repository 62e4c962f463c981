"""Accuracy by hand-made answers: paired proportions."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.decoding.answers import (
    ALL,
    Answered,
    accuracy,
    difference,
    differing,
    losses,
    mcnemar,
    proportion,
)
from analysis.rules import Additive, StrictGreedy

RUNS = pd.DataFrame(
    {
        "method": ["Autoregressive", "Strict greedy", "Additive"],
        "drafter": ["none", "model", "model"],
        "draft_length": [0, 3, 3],
        "temperature": 0.0,
        "baseline": 0,
        "exact": [True, True, False],
    }
)
RIGHT = {  # of items a0..a3 of task a, and b0 of task b
    0: [True, True, False, False, True],
    1: [True, True, False, False, True],
    2: [False, False, True, False, True],
}


def answered():
    cells = [(at, run, run == 2 and at < 3) for at in range(5) for run in range(3)]
    at, run, changed = (np.array(column) for column in zip(*cells, strict=True))
    ids = np.where(at < 4, "a", "b"), at.astype(str)
    data = pd.DataFrame({"task": ids[0], "item_id": ids[1], "run": run}).assign(
        answer=[f"answer {at}{'x' * changed}" for at, _, changed in cells],
        correct=[RIGHT[run][at] for at, run, _ in cells],
        draft_length=3 * (run > 0),
        temperature=0.0,
        n_tokens=10,
        nats_given_up=4.0 + changed,
        departures=5 * changed,
        common_prefix=np.where(changed, 2, 10),
        gap=np.where(changed, 0.5, math.nan),
        calls=np.where(run == 0, 9, 3),
        emitted=9,
    )
    seconds = data[["task", "item_id", "run"]].assign(seconds=1.0 / (1 + data["run"]))
    return Answered("target", ["a", "b"], RUNS, data, seconds)


def row(table, task, run):
    return table[(table["task"] == task) & (table["run"] == run)].iloc[0]


def test_counts_by_task_and_of_all():
    table = accuracy(answered(), 50, 0.95, 0, 0.05)
    assert table["task"].unique().tolist() == ["a", "b", ALL]
    relaxed = row(table, "a", 2)
    assert (relaxed["items"], relaxed["right"], relaxed["lost"], relaxed["won"]) == (4, 1, 2, 1)
    assert relaxed["difference"] == -0.25
    assert relaxed["recovery"] == 0.5
    assert relaxed["changed"] == 0.75
    assert relaxed["nats_given_up"] == pytest.approx(3 / 40)
    assert relaxed["departures"] == pytest.approx(15 / 40)
    assert relaxed["tokens_per_call"] == 3.0
    assert relaxed["speedup"] == pytest.approx(3.0)
    assert row(table, ALL, 2)["right"] == 2
    assert row(table, ALL, 2)["items"] == 5
    assert row(table, "b", 2)["difference"] == 0


def test_the_same_answers_lose_nothing_but_their_interval_has_a_width():
    table = accuracy(answered(), 50, 0.95, 0, 0.05)
    alone, strict = row(table, ALL, 0), row(table, ALL, 1)
    for one in (alone, strict):
        assert (one["lost"], one["won"], one["changed"], one["p_value"]) == (0, 0, 0.0, 1.0)
    assert strict["difference_ci_low"] < 0 < strict["difference_ci_high"]
    assert (alone["difference_ci_low"], alone["difference_ci_high"]) == (0.0, 0.0)
    assert alone["within"]
    assert not strict["within"]  # five items exclude no loss of 5 points
    low = row(accuracy(answered(), 10, 0.95, 0, 0.5), ALL, 2)["difference_ci_low"]
    assert not row(accuracy(answered(), 10, 0.95, 0, -low), ALL, 2)["within"]  # strictly
    assert row(accuracy(answered(), 10, 0.95, 0, -low + 1e-9), ALL, 2)["within"]


def test_no_call_no_right_answer_and_other_items():
    one = answered()
    one.data["calls"] = one.data["emitted"] = 0
    one.data["correct"] = False
    table = accuracy(one, 10, 0.95, 0, 0.05)
    assert table[["tokens_per_call", "tokens_per_call_ci_low", "recovery"]].isna().all(axis=None)
    assert (table["accuracy"] == 0).all()
    for frame in (one.data, one.seconds):
        frame.loc[(frame["run"] == 2) & (frame["item_id"] == "0"), "item_id"] = "9"
    with pytest.raises(ValueError, match="different items"):
        accuracy(one, 10, 0.95, 0, 0.05)


def test_differing_answers_stand_side_by_side():
    found = differing(answered())
    shown = ["method", "item_id", "alone_answer", "answer", "alone_correct", "correct", "gap"]
    assert found[shown].to_numpy().tolist() == [
        ["Additive", "0", "answer 0", "answer 0x", True, False, 0.5],
        ["Additive", "1", "answer 1", "answer 1x", True, False, 0.5],
        ["Additive", "2", "answer 2", "answer 2x", False, True, 0.5],
    ]


@pytest.mark.parametrize(
    ("right", "margin", "decision"),
    [([True] * 5, 0.9, "excluded"), ([False] * 5, 0.1, "open"), ([True] * 5, 0.1, "open")],
)
def test_a_relaxed_rule_is_decided_by_its_interval(right, margin, decision):
    one = answered()
    runs = one.runs.assign(rule=[None, StrictGreedy(), Additive(0.1)])
    one.data.loc[one.data["run"] == 2, "correct"] = right
    (found,) = losses(accuracy(replace(one, runs=runs), 50, 0.95, 0, margin)).to_dict("records")
    assert (found["rule"], found["decision"]) == ("additive t=0.1", decision)
    assert (found["right"], found["alone"], found["items"]) == (sum(right), 3, 5)


def test_a_fall_is_measured_where_the_whole_interval_lies_below_zero():
    table = pd.DataFrame({
        "task": ALL, "run": range(4), "rule": [None, *[Additive(t) for t in (0.1, 0.2, 0.3)]],
        "exact": [True, False, False, False], "baseline": 0, "right": [9, 9, 8, 2],
        "within": [True, True, True, False], "falls": [False, False, True, True],
    })  # fmt: skip
    assert losses(table)["decision"].tolist() == ["excluded", "excluded and falls", "falls"]


@pytest.mark.parametrize(("right", "items"), [(0, 1), (1, 1), (3, 7), (50, 100), (299, 300)])
def test_the_interval_of_a_proportion_is_scipys(right, items):
    wanted = stats.binomtest(right, items).proportion_ci(0.9, method="wilson")
    assert proportion(right, items, 0.9) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


def test_mcnemar_is_the_enumeration_of_fair_coins():
    for lost, won in product(range(5), repeat=2):
        pairs = lost + won
        coins = [sum(toss) for toss in product((0, 1), repeat=pairs)]
        as_far = [abs(2 * heads - pairs) >= abs(lost - won) for heads in coins]
        assert mcnemar(lost, won) == pytest.approx(sum(as_far) / len(as_far), abs=1e-15)
    assert mcnemar(400, 300) == pytest.approx(stats.binomtest(300, 700).pvalue, rel=1e-9)


def test_the_paired_interval_holds_the_truth_as_often_as_it_says():
    """Also where hardly a pair is discordant, and Wald's interval would have no width."""
    rng = np.random.default_rng(0)
    for lost, won, items in ((0.002, 0.0, 300), (0.05, 0.01, 100), (0.1, 0.1, 50), (0.3, 0.1, 80)):
        drawn = rng.multinomial(items, [lost, won, 1 - lost - won], size=2000)
        ends = [difference(int(c), int(b), items, 0.95) for c, b, _ in drawn]
        held = [low <= won - lost <= high for low, high in ends]
        assert np.mean(held) >= 0.93, (lost, won, items)


def test_edges():
    assert difference(0, 0, 1, 0.95)[0] < 0 < difference(0, 0, 1, 0.95)[1]
    assert difference(1, 0, 1, 0.95)[0] == -1.0
    low, high = difference(3, 8, 40, 0.95)
    assert difference(8, 3, 40, 0.95) == pytest.approx((-high, -low))
    assert proportion(0, 5, 0.95)[0] == 0.0
    assert proportion(5, 5, 0.95)[1] == 1.0

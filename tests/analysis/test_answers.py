"""Accuracy of methods by hand-made answers."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from analysis.decoding.answers import ALL, Answered, accuracy, differing

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


def answered() -> Answered:
    rows = []
    for at in range(5):
        for run in range(3):
            changed = run == 2 and at < 3
            rows.append(
                {
                    "task": "a" if at < 4 else "b",
                    "item_id": f"{at}",
                    "run": run,
                    "answer": f"answer {at}{'x' if changed else ''}",
                    "correct": RIGHT[run][at],
                    "draft_length": 3 * (run > 0),
                    "temperature": 0.0,
                    "n_tokens": 10,
                    "log_likelihood": -4.0 - changed,
                    "common_prefix": 2 if changed else 10,
                    "gap": 0.5 if changed else math.nan,
                    "calls": 9 if run == 0 else 3,
                    "emitted": 9,
                }
            )
    data = pd.DataFrame(rows)
    seconds = data[["task", "item_id", "run"]].assign(seconds=1.0 / (1 + data["run"]))
    return Answered("target", ["a", "b"], RUNS, data, seconds)


def row(table: pd.DataFrame, task: str, run: int) -> pd.Series:
    return table[(table["task"] == task) & (table["run"] == run)].iloc[0]


def test_counts_by_task_and_of_all() -> None:
    table = accuracy(answered(), 50, 0.95, 0, 0.05)
    assert table["task"].unique().tolist() == ["a", "b", ALL]
    relaxed = row(table, "a", 2)
    assert (relaxed["items"], relaxed["right"], relaxed["lost"], relaxed["won"]) == (4, 1, 2, 1)
    assert relaxed["difference"] == -0.25
    assert relaxed["recovery"] == 0.5
    assert relaxed["changed"] == 0.75
    assert relaxed["given_up"] == pytest.approx(3 / 40)
    assert relaxed["tokens_per_call"] == 3.0
    assert relaxed["speedup"] == pytest.approx(3.0)
    assert row(table, ALL, 2)["right"] == 2
    assert row(table, ALL, 2)["items"] == 5
    assert row(table, "b", 2)["difference"] == 0


def test_the_same_answers_lose_nothing_but_their_interval_has_a_width() -> None:
    table = accuracy(answered(), 50, 0.95, 0, 0.05)
    alone, strict = row(table, ALL, 0), row(table, ALL, 1)
    for one in (alone, strict):
        assert (one["lost"], one["won"], one["changed"], one["p_value"]) == (0, 0, 0.0, 1.0)
    assert strict["difference_ci_low"] < 0 < strict["difference_ci_high"]
    assert (alone["difference_ci_low"], alone["difference_ci_high"]) == (0.0, 0.0)
    assert alone["within"]
    assert not strict["within"]  # five items exclude no loss of 5 points


def test_the_margin_is_excluded_strictly() -> None:
    low = row(accuracy(answered(), 10, 0.95, 0, 0.5), ALL, 2)["difference_ci_low"]
    assert not row(accuracy(answered(), 10, 0.95, 0, -low), ALL, 2)["within"]
    assert row(accuracy(answered(), 10, 0.95, 0, -low + 1e-9), ALL, 2)["within"]


def test_no_call_and_no_right_answer_are_no_numbers() -> None:
    one = answered()
    one.data["calls"] = one.data["emitted"] = 0
    one.data["correct"] = False
    table = accuracy(one, 10, 0.95, 0, 0.05)
    assert table[["tokens_per_call", "tokens_per_call_ci_low", "recovery"]].isna().all(axis=None)
    assert (table["accuracy"] == 0).all()


def test_a_run_that_answered_other_items_is_refused() -> None:
    one = answered()
    one.data.loc[(one.data["run"] == 2) & (one.data["item_id"] == "0"), "item_id"] = "9"
    one.seconds.loc[(one.seconds["run"] == 2) & (one.seconds["item_id"] == "0"), "item_id"] = "9"
    with pytest.raises(ValueError, match="different items"):
        accuracy(one, 10, 0.95, 0, 0.05)


def test_differing_answers_stand_side_by_side() -> None:
    found = differing(answered())
    assert found["method"].tolist() == ["Additive"] * 3
    assert found["item_id"].tolist() == ["0", "1", "2"]
    assert found["alone"].tolist() == ["answer 0", "answer 1", "answer 2"]
    assert found["answer"].tolist() == ["answer 0x", "answer 1x", "answer 2x"]
    assert found["alone_correct"].tolist() == [True, True, False]
    assert found["correct"].tolist() == [False, False, True]
    assert np.allclose(found["gap"], 0.5)

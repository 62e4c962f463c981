"""Accuracy of methods by hand-made answers; where a loss is excluded, and where accuracy falls."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest

from analysis.decoding.answers import (
    ALL,
    Answered,
    accuracy,
    decide,
    differing,
    families,
    threshold_limits,
    verdicts,
)
from analysis.rules import Additive, Mars, StrictGreedy
from analysis.rules.rule import Rule
from analysis.statistics.proportions import difference

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
                    "ended": at < 3,
                    "departures": 5 * changed,
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
    assert relaxed["cut"] == 0.25
    assert relaxed["departures"] == pytest.approx(15 / 40)
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


RULES: list[Rule | None] = [None, StrictGreedy(), Additive(0.4), Additive(0.1), Additive(0.2),
                            Mars(0.8), Mars(0.95)]  # fmt: skip


def runs(rules: list[Rule | None] = RULES) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "method": ["alone" if rule is None else rule.label for rule in rules],
            "rule": rules,
            "exact": [rule is None or isinstance(rule, StrictGreedy) for rule in rules],
            "drafter": ["none" if rule is None else "model" for rule in rules],
            "draft_length": 4,
            "temperature": 0.0,
        }
    )


def table(counts: dict[int, tuple[int, int]], items: int = 300) -> pd.DataFrame:
    frame = runs().assign(task=ALL, run=range(len(RULES)), items=items)
    frame["lost"] = [counts.get(run, (0, 0))[0] for run in range(len(RULES))]
    frame["seconds_ratio_ci_high"] = 0.9
    frame["won"] = [counts.get(run, (0, 0))[1] for run in range(len(RULES))]
    other = frame.assign(task="facts", lost=items, won=0)  # of one task: not looked at
    return pd.concat([other, frame])


def test_thresholds_go_from_strict_to_relaxed() -> None:
    found = families(runs())
    assert found["family"].tolist() == ["additive"] * 3 + ["mars"] * 2
    assert found["parameter"].tolist() == ["t"] * 3 + ["theta"] * 2
    assert found["value"].tolist() == [0.1, 0.2, 0.4, 0.95, 0.8]
    assert found["run"].tolist() == [3, 4, 2, 6, 5]
    other = runs()
    other.loc[2, "draft_length"] = 8  # another family
    assert families(other).groupby("group")["run"].apply(list).tolist() == [[2], [3, 4], [6, 5]]
    assert families(runs([None, StrictGreedy()])).empty


def test_the_largest_excluded_threshold_and_the_first_fall() -> None:
    found = decide(table({3: (5, 5), 4: (10, 8), 2: (40, 2), 6: (3, 3), 5: (20, 16)}), runs(), 0.05,
                   0.95)  # fmt: skip
    assert found["excluded"].tolist() == [True, True, False, True, True]
    assert found["falls"].tolist() == [False, False, True, False, False]
    one, other = threshold_limits(found).to_dict("records")
    assert (one["family"], one["largest"], one["first"]) == ("additive", 0.2, 0.4)
    assert (other["largest"], math.isnan(other["first"])) == (0.8, True)
    assert verdicts(found) == {3: "excluded", 4: "excluded", 2: "falls", 6: "excluded",
                               5: "excluded"}  # fmt: skip


def test_a_threshold_behind_one_that_failed_is_not_counted() -> None:
    """Fixed order: t = 0.2 is not excluded, so t = 0.4 does not count though it is."""
    found = decide(table({3: (2, 2), 4: (30, 5), 2: (4, 4)}), runs(), 0.05, 0.95)
    part = found[found["family"] == "additive"]
    assert part["excluded"].tolist() == [True, False, True]
    assert part["up_to"].tolist() == [True, False, False]
    assert threshold_limits(found)["largest"].iloc[0] == 0.1
    assert part["falls"].tolist() == [False, True, False]
    assert part["down_to"].tolist() == [False, False, False]  # a fall that heals is no fall
    assert math.isnan(threshold_limits(found)["first"].iloc[0])
    assert verdicts(found)[4] == verdicts(found)[2] == "open"


def test_bounds_are_one_sided() -> None:
    found = decide(table({3: (12, 4)}), runs(), 0.05, 0.95).set_index("run").loc[3]
    z = NormalDist().inv_cdf(0.95)
    mean, size = (4 - 12) / 302, 302
    spread = math.sqrt((16 + 1) / size - mean * mean)
    assert found["worst"] == pytest.approx(mean - z * spread / math.sqrt(size), abs=1e-12)
    assert found["best"] == pytest.approx(mean + z * spread / math.sqrt(size), abs=1e-12)
    assert found["worst"] > difference(12, 4, 300, 0.95)[0]  # than the two-sided end


@pytest.mark.parametrize(("step", "excluded"), [(-1e-9, False), (0.0, False), (1e-9, True)])
def test_the_margin_itself_is_not_excluded(step: float, excluded: bool) -> None:
    worst, _ = difference(12, 4, 300, 2 * 0.95 - 1)
    found = decide(table({3: (12, 4)}), runs(), -worst + step, 0.95).set_index("run")
    assert found.loc[3, "excluded"] == excluded

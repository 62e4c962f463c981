"""What foretells a loss, on answers made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import mannwhitneyu, spearmanr

from analysis.decoding.answers import Answered
from analysis.decoding.prediction import NUMBERS, numbers, predict, relaxed, spearman
from analysis.rules import Additive, StrictGreedy

ITEMS = 40
RULES = [None, StrictGreedy(), Additive(0.1), Additive(0.4), Additive(0.8)]
RUNS = pd.DataFrame(
    {
        "method": ["alone", "strict", "a", "b", "c"],
        "rule": RULES,
        "exact": [True, True, False, False, False],
        "drafter": "model",
        "draft_length": 4,
        "temperature": 0.0,
        "baseline": 0,
    }
)


def made(seed: int = 0) -> Answered:
    """More departures make more answers wrong; the KL along the target's answer is noise."""
    draw = np.random.default_rng(seed)
    rows, account = [], []
    right = draw.random(ITEMS) < 0.7
    noise = draw.random(ITEMS)
    for run, rule in enumerate(RULES):
        share = getattr(rule, "t", 0.0)
        for item in range(ITEMS):
            left = int(draw.binomial(20, share / 2))
            turned = left > 0 and draw.random() < left / 12
            key = {"task": "a", "item_id": f"{item}", "run": run}
            rows.append(
                key
                | {
                    "correct": bool(right[item] and not turned),
                    "n_tokens": 20,
                    "log_likelihood": -5.0 - left,
                    "common_prefix": 20 if left == 0 else 10,
                }
            )
            account.append(
                key
                | {
                    "departures": left,
                    "conceded": 0.3 * left,
                    "kl": noise[item],
                    "certified": None if rule is None else 20 - left,
                    "certified_alone": None if rule is None else 15,
                }
            )
    frame = pd.DataFrame(rows)
    seconds = frame[["task", "item_id", "run"]].assign(seconds=1.0)
    return Answered("t", ["a"], RUNS, frame, seconds, pd.DataFrame(account))


def test_only_rules_that_may_change_an_answer_count() -> None:
    assert relaxed(RUNS) == [2, 3, 4]
    assert set(numbers(made())["run"]) == {2, 3, 4}


def test_numbers_are_of_an_answer_and_of_the_targets_own() -> None:
    one = made()
    found: Any = numbers(one).set_index(["item_id", "run"])
    assert one.account is not None
    assert set(NUMBERS) <= set(found)
    account: Any = one.account.set_index(["item_id", "run"])
    here = ("3", 4)
    left = account.loc[here, "departures"]
    assert found.loc[here, "departures"] == left / 20
    assert found.loc[here, "conceded"] == pytest.approx(0.3 * left / 20)
    assert found.loc[here, "given_up"] == pytest.approx(left / 20)
    assert found.loc[here, "uncertified"] == pytest.approx(left / 20)
    assert found.loc[here, "uncertified_alone"] == 0.25
    assert found.loc[here, "kl_alone"] == account.loc[("3", 0), "kl"]


def test_without_an_account_what_needs_none_is_left() -> None:
    one = made()
    alone = Answered(one.target, one.tasks, one.runs, one.data, one.seconds)
    table, by_run = predict(alone, 20, 0.95, 0)
    assert table["number"].tolist() == ["given_up", "unlike"]
    assert list(by_run)[-2:] == ["given_up", "unlike"]


def test_an_infinite_number_is_left_out() -> None:
    one = made()
    assert one.account is not None
    account = one.account.assign(kl=np.inf)  # of a reduced vocabulary
    infinite = Answered(one.target, one.tasks, one.runs, one.data, one.seconds, account)
    table, by_run = predict(infinite, 20, 0.95, 0)
    assert set(NUMBERS) - set(table["number"]) == {"kl_alone"}
    assert "kl_alone" not in by_run


def test_the_area_is_that_of_mann_and_whitney() -> None:
    one = made()
    known = numbers(one)
    table, _ = predict(one, 50, 0.95, 0)
    known = known[known["alone_correct"]]
    above = pairs = 0.0
    for _, part in known.groupby("run"):
        bad = part.loc[~part["correct"], "departures"]
        good = part.loc[part["correct"], "departures"]
        if len(bad) and len(good):
            above += mannwhitneyu(bad, good).statistic
            pairs += len(bad) * len(good)
    row: Any = table.set_index("number").loc["departures"]
    assert row["area"] == pytest.approx(above / pairs, abs=1e-12)
    assert row["items"] == len(known)
    assert row["lost"] == int((~known["correct"]).sum())


def test_departures_foretell_and_noise_does_not() -> None:
    table, by_run = predict(made(), 200, 0.95, 0)
    found: Any = table.set_index("number")
    assert found.loc["departures", "area_ci_low"] > 0.5
    low, high = found.loc["kl_alone", ["area_ci_low", "area_ci_high"]]
    assert low < 0.5 < high
    assert found.loc["uncertified_alone", "area"] == 0.5  # the same of every answer: ties
    assert found.loc["departures", "correlation"] == 1.0
    assert np.isnan(found.loc["uncertified_alone", "correlation"])
    assert by_run["loss"].is_monotonic_increasing


def test_rank_correlation_is_scipys() -> None:
    draw = np.random.default_rng(1)
    for _ in range(20):
        x, y = (draw.integers(0, 4, 9).astype(float) for _ in "xy")
        assert spearman(x, y) == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)


def test_no_relaxed_run_foretells_nothing() -> None:
    one = made()
    keep = one.data["run"] < 2
    table, by_run = predict(
        Answered("t", ["a"], RUNS.iloc[:2], one.data[keep], one.seconds), 20, 0.95, 0
    )
    assert table.empty
    assert by_run.empty


def test_two_methods_have_no_rank_correlation() -> None:
    one = made()
    keep = one.data["run"] < 4
    table, _ = predict(
        Answered("t", ["a"], RUNS.iloc[:4], one.data[keep], one.seconds, one.account), 20, 0.95, 0
    )
    assert table["correlation"].isna().all()
    assert table["area"].notna().all()

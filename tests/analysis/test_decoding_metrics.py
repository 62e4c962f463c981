"""Metrics of decoding on two answers small enough to be counted by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.decoding import metrics as decoding
from analysis.decoding import predicted, speed, speed_laws
from analysis.decoding.laws import leading
from analysis.decoding.metrics import Decoded
from analysis.report.render import lines
from analysis.report.sections.decoding_trees import trees_table
from analysis.rules import StrictGreedy

RUNS = pd.DataFrame(
    {
        "method": ["Autoregressive", "Strict greedy", "Strict greedy"],
        "drafter": ["none", "model", "model"],
        "sampling": [None] * 3,
        "rule": [None, "greedy", "greedy"],
        "draft_length": [0, 2, 3],
        "temperature": [0.0] * 3,
        "tree": [None] * 3,
        "top_p": [1.0] * 3,
        "top_k": [0] * 3,
    }
)


def made() -> Decoded:
    """Two prompts; the baseline takes 10 ms a call, a draft 1 ms a token, a verification 12 ms."""
    made_calls = {  # prompt, run: drafted, tested, accepted, emitted
        ("a", 0): [(0, 0, 0, 1)] * 5,
        ("b", 0): [(0, 0, 0, 1)] * 3,
        ("a", 1): [(2, 2, 2, 3), (2, 1, 0, 1), (0, 0, 0, 1)],
        ("b", 1): [(2, 2, 1, 2), (1, 0, 0, 1)],
        ("a", 2): [(3, 3, 3, 4), (0, 0, 0, 1)],
        ("b", 2): [(2, 2, 1, 2), (0, 0, 0, 1)],
    }
    names = ["prompt_id", "run", "drafted", "tested", "accepted", "emitted"]
    rows = [(*key, *call) for key, mine in made_calls.items() for call in mine]
    calls = pd.DataFrame(rows, columns=names)
    behind = calls.groupby(["prompt_id", "run"])["emitted"].cumsum()
    calls["position"] = 1 + behind - calls["emitted"]
    calls["depth"] = calls["reach"] = calls["drafted"]
    spans = calls[["prompt_id", "run", "drafted", "depth", "emitted"]].assign(
        draft_seconds=0.001 * calls["drafted"],
        verify_seconds=np.where(calls["run"] > 0, 0.012, 0.010),
        other_seconds=0.0,
    )
    spans["spent"] = spans["draft_seconds"] + spans["verify_seconds"]
    totals = spans.groupby(["prompt_id", "run"], sort=False)[["emitted", "spent"]].sum()
    totals = totals.reset_index()
    key, tokens = totals[["prompt_id", "run"]], 1 + totals["emitted"]
    answers = key.assign(
        first_seconds=0.02, begin_seconds=0.0, seconds=0.02 + totals["spent"], peak_bytes=None
    )
    data = key.assign(
        source="s",
        n_tokens=tokens,
        text_tokens=10 + tokens,
        ended=False,
        log_likelihood=-1.0 * tokens - key["run"],
        agreement=np.where(key["run"] < 2, 1.0, 0.5),
        common_prefix=tokens,
    )
    trajectory = pd.DataFrame(
        {
            "prompt_id": ["a"] * 4,
            "position": range(4),
            "token_id": [1] * 4,
            "draft_token_id": [1] * 4,
            "draft_rank": [1, 2, 3, 1],
            "draft_log_prob": [-1.0] * 4,
            "z1": [10.0, 10.0, 10.0, -1.0],
            "z2": [9.5, 9.5, 5.0, -2.0],
            "top_surprisal": [1.0, 1.0, 1.0, 12.0],
        }
    )
    size = {
        "target": {"model": 1000, "cache_per_token": 10},
        "drafter": {"model": 100, "cache_per_token": 2},
    }
    rules = {"greedy": StrictGreedy()}
    spans = spans.drop(columns="spent")
    return Decoded("large", "small", RUNS, data, calls, answers, spans, trajectory, size, rules)


def test_acceptance_is_pooled_over_tested_tokens() -> None:
    found = decoding.acceptance(made())
    assert found["rate"].iloc[1] == pytest.approx(3 / 5)  # 2 + 0 + 1 of 2 + 1 + 2
    assert np.isnan(found["rate"].iloc[0])
    assert found["tokens_per_call"].tolist() == pytest.approx([1, 8 / 5, 8 / 4])
    # of five calls three drafted two tokens, one a single token, one none
    assert found["drafted_per_call"].iloc[1] == pytest.approx(7 / 5)
    assert found["closed_form"].iloc[1] == pytest.approx((3 * 1.96 + 1.6 + 1) / 5)
    assert found["closed_form"].iloc[0] == 1
    # 10 tokens an all; run 2 loses one nat more a prompt than run 1, run 1 than the baseline
    assert found["given_up"].tolist() == pytest.approx([0, 2 / 10, 4 / 10])
    assert found["agreement"].tolist() == [1.0, 1.0, 0.5]


def test_intervals_of_acceptance_are_over_prompts() -> None:
    """Run 1 accepts 2 of 3 of prompt a in 3 calls, 1 of 2 of b in 2; resamples are aa, ab, bb."""
    decoded = made()
    found = decoding.acceptance_intervals(decoded, 200, 0.9, 0)
    assert found.iloc[1].tolist() == pytest.approx([1 / 2, 2 / 3, 3 / 2, 5 / 3])
    assert found.iloc[0, :2].isna().all()  # the baseline tests nothing
    assert found.iloc[0, 2:].tolist() == [1, 1]


def test_places_are_counted() -> None:
    rates = decoding.position_rates(made().calls).set_index(["run", "place"])
    assert rates.loc[(1, 1), ["tested", "accepted"]].tolist() == [3, 2]
    assert rates.loc[(1, 2), ["tested", "accepted"]].tolist() == [2, 1]
    assert (2, 4) not in rates.index


def test_agreement_is_pooled_over_the_longer_of_two_answers() -> None:
    one = made()
    data = one.data.assign(
        n_tokens=[10, 4, 2, 8, 10, 4], agreement=[1.0, 1.0, 2 / 10, 4 / 8, 1.0, 1.0]
    )
    found = decoding.acceptance(replace(one, data=data))["agreement"]
    assert found.tolist() == pytest.approx([1.0, 6 / 18, 1.0])


def test_the_closed_form_is_what_independent_tests_give_in_answers_that_end() -> None:
    """Drafts of 5 tokens, answers of 12: every test succeeds with 0.7; the nominal form is off."""
    generator = np.random.default_rng(0)
    calls = []
    for _ in range(4000):
        left = 12
        while left > 0:
            drafted = min(5, left - 1)
            accepted = leading(generator.random(drafted) < 0.7)
            calls.append((0, drafted, min(accepted + 1, drafted), accepted))
            left -= accepted + 1
    table = pd.DataFrame(calls, columns=["run", "reach", "tested", "accepted"])
    measured = 1 + table["accepted"].mean()
    rate = pd.Series([table["accepted"].sum() / table["tested"].sum()])
    # about 14,000 calls, each with a standard deviation below 2: four standard errors are 0.07
    assert decoding.closed_form(table, rate)[0] == pytest.approx(measured, abs=0.07)
    assert speed_laws.tokens_per_call(rate[0], 5) > measured + 0.2
    nothing = pd.DataFrame({"run": [0, 0, 1, 1], "reach": [0, 0, 3, 1]})  # tested, and all accepted
    assert decoding.closed_form(nothing, pd.Series([np.nan, 1.0])).tolist() == [1.0, 3.0]


def test_races_are_compared_with_the_target_alone_in_the_same_race() -> None:
    runs = pd.DataFrame(
        {
            "drafter": ["none", "none", "none", "model", "model", "model"],
            "sampling": [None, None, "races", "speculative", "races", None],
            "temperature": [0.0, 1.0, 1.0, 1.0, 1.0, 0.0],
            "top_p": 1.0,
            "top_k": 0,
        }
    )
    decoded = replace(made(), runs=runs)
    assert [decoded.baseline(run) for run in range(6)] == [0, 1, 2, 1, 2, 0]
    cut = pd.concat([runs, runs.assign(top_p=0.9), runs.assign(top_k=5)], ignore_index=True)
    decoded = replace(made(), runs=cut)
    assert [decoded.baseline(run) for run in (3, 9, 10, 15)] == [1, 7, 8, 13]


def test_trees_are_shown_with_their_acceptance_prediction_and_bound() -> None:
    statistics = (50, 0.9, 0)
    one = made()
    tree = {"name": "optimal", "shown": "tau*", "nodes": 3, "depth": 2, "parents": [-1, -1, 0]}
    runs = one.runs.assign(tree=[None, tree, None], method=["alone", "a tree", "a chain"])
    assert trees_table([one], statistics) is None
    calls = one.calls.assign(drafted=one.calls["drafted"].where(one.calls["run"] != 1, 3))
    levels = pd.DataFrame(
        [("a", 1, 1, 1, 2, 1), ("a", 1, 1, 2, 1, 1), ("a", 1, 4, 1, 2, 0), ("b", 1, 1, 1, 2, 2)],
        columns=decoding.LEVELS,
    )
    runs.loc[2, "rule"] = "additive"  # a chain of another law says nothing of R
    table = trees_table([replace(one, runs=runs, calls=calls, levels=levels)], statistics)
    assert table is not None
    assert table.data is not None
    [row] = table.data.to_dict("records")
    # child 1 is accepted at 2 of 4 levels; of the 2 others, child 2 at one (one chance in two)
    assert row["acceptance"] == "0.5 0.25"
    assert row["predicted"] == pytest.approx(1 + 0.5 + 0.25 + 0.25)
    assert row["bound"] >= row["predicted"]
    assert (row["nodes"], row["levels"]) == (3, 2)
    assert row["tokens_per_call"] == pytest.approx(8 / 5)
    assert row["ci_low"] <= 8 / 5 <= row["ci_high"]
    assert (row["first_level"], row["later_levels"]) == (pytest.approx(2 / 3), 1.0)
    runs.loc[2, "rule"] = "greedy"
    assert [name for _, rows in lines(table) for name, *_ in rows] == ["a tree"]
    found = decoding.acceptance(replace(one, runs=runs, calls=calls, levels=levels))
    assert np.isnan(found["closed_form"][1])
    assert not np.isnan(found["closed_form"][2])
    alone = speed.speed(replace(one, runs=runs, calls=calls, levels=levels), 20, 0.9, 0)
    assert (
        len(predicted.draft_lengths(replace(one, runs=runs), alone)) == 0
    )  # one chain: none to choose


def test_answers_that_part_are_found_with_their_gaps() -> None:
    one = made()
    data = one.data.assign(
        common_prefix=[*one.data["common_prefix"][:2], 2, *one.data["common_prefix"][3:]]
    )
    found = decoding.partings(replace(one, data=data))
    shown = ["method", "draft_length", "prompt_id", "position", "gap"]
    assert found[shown].to_numpy().tolist() == [["Strict greedy", 2, "a", 2, 5.0]]
    assert decoding.partings(replace(one, data=data, runs=one.runs.assign(rule=None))).empty

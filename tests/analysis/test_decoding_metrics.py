"""Metrics of decoding on two answers small enough to be counted by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from analysis.decoding import metrics as decoding
from analysis.decoding import speed, speed_laws
from analysis.decoding.laws import history
from analysis.decoding.metrics import Decoded
from analysis.report.decoding_break_even import break_even_table
from analysis.report.decoding_figures import longest, places_figure
from analysis.report.decoding_ratios import histograms_figure, ratios_figure
from analysis.report.decoding_settings import length_table, temperature_table
from analysis.report.decoding_speed_figures import lengths_figure, thresholds_figure
from analysis.report.decoding_speed_tables import comparison_table, cost_table, latency_table
from analysis.report.decoding_tables import (
    acceptance_table,
    forced_table,
    histogram_table,
    places_table,
)
from analysis.report.decoding_tokens import tokens_table
from analysis.report.decoding_trees import trees_table
from analysis.report.table import Table
from analysis.rules import Additive, Mars, StrictGreedy

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
    calls = {  # prompt, run: drafted, tested, accepted, emitted
        ("a", 0): [(0, 0, 0, 1)] * 5,
        ("b", 0): [(0, 0, 0, 1)] * 3,
        ("a", 1): [(2, 2, 2, 3), (2, 1, 0, 1), (0, 0, 0, 1)],
        ("b", 1): [(2, 2, 1, 2), (1, 0, 0, 1)],
        ("a", 2): [(3, 3, 3, 4), (0, 0, 0, 1)],
        ("b", 2): [(2, 2, 1, 2), (0, 0, 0, 1)],
    }
    rows, spans, answers, data = [], [], [], []
    for (prompt, run), mine in calls.items():
        key = {"prompt_id": prompt, "run": run}
        position = 1
        for drafted, tested, accepted, emitted in mine:
            rows.append(
                key
                | {
                    "position": position,
                    "drafted": drafted,
                    "depth": drafted,
                    "reach": drafted,
                    "tested": tested,
                    "accepted": accepted,
                    "emitted": emitted,
                }
            )
            spans.append(
                key
                | {
                    "drafted": drafted,
                    "depth": drafted,
                    "emitted": emitted,
                    "draft_seconds": 0.001 * drafted,
                    "verify_seconds": 0.012 if run else 0.010,
                    "other_seconds": 0.0,
                }
            )
            position += emitted
        spent = sum(s["draft_seconds"] + s["verify_seconds"] for s in spans[-len(mine) :])
        answers.append(
            key
            | {
                "first_seconds": 0.02,
                "begin_seconds": 0.0,
                "seconds": 0.02 + spent,
                "peak_bytes": None,
            }
        )
        data.append(
            key
            | {
                "source": "s",
                "n_tokens": position,
                "text_tokens": 10 + position,
                "ended": False,
                "log_likelihood": -1.0 * position - run,
                "agreement": 1.0 if run < 2 else 0.5,
                "common_prefix": position,
            }
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
    indicators = pd.DataFrame(
        {
            "prompt_id": ["a"] * 4,
            "position": range(4),
            "rule": "greedy",
            "accepted": [True, False, False, True],
        }
    )
    return Decoded(
        "large",
        "small",
        RUNS,
        pd.DataFrame(data),
        pd.DataFrame(rows),
        pd.DataFrame(answers),
        pd.DataFrame(spans),
        trajectory,
        indicators,
        {
            "target": {"model": 1000, "cache_per_token": 10},
            "drafter": {"model": 100, "cache_per_token": 2},
        },
        {rule.label: rule for rule in (StrictGreedy(),)},
    )


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
    table = acceptance_table([decoded], 200, 0.9, 0)
    assert {
        "rate_ci_low",
        "rate_ci_high",
        "tokens_per_call_ci_low",
        "tokens_per_call_ci_high",
    } <= set(table.data)
    assert not table.data.equals(acceptance_table([decoded], 2, 0.9, 5).data)


def test_places_with_few_tests_are_not_drawn() -> None:
    """The longest drafts, those of run 2, are tested 2, 2 and 1 times at places 1, 2 and 3."""
    decoded = made()
    thrice = replace(decoded, calls=pd.concat([decoded.calls] * 3))
    for one, places in ((decoded, []), (thrice, [1, 2])):
        figure = places_figure([one])
        lines = figure.drawing.axes[0].lines
        drawn = {x for line in lines for x in np.asarray(line.get_xdata())}
        assert sorted(drawn) == places
        assert figure.data is not None
        rows = figure.data[figure.data["of"] == "place"]
        assert rows["number"].tolist() == places
        assert set(rows["method"]) <= {"Strict greedy, T = 0"}


def test_thresholds_of_mars_are_one_method_whatever_it_is_called() -> None:
    """The one at the paper's threshold is drawn, with each drafter; names are not looked at."""
    rules = [None, Mars(0.8), Mars(0.9), Mars(0.9), Additive(0.1)]
    runs = pd.DataFrame(
        {
            "method": ["alone", "MARS (θ = 0.9)", "x (y", "x (y, looked up", "x (z"],
            "drafter": ["none", "model", "model", "prompt_lookup", "model"],
            "rule": [None if rule is None else rule.label for rule in rules],
            "draft_length": [0, 3, 3, 3, 3],
            "temperature": [0.0] * 5,
        }
    )
    known = {rule.label: rule for rule in rules if rule is not None}
    chosen = longest(replace(made(), runs=runs, rules=known))
    assert [run for run, _ in chosen] == [2, 3, 4]
    assert chosen[0][1] == "x (y, T = 0"


def test_places_and_lengths_are_counted() -> None:
    rates = decoding.position_rates(made().calls).set_index(["run", "place"])
    assert rates.loc[(1, 1), ["tested", "accepted"]].tolist() == [3, 2]
    assert rates.loc[(1, 2), ["tested", "accepted"]].tolist() == [2, 1]
    assert (2, 4) not in rates.index
    lengths = decoding.length_histogram(made().calls).set_index(["run", "accepted"])["calls"]
    assert lengths[1].to_dict() == {0: 3, 1: 1, 2: 1}


def test_agreement_is_pooled_over_the_longer_of_two_answers() -> None:
    data = pd.DataFrame(
        {
            "prompt_id": ["a", "b", "a", "b"],
            "run": [0, 0, 1, 1],
            "n_tokens": [10, 4, 2, 8],
            "agreement": [1.0, 1.0, 2 / 10, 4 / 8],
        }
    )
    assert decoding.agreement(data, [0, 0]).tolist() == pytest.approx([1.0, 6 / 18])


def test_acceptance_on_the_baseline_counts_the_token_by_which_an_answer_leaves_it() -> None:
    made_up = made()
    data = made_up.data.copy()
    data["common_prefix"] = 2
    runs = made_up.runs.assign(rule=[None, "relaxed", "greedy"])
    indicators = made_up.indicators.assign(rule="relaxed")
    both = pd.concat([indicators, made_up.indicators])
    changed = replace(made_up, data=data, runs=runs, indicators=both)
    # calls of run 1 at 1 (2 tested, 2 accepted), 4, 5; and at 1 (2, 1), 3: of the first calls the
    # two tests behind a baseline's text (positions 1 and 2) count, the others none
    assert decoding.forced(changed)["on_baseline"].iloc[0] == pytest.approx(3 / 4)


def test_a_colour_of_the_ratios_means_one_thing_and_the_legend_says_what() -> None:
    record = ratios_figure([made()])
    assert record is not None
    figure = record.drawing
    shown = {text.get_text() for text in figure.legends[0].get_texts()}
    assert shown == {"argmax drafted", "second drafted", "another drafted"}
    colours = [to_hex(handle.get_facecolor()) for handle in figure.legends[0].get_patches()]
    assert len(set(colours)) == 3
    assert set(record.data["of"]) <= {"probability_ratio", "drafted"}
    proposed = record.data[record.data["of"] == "drafted"]
    assert proposed[["argmax", "second", "another"]].sum(axis=1).to_numpy() == pytest.approx(1)
    quartiles = record.data[record.data["of"] == "probability_ratio"]
    assert (quartiles["q25"] <= quartiles["median"]).all()
    assert (record.data["steps"] >= 5).all()


def test_teacher_forced_beside_realised() -> None:
    found = decoding.forced(made())
    assert found["teacher_forced"].tolist() == [0.5, 0.5]
    assert found["realised"].tolist() == pytest.approx([3 / 5, 4 / 5])


def test_all_tables_and_figures_print() -> None:
    decoded = made()
    speeds = [speed.speed(decoded, 20, 0.9, 0).assign(theta=np.nan)]
    found: list[Table | None] = [
        acceptance_table([decoded], 20, 0.9, 0),
        *(make([decoded]) for make in (forced_table, places_table, histogram_table, tokens_table)),
        comparison_table([decoded], speeds),
        cost_table([decoded], speeds),
        latency_table([decoded], speeds),
        temperature_table([decoded], speeds),
        length_table([decoded], speeds),
        break_even_table([decoded], speeds),
    ]
    tables = [table for table in found if table is not None]
    assert {table.name for table in tables} >= {"decoding_acceptance", "decoding_comparison"}
    for table in tables:
        assert "Strict greedy" in table.markdown() + table.csv()
        assert table.latex().count("\\toprule") == 1
    by_name = {table.name: table for table in tables}
    # run 1: first places 3 tested, 2 accepted; second places 2 tested, 1 accepted
    assert "| Strict greedy | 2 | 0 | 67 % | 50 % |" in by_name["decoding_rates"].markdown()
    assert (
        "| Strict greedy | 2 | 0 | 60 % | 20 % | 20 % |" in by_name["decoding_histogram"].markdown()
    )
    tokens = by_name["decoding_tokens"].data.dropna(subset="measured")
    assert tokens[["draft_length", "measured"]].to_numpy().tolist() == [[2, 8 / 5], [3, 8 / 4]]
    compared = by_name["decoding_comparison"].data
    assert set(compared["source"]) == {"s", "all"}
    assert set(compared["method"]) == {"Autoregressive", "Strict greedy"}
    without = replace(decoded, trajectory=decoded.trajectory[:0])
    for draw in (ratios_figure, histograms_figure):
        assert draw([decoded]) is not None
        assert draw([without]) is None
    assert thresholds_figure([decoded], speeds) is None
    assert lengths_figure([decoded], speeds) is None


def test_the_closed_form_is_what_independent_tests_give_in_answers_that_end() -> None:
    """Drafts of 5 tokens, answers of 12: every test succeeds with 0.7; the nominal form is off."""
    generator = np.random.default_rng(0)
    calls = [
        {"run": 0, "reach": call.drafted, "tested": min(call.accepted + 1, call.drafted)}
        | {"accepted": call.accepted}
        for _ in range(4000)
        for call in history((generator.random(12) < 0.7).tolist(), 5)
    ]
    table = pd.DataFrame(calls)
    measured = 1 + table["accepted"].mean()
    rate = pd.Series([table["accepted"].sum() / table["tested"].sum()])
    # about 14,000 calls, each with a standard deviation below 2: four standard errors are 0.07
    assert decoding.closed_form(table, rate)[0] == pytest.approx(measured, abs=0.07)
    assert speed_laws.tokens_per_call(rate[0], 5) > measured + 0.2


def test_the_closed_form_of_nothing_tested_and_of_certain_acceptance() -> None:
    calls = pd.DataFrame({"run": [0, 0, 1, 1], "reach": [0, 0, 3, 1]})
    found = decoding.closed_form(calls, pd.Series([np.nan, 1.0]))
    assert found.tolist() == [1.0, 3.0]


def test_intervals_of_few_prompts_carry_a_warning() -> None:
    made_up = made()
    table = acceptance_table([made_up], 20, 0.9, 0)
    assert any("intervals come from 2 prompts" in note for note in table.notes)
    assert table.data["few_prompts"].all()
    speeds = [speed.speed(made_up, 20, 0.9, 0)]
    compared = comparison_table([made_up], speeds)
    assert any("intervals come from 2 prompts" in note for note in compared.notes)
    assert compared.data["few_prompts"].all()
    assert speeds[0]["few_prompts"].all()


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
    assert [name for section in table.sections for name, _ in section.rows] == ["a tree"]
    found = decoding.acceptance(replace(one, runs=runs, calls=calls, levels=levels))
    assert np.isnan(found["closed_form"][1])
    assert not np.isnan(found["closed_form"][2])
    alone = speed.speed(replace(one, runs=runs, calls=calls, levels=levels), 20, 0.9, 0)
    assert (
        len(speed.draft_lengths(replace(one, runs=runs), alone)) == 0
    )  # one chain: none to choose
    forced = decoding.forced(replace(one, runs=runs))
    assert forced["run"].tolist() == [2]  # of trees only their rule is teacher-forced

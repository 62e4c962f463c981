"""Costs, gaps, predictions and draft lengths on the answers of `test_decoding_metrics`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from analysis.decoding import predicted, speed
from tests.analysis.test_decoding_metrics import made


def test_the_first_gap_of_an_answer_holds_the_drafters_pass_over_the_prompt() -> None:
    made_up = made()
    before = speed.token_gaps(made_up, 1)
    answers = made_up.answers.assign(begin_seconds=[0.0, 0.0, 0.5, 0.25, 0.0, 0.0])
    after = speed.token_gaps(replace(made_up, answers=answers), 1)
    gained = after - before
    assert gained[gained > 0].tolist() == pytest.approx([0.5, 0.25])
    assert gained[0] == pytest.approx(0.5)
    assert gained[5] == pytest.approx(0.25)  # 3 + 1 + 1 tokens of answer a come before


def test_memory_on_a_gpu_counts_the_weights_that_lie_beside_both() -> None:
    made_up = made()
    peaks = made_up.answers.assign(peak_bytes=[5000.0, 5000.0, 5040.0, 5030.0, 5010.0, 5000.0])
    changed = replace(made_up, answers=peaks)
    assert [speed.memory_overhead(changed, run) for run in range(3)] == [0, 140, 110]


def test_speed_costs_and_predictions() -> None:
    table = speed.speed(made(), 20, 0.9, 0)
    assert table["c_p"].tolist() == pytest.approx([0.010] * 3)
    assert table["rho"].iloc[1] == pytest.approx(0.1)
    assert table["verify_ratio"].iloc[1] == pytest.approx(1.2)
    alone, drafted = 0.04 + 8 * 0.010, 0.04 + 5 * 0.012 + 7 * 0.001
    assert table["speedup"].tolist()[:2] == pytest.approx([1.0, alone / drafted])
    assert table["ci_low"].iloc[1] <= table["speedup"].iloc[1] <= table["ci_high"].iloc[1]
    assert table["tokens_per_second"].iloc[0] == pytest.approx(10 / alone)
    # eight tokens an all come after a first one, and 20 ms of each answer before it
    assert table["tpot"].tolist()[:2] == pytest.approx([0.010, (5 * 0.012 + 7 * 0.001) / 8])
    assert table["tpot_speedup"].tolist()[:2] == pytest.approx([1.0, 0.080 / 0.067])
    ends = table[["tpot_ci_low", "tpot_speedup", "tpot_ci_high"]].iloc[1]
    assert ends.is_monotonic_increasing
    assert table["itl_zero"].iloc[1] == pytest.approx(3 / 8)
    assert table["itl_50"].iloc[0] == pytest.approx(0.010)
    assert table["memory"].iloc[1] == 100 + 2 * 16
    best = predicted.draft_lengths(made(), table)
    assert best["tried"].tolist() == ["2, 3"]
    assert predicted.draft_lengths(made(), table[::-1])["tried"].tolist() == ["2, 3"]


def test_the_ratio_of_spec_bench_is_of_means_over_prompts() -> None:
    one = made()
    found = speed.speedups(one, 20, 0.9, 0)
    rates = {}
    for run in (0, 1):
        seconds = one.answers.query(f"run == {run}").set_index("prompt_id")["seconds"]
        tokens = one.data.query(f"run == {run}").set_index("prompt_id")["n_tokens"]
        rates[run] = sum(tokens[prompt] / seconds[prompt] for prompt in "ab") / 2
    assert found["spec_bench_speedup"].tolist()[:2] == pytest.approx([1, rates[1] / rates[0]])
    assert found["spec_bench_speedup"][1] != pytest.approx(found["speedup"][1], abs=1e-3)


def test_answers_of_one_token_have_no_time_after_it() -> None:
    made_up = made()
    single = replace(
        made_up,
        answers=made_up.answers.assign(seconds=made_up.answers["first_seconds"]),
        data=made_up.data.assign(n_tokens=1),
    )
    table = speed.speedups(single, 20, 0.9, 0)
    assert table["speedup"].tolist() == [1.0] * 3
    assert table.filter(like="tpot").isna().all(axis=None)


def test_a_busy_machine_shows_in_gaps_and_in_verifications_faster_than_a_pass() -> None:
    table = speed.speed(made(), 20, 0.9, 0)
    assert speed.signs_of_load(table) == []
    # one of the baseline's eight gaps is 12 times the others; its mean pass becomes 23.75 ms
    interrupted = made()
    interrupted.spans.loc[interrupted.spans["run"] == 0, "verify_seconds"] = [0.12, *[0.01] * 7]
    gap, verification = speed.signs_of_load(speed.speed(interrupted, 20, 0.9, 0))
    assert gap.startswith("Autoregressive at T = 0: 1 % of the gaps")
    assert "11.2 times their median" in gap  # the percentile lies 7 % below the one large gap
    assert "Strict greedy at T = 0, γ = 2: a verification took 0.51 of" in verification
    # the limits themselves are no sign
    limit = table.assign(itl_99=10.0, itl_50=1.0, verify_ratio=0.9)
    assert speed.signs_of_load(limit) == []


def test_the_best_draft_length_is_from_measured_costs_and_may_be_none() -> None:
    """A call of 0, 2 and 3 drafted tokens takes 10, 14 and 15 ms; answers end before."""
    made_up = made()
    table = speed.speed(made_up, 20, 0.9, 0)
    costs = predicted.call_costs(made_up, table[1:])
    assert costs == pytest.approx([0.010, 0.012, 0.014, 0.015])
    best = predicted.draft_lengths(made_up, table).iloc[0]
    # the longest drafts, by place: 2 of 2, then 1 of 2, then 1 of 1
    gains = [1.0, *(simulated([1.0, 0.5, 1.0][:gamma], costs) for gamma in (1, 2, 3))]
    assert gains[best["predicted"]] == pytest.approx(max(gains), rel=0.01)
    assert best["predicted_speedup"] == pytest.approx(max(gains), rel=0.01)


def simulated(rates: list[float], costs: list[float]) -> float:
    """The speedup of answers of 6 and 4 tokens whose prompts take 20 ms, call by call."""
    draws = np.random.default_rng(0)
    spent, repeats = 0.0, 3000
    for left in [5, 3] * repeats:
        while left:
            drafted = min(len(rates), left - 1)
            tests = draws.uniform(size=drafted) < rates[:drafted]
            spent += costs[drafted]
            left -= 1 + int(np.cumprod(tests).sum())
    return 0.12 / (0.04 + spent / repeats)


@pytest.mark.parametrize(("run", "rates"), [(1, [2 / 3, 1 / 2]), (2, [2 / 2, 1 / 2, 1 / 1])])
def test_a_prediction_is_over_the_answers_that_were_measured(run: int, rates: list[float]) -> None:
    made_up = made()
    table = speed.speed(made_up, 20, 0.9, 0)
    costs = predicted.call_costs(made_up, table[1:])
    assert table["predicted"].iloc[run] == pytest.approx(simulated(rates, costs), rel=0.01)
    least = table["least"].iloc[run]
    assert simulated([least] * len(rates), costs) == pytest.approx(1, rel=0.02)
    assert np.isnan(table[["predicted", "least"]].iloc[0]).all()


def test_drafts_that_never_pay_need_no_acceptance() -> None:
    made_up = made()
    slow = made_up.spans.assign(
        verify_seconds=made_up.spans["verify_seconds"].where(made_up.spans["run"] == 0, 0.2)
    )
    table = speed.speed(replace(made_up, spans=slow), 20, 0.9, 0)
    assert table["least"].isna().all()

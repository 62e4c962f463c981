"""Metrics of decoding on answers counted by hand; speed laws at published values and 50 digits."""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.decoding import metrics as decoding
from analysis.decoding import speed
from analysis.decoding.metrics import Decoded
from analysis.rules import StrictGreedy
from analysis.statistics.bootstrap import PromptBootstrap

STATISTICS = (20, 0.9, 0)
RUNS = pd.DataFrame(
    {
        "method": ["Autoregressive", "Strict greedy", "Strict greedy"],
        "drafter": ["none", "model", "model"],
        "sampling": [None] * 3,
        "rule": [None, "greedy", "greedy"],
        "draft_length": [0, 2, 3],
        "temperature": [0.0] * 3,
        "tree": [None] * 3,
        "lossless": [True] * 3,
    }
)


def made():
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
    answers["processor_seconds"] = answers["seconds"]
    data = key.assign(
        source="s",
        n_tokens=tokens,
        text_tokens=10 + tokens,
        ended=False,
        nats_given_up=1.0 * tokens + key["run"],
        agreement=np.where(key["run"] < 2, 1.0, 0.5),
        common_prefix=tokens,
    )
    trajectory = pd.DataFrame(
        {"prompt_id": "a", "position": range(4), "z1": [10.0, 10.0, 10.0, -1.0]}
        | {"z2": [9.5, 9.5, 5.0, -2.0]}
    )
    size = {
        "target": {"model": 1000, "cache_per_token": 10},
        "drafter": {"model": 100, "cache_per_token": 2},
    }
    rules = {"greedy": StrictGreedy()}
    spans = spans.drop(columns="spent")
    return Decoded("large", "small", RUNS, data, calls, answers, spans, trajectory, size, rules)


def speeds(decoded):
    return speed.speed(decoded, decoding.acceptance(decoded, *STATISTICS), *STATISTICS)


def test_acceptance_is_pooled_over_tested_tokens():
    found = decoding.acceptance(made(), *STATISTICS)
    assert found["rate"].iloc[1] == pytest.approx(3 / 5)  # 2 + 0 + 1 of 2 + 1 + 2
    assert np.isnan(found["rate"].iloc[0])
    # over all that could be drafted: 3 of 5 calls of 2, 4 of 4 calls of 3
    assert found["rate_over_gamma"].iloc[1:].tolist() == pytest.approx([3 / 10, 4 / 12])
    assert np.isnan(found["rate_over_gamma"].iloc[0])
    assert found["tokens_per_call"].tolist() == pytest.approx([1, 8 / 5, 8 / 4])
    # run 1 emits 3, 1, 1 and 2, 1 tokens a call: 3 of 8 come together with the one before
    assert found["burstiness"].tolist() == [0, 3 / 8, 4 / 8]
    ended = made()
    ended.calls.loc[12, ["tested", "accepted"]] = 1  # an answer that ends with an accepted token
    assert decoding.acceptance(ended, *STATISTICS)["burstiness"].tolist() == [0, 3 / 8, 4 / 8]
    # of five calls three drafted two tokens, one a single token, one none
    assert found["drafted_per_call"].iloc[1] == pytest.approx(7 / 5)
    assert found["closed_form"].iloc[:2].tolist() == pytest.approx([1, (3 * 1.96 + 1.6 + 1) / 5])
    # 10 tokens an all; run 2 loses one nat more a prompt than run 1, run 1 than the baseline
    assert found["nats_given_up"].tolist() == pytest.approx([0, 2 / 10, 4 / 10])
    data = made().answers.assign(  # pooled over the longer of two answers
        n_tokens=[10, 4, 2, 8, 10, 4], agreement=[1.0, 1.0, 2 / 10, 4 / 8, 1.0, 1.0]
    )
    pooled = decoding.acceptance(replace(made(), answers=data), *STATISTICS)["agreement"]
    assert pooled.tolist() == pytest.approx([1.0, 6 / 18, 1.0])
    rates = decoding.position_rates(made().calls).set_index(["run", "place"])
    assert rates.loc[(1, 1), ["tested", "accepted"]].tolist() == [3, 2]
    assert rates.loc[(1, 2), ["tested", "accepted"]].tolist() == [2, 1]
    assert (2, 4) not in rates.index


def test_intervals_of_acceptance_are_over_prompts():
    """Run 1 accepts 2 of 3 of prompt a in 3 calls, 1 of 2 of b in 2; resamples are aa, ab, bb."""
    ends = [f"{name}_ci_{end}" for name in ("rate", "tokens_per_call") for end in ("low", "high")]
    found = decoding.acceptance(made(), 200, 0.9, 0)[ends]
    assert found.iloc[1].tolist() == pytest.approx([1 / 2, 2 / 3, 3 / 2, 5 / 3])
    assert found.iloc[0, :2].isna().all()  # the baseline tests nothing


def test_the_closed_form_of_calls_without_tests_and_of_certain_ones():
    calls = pd.DataFrame({"run": [0, 0, 1, 1], "reach": [0, 0, 3, 1]})
    assert decoding.closed_form(calls, pd.Series([np.nan, 1.0])).tolist() == [1.0, 3.0]


def test_a_run_is_compared_with_the_target_alone_in_the_same_race():
    sampling = [None, None, "races", "speculative", "races", None]
    runs = pd.DataFrame({"drafter": ["none"] * 3 + ["model"] * 3, "sampling": sampling})
    decoded = replace(made(), runs=runs.assign(temperature=[0.0, 1.0, 1.0, 1.0, 1.0, 0.0]))
    assert decoded.baselines() == [0, 1, 2, 1, 2, 0]
    bootstrap = decoded.bootstrap(*STATISTICS)
    seconds = np.array([[1.0, 4.0, 9.0, 1.0, 3.0, 0.5]] * 2)
    families = [[3, 4], [5]]
    found = speed.speedups(seconds, np.ones((2, 6)), decoded.baselines(), families, bootstrap)
    assert found.value == pytest.approx([1, 1, 1, 4, 3, 2])


def test_answers_that_part_are_found_with_their_gaps():
    one = made()
    one.answers.loc[2, "common_prefix"] = 2
    shown = ["run", "prompt_id", "position", "gap"]
    assert decoding.first_differences(one)[shown].to_numpy().tolist() == [[1, "a", 2, 5.0]]
    assert decoding.first_differences(replace(one, runs=one.runs.assign(rule=None))).empty


def test_gaps_hold_the_drafters_pass_over_the_prompt_and_memory_all_weights():
    one = made()
    answers = one.answer_seconds.assign(
        begin_seconds=[0.0, 0.0, 0.5, 0.25, 0.0, 0.0],
        peak_bytes=[5000.0, 5000.0, 5040.0, 5030.0, 5010.0, 5000.0],
    )
    changed = replace(one, answer_seconds=answers)
    gained = speed.token_gaps(changed, 1) - speed.token_gaps(one, 1)
    assert np.flatnonzero(gained).tolist() == [0, 5]  # 3 + 1 + 1 tokens of answer a come before
    assert gained[[0, 5]] == pytest.approx([0.5, 0.25])
    assert [speed.memory_overhead(changed, run) for run in range(3)] == [0, 140, 110]


def test_speed_and_costs():
    table = speeds(made())
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
    data = made().answers.assign(n_tokens=lambda rows: rows["n_tokens"] + rows["run"])
    longer = speed.throughput(replace(made(), answers=data), 20, 0.9, 0)
    for name, pace in (("speedup", longer["per_token"]), ("tpot_speedup", longer["tpot"])):
        assert longer[name].tolist() == pytest.approx((pace[0] / pace).tolist())
    assert table["itl_50"].iloc[0] == pytest.approx(0.010)
    assert table["first_token"].tolist() == pytest.approx([0.020] * 3)
    assert table["memory"].iloc[1] == 100 + 2 * 16
    fastest = 2 if table["speedup"][1] > table["speedup"][2] else 3
    assert table["best_length"][1:].tolist() == [fastest, fastest]


def test_a_busy_machine_shows_in_gaps_in_verifications_faster_than_a_pass_and_in_waiting():
    table = speeds(made())
    assert speed.signs_of_load(table) == []
    # one of the baseline's eight gaps is 12 times the others; its mean pass becomes 23.75 ms
    busy = made()
    busy.call_seconds.loc[busy.call_seconds["run"] == 0, "verify_seconds"] = [0.12, *[0.01] * 7]
    shares = np.array([1.0, 0.89, 0.2])  # of the time the processor worked
    answers = busy.answer_seconds
    answers["processor_seconds"] = answers["seconds"] * shares[answers["run"]]
    found = speeds(busy)
    np.testing.assert_allclose(found["processor_share"], shares, rtol=1e-15)
    waiting, gap, verification = speed.signs_of_load(found)
    assert "11.2 times their median" in gap  # the percentile lies 7 % below the one large gap
    assert "Strict greedy at T = 0, γ = 2: a verification took 0.51 of" in verification
    assert "89 % of the time" in waiting
    # the limits themselves are no sign
    limit = table.assign(itl_99=10.0, itl_50=1.0, verify_ratio=0.9, processor_share=0.9)
    assert speed.signs_of_load(limit) == []


# Seed table: expected tokens a call, to two digits
PUBLISHED = {
    0.5: {3: 1.88, 5: 1.97, 7: 1.99, 10: 2.00},
    0.7: {3: 2.53, 5: 2.94, 7: 3.14, 10: 3.27},
    0.8: {3: 2.95, 5: 3.69, 7: 4.16, 10: 4.57},
    0.9: {3: 3.44, 5: 4.69, 7: 5.70, 10: 6.86},
    0.95: {3: 3.71, 5: 5.30, 7: 6.73, 10: 8.62},
}


def test_tokens_per_call_has_the_published_values_and_its_limits():
    for a, row in PUBLISHED.items():
        for gamma, tokens in row.items():
            assert decoding.tokens_per_call(a, gamma) == pytest.approx(tokens, abs=0.0051)
    assert decoding.tokens_per_call(0.0, 6) == 1
    near = 1 - 1e-12  # the closed form cancels here
    assert decoding.tokens_per_call(near, 6) == pytest.approx(7, rel=1e-10)
    assert decoding.tokens_per_call(1.0, 6) == 7


@pytest.mark.parametrize("a", [0.05, 0.5, 0.8, 0.95, 0.999])
@pytest.mark.parametrize("rho", [1e-3, 0.05, 0.3])
def test_the_formulas_at_50_digits(a, rho):
    """gamma* by Lambert's W, and S at whole lengths beside it by its definition."""
    with mpmath.workdps(50):
        x, r = mpmath.mpf(a), mpmath.mpf(rho)
        # with u = -log(x) (g + 1/r), the condition is e^(u + c) = 1 + u, c = -log(x) (1 - 1/r)
        c = -mpmath.log(x) * (1 - 1 / r)
        u = -1 - mpmath.lambertw(-mpmath.exp(c - 1), -1).real
        exact = -u / mpmath.log(x) - 1 / r
        found = decoding.formula_length(a, rho)
        assert found == pytest.approx(max(float(exact), 0.0), rel=1e-9, abs=1e-9)
        speedups = [(1 - x ** (g + 1)) / (1 - x) / (1 + g * r) for g in range(math.ceil(found) + 3)]
        for g, speedup in enumerate(speedups):
            assert decoding.formula_speedup(a, g, rho) == pytest.approx(float(speedup), rel=1e-12)
        assert abs(int(np.argmax([float(s) for s in speedups])) - found) < 1


def test_the_formulas_at_their_ends_and_beside_what_was_measured():
    assert decoding.formula_length(0.8, 0.0) == decoding.formula_length(1.0, 0.3) == math.inf
    # at a = 1, S is (1 + g) / (1 + g rho): at rho = 1 the same for every length, beyond it falling
    lengths = [decoding.formula_length(1.0, rho) for rho in (0.0, 1 - 1e-9, 1.0, 1 + 1e-9, 3.0)]
    assert lengths == [math.inf, math.inf, 0, 0, 0]
    assert decoding.formula_speedup(1.0, 1, 3.0) < decoding.formula_speedup(1.0, 0, 3.0) == 1
    assert decoding.formula_length(0.0, 0.0) == decoding.formula_length(0.0, 0.1) == 0
    # the seed: a = 0.9 with a dear drafter loses to a = 0.75 with a cheap one
    assert decoding.formula_speedup(0.9, 5, 0.5) < decoding.formula_speedup(0.75, 5, 0.02)
    table = speeds(made())
    assert table.loc[0, ["formula", "formula_length"]].isna().all()  # the target alone
    for run in (1, 2):
        a, gamma, rho = table.loc[run, ["rate", "draft_length", "rho"]]
        assert table["formula"][run] == (1 - a ** (gamma + 1)) / (1 - a) / (1 + gamma * rho)
        assert table["formula_length"][run] == decoding.formula_length(a, rho)


def of_speeds(seconds, *kinds):
    """Runs of one token a prompt, each (drafter, lossless, temperature); (P, R) seconds."""
    prompts, runs = seconds.shape
    columns = ["drafter", "lossless", "temperature"]
    frame = pd.DataFrame(kinds, columns=columns).assign(sampling=None)
    cells = pd.DataFrame(
        {
            "prompt_id": np.repeat([f"p{at:03}" for at in range(prompts)], runs),
            "run": np.tile(np.arange(runs), prompts),
            "seconds": seconds.ravel(),
            "first_seconds": 0.0,
            "n_tokens": 1,
        }
    )
    return replace(made(), runs=frame, answers=cells, answer_seconds=cells)


def test_a_relaxed_run_is_compared_with_each_lossless_one_pair_by_pair():
    """Both are slow at the same prompts, so their ratio is surer than the speed of either."""
    rng = np.random.default_rng(0)
    slow = np.exp(0.5 * rng.standard_normal((40, 1)))
    own = np.exp(0.02 * rng.standard_normal((40, 6)))
    seconds = own * np.column_stack([np.ones((40, 1)), *[slow] * 3, np.ones((40, 1)), slow])
    seconds /= [1, 2, 2.2, 3, 1, 4]
    kinds = [("none", True, 0.0), *[("model", kind, 0.0) for kind in (True, False, False)]]
    one = of_speeds(seconds, *kinds, ("none", True, 0.7), ("model", False, 0.7))
    found = speed.relaxed_ratios(one, 20, 0.95, 0)
    assert found[["relaxed", "lossless"]].to_numpy().tolist() == [[2, 1], [3, 1]]  # none at 0.7
    totals = seconds.sum(axis=0)
    assert found["ratio"].tolist() == pytest.approx(totals[1] / totals[2:4])
    # two pairs at once, 10,000 resamples, t with 39 degrees of freedom: written out
    weights = PromptBootstrap(np.arange(40), 10_000, 0.95, 0).weights
    logs = np.log(weights @ seconds)
    draws = logs[:, [1]] - logs[:, 2:4]
    estimates, spread = np.log(totals[1] / totals[2:4]), draws.std(axis=0)
    worst = np.sort((abs(draws - estimates) / spread).max(axis=1))
    half = (
        worst[9499] * spread * math.sqrt(40 / 39) * stats.t.ppf(0.975, 39) / stats.norm.ppf(0.975)
    )
    ends = np.exp([estimates - half, estimates + half]).T
    assert found[["ci_low", "ci_high"]].to_numpy() == pytest.approx(ends)
    assert (found["ci_low"] > 1).all()  # surely faster, although the speeds' intervals overlap
    speeds = speed.throughput(one, 20, 0.95, 0)
    assert speeds["ci_low"][2] < speeds["ci_high"][1]


def test_without_a_relaxed_run_there_is_no_ratio():
    one = of_speeds(np.ones((5, 2)), ("none", True, 0.0), ("model", True, 0.0))
    found = speed.relaxed_ratios(one, 20, 0.95, 0)
    assert found.columns.tolist() == ["relaxed", "lossless", "ratio", "ci_low", "ci_high"]
    assert found.empty


def test_ends_of_speeds_do_not_depend_on_the_number_of_resamples_asked_for():
    """Up to `SPEED_RESAMPLES`, which more exceed; other intervals take what is asked for."""
    seconds = np.exp(0.3 * np.random.default_rng(0).standard_normal((30, 2)))
    one = of_speeds(seconds, ("none", True, 0.0), ("model", True, 0.0))
    few, usual, many = (speed.throughput(one, n, 0.95, 0) for n in (20, 10_000, 15_000))
    assert few["ci_low"].tolist() == usual["ci_low"].tolist()
    assert usual["ci_low"][1] != many["ci_low"][1]

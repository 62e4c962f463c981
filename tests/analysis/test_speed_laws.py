"""Speed laws: published values, a simulation, the stationarity condition, break-even."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq

from analysis.decoding import formulas, predicted, speed
from analysis.decoding.metrics import Decoded
from analysis.decoding.places import call_tokens, pooled_rate, shifted_rates
from analysis.decoding.predicted import break_even, optimal_draft_length, tokens_per_call
from tests.analysis.test_decoding_metrics import made

# Seed table: expected tokens a call, to two digits
PUBLISHED = {
    0.5: {3: 1.88, 5: 1.97, 7: 1.99, 10: 2.00},
    0.7: {3: 2.53, 5: 2.94, 7: 3.14, 10: 3.27},
    0.8: {3: 2.95, 5: 3.69, 7: 4.16, 10: 4.57},
    0.9: {3: 3.44, 5: 4.69, 7: 5.70, 10: 6.86},
    0.95: {3: 3.71, 5: 5.30, 7: 6.73, 10: 8.62},
}


def test_tokens_per_call_has_the_published_values_and_its_limits() -> None:
    for a, row in PUBLISHED.items():
        for gamma, tokens in row.items():
            assert predicted.tokens_per_call(a, gamma) == pytest.approx(tokens, abs=0.0051)
    assert predicted.tokens_per_call(1.0, 6) == 7
    assert predicted.tokens_per_call(0.0, 6) == 1
    near = 1 - 1e-12  # the closed form cancels here
    assert predicted.tokens_per_call(near, 6) == pytest.approx(7, rel=1e-10)


def linear(rho: float, longest: int = 200) -> list[float]:
    """Costs of a call when a verification costs what a token of the target alone costs."""
    return [1 + gamma * rho for gamma in range(longest + 1)]


@pytest.mark.parametrize(("a", "rho"), [(0.8, 0.05), (0.9, 0.02), (0.6, 0.2), (0.95, 0.3)])
def test_optimal_draft_length_lies_at_the_root_of_the_derivative(a: float, rho: float) -> None:
    def slope(gamma: float) -> float:
        return -(a ** (gamma + 1)) * math.log(a) * (1 + gamma * rho) - rho * (1 - a ** (gamma + 1))

    root = brentq(slope, 0, 200)
    best, speedup = predicted.optimal_draft_length([a], linear(rho))
    assert best in {math.floor(root), math.ceil(root)}
    assert speedup == pytest.approx(predicted.tokens_per_call(a, best) / (1 + best * rho))


@pytest.mark.parametrize("a", [0.05, 0.5, 0.8, 0.95, 0.999])
@pytest.mark.parametrize("rho", [1e-3, 0.05, 0.3])
def test_the_formulas_at_50_digits(a: float, rho: float) -> None:
    """gamma* by Lambert's W, and S at whole lengths beside it by its definition."""
    with mpmath.workdps(50):
        x, r = mpmath.mpf(a), mpmath.mpf(rho)
        # with u = -log(x) (g + 1/r), the condition is e^(u + c) = 1 + u, c = -log(x) (1 - 1/r)
        c = -mpmath.log(x) * (1 - 1 / r)
        u = -1 - mpmath.lambertw(-mpmath.exp(c - 1), -1).real
        exact = -u / mpmath.log(x) - 1 / r
        found = formulas.formula_length(a, rho)
        assert found == pytest.approx(max(float(exact), 0.0), rel=1e-9, abs=1e-9)
        speedups = [(1 - x ** (g + 1)) / (1 - x) / (1 + g * r) for g in range(math.ceil(found) + 3)]
        for g, speedup in enumerate(speedups):
            assert formulas.formula_speedup(a, g, rho) == pytest.approx(float(speedup), rel=1e-12)
        assert abs(int(np.argmax([float(s) for s in speedups])) - found) < 1


def test_the_formulas_at_their_ends_and_beside_what_was_measured() -> None:
    assert formulas.formula_length(0.8, 0.0) == formulas.formula_length(1.0, 0.3) == math.inf
    assert formulas.formula_length(0.0, 0.0) == formulas.formula_length(0.0, 0.1) == 0
    # the seed: a = 0.9 with a dear drafter loses to a = 0.75 with a cheap one
    assert formulas.formula_speedup(0.9, 5, 0.5) < formulas.formula_speedup(0.75, 5, 0.02)
    one = batched()
    table = speed.speed(one, 20, 0.9, 0)
    assert table.loc[0, ["formula", "formula_length"]].isna().all()  # the target alone
    for run in (1, 2):
        a, gamma, rho = table.loc[run, ["rate", "draft_length", "rho"]]
        assert table["formula"][run] == (1 - a ** (gamma + 1)) / (1 - a) / (1 + gamma * rho)
        assert table["formula_length"][run] == formulas.formula_length(a, rho)


def test_drafting_does_not_pay_when_the_drafter_is_as_slow_as_it_is_right() -> None:
    assert predicted.optimal_draft_length([0.3], linear(0.3)) == (0, 1.0)
    assert predicted.optimal_draft_length([0.3], linear(0.29))[0] == 1
    assert predicted.optimal_draft_length([0.5], linear(0.0, 9))[0] == 9
    assert predicted.optimal_draft_length([0.9], [2.0]) == (0, 1.0)
    # a verification that costs more with more tokens shortens the best draft
    dear = [cost + 0.4 * (gamma > 3) for gamma, cost in enumerate(linear(0.05, 7))]
    assert predicted.optimal_draft_length([0.8], linear(0.05, 7))[0] == 7
    assert predicted.optimal_draft_length([0.8], dear)[0] == 3


def test_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a=1\.5"):
        predicted.tokens_per_call(1.5, 3)
    with pytest.raises(ValueError, match="gamma=-1"):
        predicted.tokens_per_call(0.5, -1)


STEP = 1e-9


@pytest.mark.parametrize("gamma", [1, 2, 3, 7])
@pytest.mark.parametrize("cost", [1.0001, 1.3, 1.9])
def test_drafting_pays_above_break_even_and_not_below(gamma: int, cost: float) -> None:
    length, a = break_even([1.0, *[9.0] * (gamma - 1), cost])
    assert length == gamma
    below, above = (tokens_per_call(a + step, gamma) - cost for step in (-STEP, STEP))
    assert below < 0 < above


def test_at_the_ends_of_the_range() -> None:
    assert break_even([1.0, 1.0]) == break_even([1.0, 0.9]) == (1, 0.0)  # free: always pays
    assert break_even([1.0, 2.0]) == (1, 1.0)  # only if all is accepted
    assert break_even([1.0, 9.0, 3.0]) == (2, 1.0)
    assert break_even([1.0, 1.25]) == (1, pytest.approx(0.25))  # 1 + a = 1.25
    assert break_even([1.0, 1.0, 1.0]) == (1, 0.0)  # of equal ones the shortest
    for costs in ([1.0], [1.0, 2.0 + STEP], [1.0, 9.0, 3.0 + STEP]):
        gamma, a = break_even(costs)
        assert (gamma, math.isnan(a)) == (0, True)


@pytest.mark.parametrize("rho", [0.02, 0.1, 0.3])
def test_break_even_is_where_a_best_draft_length_appears(rho: float) -> None:
    costs = [1 + gamma * (rho + 0.05) for gamma in range(12)]
    _, a = break_even(costs)
    assert optimal_draft_length([max(a - 1e-6, 0)], costs)[0] == 0
    assert optimal_draft_length([a + 1e-6], costs)[0] > 0
    assert a == pytest.approx(rho + 0.05)  # costs on a line: one token decides


def test_rates_by_place_decide_and_not_their_mean() -> None:
    """A head: 0.9 at the first place, 0.1 at the second; 0.99 / 1.9 pooled."""
    rates, costs = [0.9, 0.1], [1.0, 1.3, 1.6]
    assert optimal_draft_length(rates, costs) == (1, pytest.approx(1.9 / 1.3))
    assert call_tokens(rates) == pytest.approx(1 + 0.9 + 0.09)
    assert pooled_rate(rates) == pytest.approx(0.99 / 1.9)
    assert tokens_per_call(pooled_rate(rates), 2) < 1.8  # of 1.99
    assert optimal_draft_length(rates, [1.0, 1.95, 2.0]) == (0, 1.0)


def test_a_drafter_that_just_breaks_even_has_the_least_rate() -> None:
    rates = [0.9, 0.5, 0.1]
    costs = [1.0, 9.0, 9.0, call_tokens(rates)]
    assert break_even(costs, rates) == (3, pytest.approx(pooled_rate(rates)))
    dearer, cheaper = ([*costs[:3], costs[3] + step] for step in (0.1, -0.1))
    assert break_even(dearer, rates)[1] > pooled_rate(rates) > break_even(cheaper, rates)[1]
    assert break_even([1.0, 9.0, 9.0, 4.0], rates) == (3, 1.0)  # only if all is accepted
    assert break_even([1.0, 1.0], [0.0]) == (1, 0.0)
    assert break_even([1.0, 1.5], [0.0]) == (1, pytest.approx(0.5))  # of a better drafter
    assert shifted_rates(rates, 0.0) == [0.0] * 3
    assert shifted_rates(rates, 0.5) == rates
    assert shifted_rates(rates, 1.0) == [1.0] * 3


VERIFY = {1: [10.0, 10.5, 11.0, 11.5], 8: [20.0, 32.0, 44.0, 56.0], 64: [90.0, 180.0, 270, 360]}
DRAFT = {1: 1.0, 8: 2.0, 64: 9.0}


def batched() -> Decoded:
    """Made-up answers with the passes above, in milliseconds; as read, in no order."""
    rows = [
        *(("target", b, n, t) for b, each in VERIFY.items() for n, t in enumerate(each, 1)),
        *(("drafter", b, 1, t) for b, t in DRAFT.items()),
    ]
    passes = pd.DataFrame(rows[::-1], columns=["model", "batch", "tokens", "seconds"])
    return replace(made(), passes=passes.assign(seconds=passes["seconds"] / 1e3))


def test_batches_stop_to_pay_as_verification_gets_dear() -> None:
    tables = [speed.break_even_by_batch(batched(), [rate]) for rate in (0.5, 0.8)]
    table: Any = pd.concat(tables).round({"rate": 12}).set_index(["batch", "rate"]).sort_index()
    assert table.loc[(1, 0.8), "rho"] == pytest.approx(0.1)
    assert table.loc[(1, 0.8), "verify_ratio"] == pytest.approx(1.15)
    assert table.loc[(1, 0.8), "break_even"] == pytest.approx(0.15)  # 11.5 / 10 - 1
    assert table.loc[(8, 0.8), "break_even"] == pytest.approx(34 / 20 - 1)
    assert math.isnan(table.loc[(64, 0.8), "break_even"])
    assert table["draft_length"].tolist() == [2, 3, 0, 1, 0, 0]
    assert table["speedup"].tolist() == pytest.approx(
        [1.75 / 1.3, (1 + 0.8 + 0.64 + 0.512) / 1.45, 1, 1.8 / 1.7, 1, 1]
    )
    assert table.loc[(64, 0.5), "at_length"] == 0

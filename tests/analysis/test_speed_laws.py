"""Speed laws against the values of the literature, a simulation and the stationarity condition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq

from analysis.decoding import speed_laws

# Seed table: expected tokens a call, to two digits
PUBLISHED = {
    0.5: {3: 1.88, 5: 1.97, 7: 1.99, 10: 2.00},
    0.7: {3: 2.53, 5: 2.94, 7: 3.14, 10: 3.27},
    0.8: {3: 2.95, 5: 3.69, 7: 4.16, 10: 4.57},
    0.9: {3: 3.44, 5: 4.69, 7: 5.70, 10: 6.86},
    0.95: {3: 3.71, 5: 5.30, 7: 6.73, 10: 8.62},
}


def test_tokens_per_call_has_the_published_values() -> None:
    for a, row in PUBLISHED.items():
        for gamma, tokens in row.items():
            assert speed_laws.tokens_per_call(a, gamma) == pytest.approx(tokens, abs=0.0051)


def test_tokens_per_call_is_the_mean_of_independent_tests_and_has_its_limits() -> None:
    tests = np.random.default_rng(0).random((200_000, 6)) < 0.6
    mean = 1 + np.cumprod(tests, axis=1).sum(1).mean()
    assert speed_laws.tokens_per_call(0.6, 6) == pytest.approx(mean, abs=0.02)  # 5 standard errors
    assert speed_laws.tokens_per_call(1.0, 6) == 7
    assert speed_laws.tokens_per_call(0.0, 6) == 1
    near = 1 - 1e-12  # the closed form cancels here
    assert speed_laws.tokens_per_call(near, 6) == pytest.approx(7, rel=1e-10)


def linear(rho: float, longest: int = 200) -> list[float]:
    """Costs of a call when a verification costs what a token of the target alone costs."""
    return [1 + gamma * rho for gamma in range(longest + 1)]


@pytest.mark.parametrize(("a", "rho"), [(0.8, 0.05), (0.9, 0.02), (0.6, 0.2), (0.95, 0.3)])
def test_optimal_draft_length_lies_at_the_root_of_the_derivative(a: float, rho: float) -> None:
    def slope(gamma: float) -> float:
        return -(a ** (gamma + 1)) * math.log(a) * (1 + gamma * rho) - rho * (1 - a ** (gamma + 1))

    root = brentq(slope, 0, 200)
    best, speedup = speed_laws.optimal_draft_length(a, linear(rho))
    assert best in {math.floor(root), math.ceil(root)}
    assert speedup == pytest.approx(speed_laws.tokens_per_call(a, best) / (1 + best * rho))


def test_drafting_does_not_pay_when_the_drafter_is_as_slow_as_it_is_right() -> None:
    assert speed_laws.optimal_draft_length(0.3, linear(0.3)) == (0, 1.0)
    assert speed_laws.optimal_draft_length(0.3, linear(0.29))[0] == 1
    assert speed_laws.optimal_draft_length(0.5, linear(0.0, 9))[0] == 9
    assert speed_laws.optimal_draft_length(0.9, [2.0]) == (0, 1.0)


def test_a_verification_that_costs_more_with_more_tokens_shortens_the_best_draft() -> None:
    free = linear(0.05, 7)
    dear = [cost + 0.4 * (gamma > 3) for gamma, cost in enumerate(free)]
    assert speed_laws.optimal_draft_length(0.8, free)[0] == 7
    assert speed_laws.optimal_draft_length(0.8, dear)[0] == 3


def test_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a=1\.5"):
        speed_laws.tokens_per_call(1.5, 3)
    with pytest.raises(ValueError, match="gamma=-1"):
        speed_laws.tokens_per_call(0.5, -1)

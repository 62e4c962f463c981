"""Speed laws against the values of the literature, a simulation and the stationarity condition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq

from analysis import speed_laws

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


@pytest.mark.parametrize(("a", "rho"), [(0.8, 0.05), (0.9, 0.02), (0.6, 0.2), (0.95, 0.3)])
def test_optimal_draft_length_lies_at_the_root_of_the_derivative(a: float, rho: float) -> None:
    def slope(gamma: float) -> float:
        return -(a ** (gamma + 1)) * math.log(a) * (1 + gamma * rho) - rho * (1 - a ** (gamma + 1))

    root = brentq(slope, 0, 200)
    assert speed_laws.optimal_draft_length(a, rho) in {math.floor(root), math.ceil(root)}


def test_drafting_does_not_pay_when_the_drafter_is_as_slow_as_it_is_right() -> None:
    assert speed_laws.optimal_draft_length(0.3, 0.3) == 0
    assert speed_laws.optimal_draft_length(0.3, 0.29) == 1
    assert speed_laws.optimal_draft_length(0.5, 0.0, limit=9) == 9


def test_the_two_predictions_agree_when_a_verification_costs_a_target_pass() -> None:
    assert speed_laws.speedup(3.0, 5, 0.1) == pytest.approx(
        speed_laws.measured_cost_speedup(3.0, 2.0, 5 * 0.2, 2.0)
    )


def test_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a=1\.5"):
        speed_laws.tokens_per_call(1.5, 3)
    with pytest.raises(ValueError, match="gamma=-1"):
        speed_laws.tokens_per_call(0.5, -1)

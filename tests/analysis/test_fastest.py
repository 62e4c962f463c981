"""Intervals of the fastest of several methods: a plain twin, edges, and coverage by simulation."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.decoding.speed import speedups
from analysis.statistics.bootstrap import PromptBootstrap, simultaneous


def plainly(
    estimates: np.ndarray, draws: np.ndarray, confidence: float
) -> list[tuple[float, float]]:
    """The maximum statistic, quantity by quantity and resample by resample."""
    spreads = [np.std([row[m] for row in draws]) for m in range(len(estimates))]
    worst = sorted(
        max(abs(row[m] - estimates[m]) / spreads[m] for m in range(len(estimates))) for row in draws
    )
    c = next(value for at, value in enumerate(worst, 1) if at >= confidence * len(worst) - 1e-9)
    return [(e - c * s, e + c * s) for e, s in zip(estimates, spreads, strict=True)]


def test_the_ends_are_those_of_the_plain_twin() -> None:
    rng = np.random.default_rng(0)
    for methods in (1, 2, 5):
        mixed = rng.normal(size=(methods, methods))
        estimates, draws = rng.normal(size=methods), rng.normal(size=(40, methods)) @ mixed
        for confidence in (0.5, 0.95, 1.0):
            ends = simultaneous(estimates, draws, confidence)
            wanted = plainly(estimates, draws, confidence)
            np.testing.assert_allclose(np.transpose(ends), wanted, rtol=1e-12)
    inside = (ends[0] <= draws) & (draws <= ends[1])
    assert inside.all()  # confidence 1 holds every resample


def test_quantities_without_spread_or_value_leave_the_others_alone() -> None:
    rng = np.random.default_rng(1)
    draws = rng.normal(size=(50, 2))
    alone = np.transpose(simultaneous(np.zeros(2), draws, 0.9))
    more = np.column_stack([draws, np.full(50, 3.0), np.full(50, np.nan)])
    both = np.transpose(simultaneous(np.array([0.0, 0.0, 3.0, np.nan]), more, 0.9))
    np.testing.assert_array_equal(both[:2], alone)
    assert both[2].tolist() == [3.0, 3.0]
    assert np.isnan(both[3]).all()
    gaps = np.where(np.arange(50)[:, None] % 2, more, np.nan)  # undefined in every other resample
    assert np.isfinite(np.transpose(simultaneous(np.array([0, 0, 3, np.nan]), gaps, 0.9))[:3]).all()
    assert [len(end) for end in simultaneous(np.zeros(0), np.zeros((5, 0)), 0.9)] == [0, 0]


def fast(logs: np.ndarray, resamples: int, *families: list[int]) -> np.ndarray:
    """The target alone takes 1 s a prompt, method m exp(-logs[prompt, m]); (P, M)."""
    prompts, methods = logs.shape
    seconds = np.column_stack([np.ones(prompts), np.exp(-logs)])
    tokens, bootstrap = (
        np.full_like(seconds, 40),
        PromptBootstrap(np.arange(prompts), resamples, 0.95, 0),
    )
    together = families or [list(range(1, methods + 1))]
    return speedups(seconds, tokens, [0] * (methods + 1), together, bootstrap)


def test_methods_of_another_temperature_widen_nothing() -> None:
    logs = np.random.default_rng(3).normal(0.1, 0.2, size=(30, 6))
    every, two = fast(logs, 300), fast(logs[:, :2], 300)
    np.testing.assert_allclose(fast(logs, 300, [1, 2], [3, 4, 5, 6])[:3], two, rtol=1e-12)
    assert every[0].tolist() == [1, 1, 1]  # the target alone
    assert np.ptp(every[1]) > np.ptp(two[1])


@pytest.mark.thorough
@pytest.mark.parametrize("methods", [1, 2, 3, 6, 12])
def test_the_interval_of_the_fastest_covers_and_useless_methods_are_not_sure(methods: int) -> None:
    """Equally fast methods, 30 prompts: pointwise intervals cover 75 % of the fastest of 12."""
    rng = np.random.default_rng(methods)
    runs, covered, false = 400, 0, 0
    for _ in range(runs):
        noise = 0.1 * rng.normal(size=(30, 1)) + 0.15 * rng.normal(size=(30, methods))
        logs = noise + (0.1**2 + 0.15**2) / 2  # the mean of the seconds is that of the target, 1
        table = fast(logs, 400)[1:]
        _, low, high = table[table[:, 0].argmax()]
        covered += low <= 1 <= high
        false += (table[:, 1] > 1).any()
    assert covered / runs > 0.90  # 0.92 to 0.96 here; few prompts cost 2 points, the error is 1.3
    assert false / runs < 0.10  # pointwise: 0.04, 0.09, 0.10, 0.15, 0.31

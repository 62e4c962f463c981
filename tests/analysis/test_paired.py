"""Paired proportions: published values, exact enumeration, coverage, and the edges."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from analysis.statistics.proportions import (
    BINS,
    calibration_error,
    difference,
    mcnemar,
    proportion,
    reliability,
)


@pytest.mark.parametrize(("right", "items"), [(0, 1), (1, 1), (3, 7), (50, 100), (299, 300)])
def test_the_interval_of_a_proportion_is_scipys(right: int, items: int) -> None:
    wanted = stats.binomtest(right, items).proportion_ci(0.9, method="wilson")
    assert proportion(right, items, 0.9) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


def test_mcnemar_is_the_enumeration_of_fair_coins() -> None:
    for lost, won in product(range(5), repeat=2):
        pairs = lost + won
        coins = [sum(toss) for toss in product((0, 1), repeat=pairs)]
        as_far = [abs(2 * heads - pairs) >= abs(lost - won) for heads in coins]
        assert mcnemar(lost, won) == pytest.approx(sum(as_far) / len(as_far), abs=1e-15)
    assert mcnemar(400, 300) == pytest.approx(stats.binomtest(300, 700).pvalue, rel=1e-9)


def test_the_paired_interval_is_walds_after_half_is_added_to_each_cell() -> None:
    """By the multinomial variance of the two discordant cells, written out."""
    lost, won, items = 22, 9, 100
    p01, p10, size = (won + 0.5) / 102, (lost + 0.5) / 102, 102
    variance = (p01 * (1 - p01) + p10 * (1 - p10) + 2 * p01 * p10) / size
    half = stats.norm.ppf(0.975) * math.sqrt(variance)
    low, high = difference(lost, won, items, 0.95)
    assert (low, high) == pytest.approx((p01 - p10 - half, p01 - p10 + half), rel=1e-12)


def test_the_paired_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Also where hardly a pair is discordant, and Wald's interval would have no width."""
    rng = np.random.default_rng(0)
    for lost, won, items in ((0.002, 0.0, 300), (0.05, 0.01, 100), (0.1, 0.1, 50), (0.3, 0.1, 80)):
        drawn = rng.multinomial(items, [lost, won, 1 - lost - won], size=2000)
        ends = [difference(int(c), int(b), items, 0.95) for c, b, _ in drawn]
        held = [low <= won - lost <= high for low, high in ends]
        assert np.mean(held) >= 0.93, (lost, won, items)


def test_edges() -> None:
    assert difference(0, 0, 1, 0.95)[0] < 0 < difference(0, 0, 1, 0.95)[1]
    assert difference(1, 0, 1, 0.95)[0] == -1.0
    low, high = difference(3, 8, 40, 0.95)
    assert difference(8, 3, 40, 0.95) == pytest.approx((-high, -low))
    assert proportion(0, 5, 0.95)[0] == 0.0
    assert proportion(5, 5, 0.95)[1] == 1.0
    for wrong in ((2, 2, 3), (0, 0, 0), (-1, 0, 3)):
        with pytest.raises(ValueError, match="no paired table"):
            difference(*wrong, 0.95)
    for right, items in ((1, 0), (2, 1), (-1, 1)):
        with pytest.raises(ValueError, match="no proportion"):
            proportion(right, items, 0.95)


def test_the_calibration_error_is_the_weighted_gap_of_equal_bins() -> None:
    """By its definition, bin by bin; an edge belongs to the bin above it, 1 to the last."""
    rng = np.random.default_rng(0)
    q = np.append(rng.random(500), [0.0, 0.1, 0.5, 0.9, 1.0])
    accepted, prompts = rng.random(505) < q**2, rng.integers(3, size=505)
    wanted = 0.0
    for low in range(BINS):
        here = (q >= low / BINS) & ((q < (low + 1) / BINS) | (low == BINS - 1))
        wanted += here.mean() * abs(accepted[here].mean() - q[here].mean())
    sums = reliability(q, accepted, prompts)
    assert sums.shape == (3, BINS, 3)
    assert calibration_error(sums.sum(axis=0)) == pytest.approx(wanted, abs=1e-12)
    calibrated = reliability(np.full(4, 0.75), np.arange(4) < 3, np.zeros(4, dtype=np.intp))
    assert calibration_error(calibrated) == 0
    for wrong in (-1e-9, 1 + 1e-9, np.nan):
        with pytest.raises(ValueError, match="outside"):
            reliability(np.array([0.5, wrong]), np.ones(2, dtype=bool), np.zeros(2, dtype=np.intp))

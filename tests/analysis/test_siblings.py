"""Sibling drafts: at which child they are accepted, exactly."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from analysis.trees.acceptance import aligned, drawn_rates, greedy_rates

from .exact import exact


def index_law(p: np.ndarray, q: np.ndarray) -> list[Fraction]:
    """R of races without replacement, exactly: by the set of tokens that precede the winner.

    With the winner i at time t p_i, token j is later under p if e_j > t p_j, and earlier under q
    if e_j < t q_j p_i / q_i. The integral over t of a product of exponentials is a fraction.
    """
    rates = [Fraction(0)] * len(p)
    for i in np.flatnonzero((p > 0) & (q > 0)):
        others = [j for j in range(len(p)) if j != i]
        for choice in itertools.product([0, 1, 2], repeat=len(others)):
            # 0: not earlier, exp(-t max); earlier is the difference of 1, exp(-t p_j), and 2
            scale = p[i] / q[i]
            slopes = [
                p[j] if c == 1 else max(p[j], q[j] * scale)
                for j, c in zip(others, choice, strict=True)
            ]
            earlier = len(others) - choice.count(0)
            rates[earlier] += (-1) ** choice.count(2) * p[i] / (p[i] + sum(slopes))
    return rates


def sampled_rates(p: np.ndarray, q: np.ndarray) -> list[Fraction]:
    """R of speculative sampling without replacement, exactly, over all orders of the drafts.

    Child x is accepted with probability min(1, p/q). After its rejection p becomes the residual
    max(0, p - q), and q loses x (Algorithm 4 of arXiv 2504.15475).
    """
    rates = [Fraction(0)] * len(p)

    def test(p: np.ndarray, q: np.ndarray, reached: Fraction, index: int) -> None:
        for x in np.flatnonzero(q):
            accepted = min(Fraction(1), p[x] / q[x])
            rates[index] += reached * q[x] * accepted
            rest = np.maximum(p - q, Fraction(0))
            others = np.where(np.arange(len(q)) == x, Fraction(0), q)
            if accepted < 1 and others.any():
                rejected = reached * q[x] * (1 - accepted)
                test(rest / rest.sum(), others / others.sum(), rejected, index + 1)

    test(p, q, Fraction(1), 0)
    return rates


P, Q = np.array([0.5, 0.1, 0.25, 0.15]), np.array([0.2, 0.4, 0.4, 0.0])


def drawn(p: np.ndarray, q: np.ndarray, count: int, races: bool) -> np.ndarray:
    steps = 40_000
    times = np.random.default_rng(1).exponential(size=(steps, len(p)))
    rows = [np.tile(row, (steps, 1)) for row in (p, q)]
    return drawn_rates(rows[0], rows[1], times, count, races) / steps


@pytest.mark.parametrize("races", [False, True])
def test_sums_over_stored_steps_have_the_exact_rates(races: bool) -> None:
    p, q = (exact([Fraction(x).limit_denominator(100) for x in row]) for row in (P, Q))
    wanted = np.array((index_law if races else sampled_rates)(p, q), dtype=np.float64)
    assert drawn(P, Q, 4, races) == pytest.approx(wanted, abs=0.008)
    assert wanted[3] == 0  # q has three tokens
    assert drawn(P, P, 3, races) == pytest.approx([1, 0, 0])


def test_greedy_rates_are_shares_of_ranks() -> None:
    assert greedy_rates(np.array([1, 2, 2, 4]), 2).tolist() == [0.25, 0.5]
    assert greedy_rates(np.array([5]), 3).tolist() == [0, 0, 0]


def test_stored_tokens_meet_where_both_models_stored_them() -> None:
    target = np.array([[0, 2]]), np.array([[0.5, 0.25]]), np.array([0.25])
    draft = np.array([[2, 1]]), np.array([[0.4, 0.4]]), np.array([0.2])
    p, q = aligned(target, draft)
    assert p.tolist() == [[0.25, 0, 0.5, 0, 0.25, 0]]
    assert q.tolist() == [[0.4, 0.4, 0, 0, 0, 0.2]]

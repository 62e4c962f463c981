"""At which child drafts without replacement are accepted: exactly, and from stored steps."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from analysis.trees.acceptance import Stored, aligned, drawn_rates, greedy_rates

from .exact import distributions, exact


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


def some(seed: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    return distributions(seed, size)(()), distributions(seed + 1000, size)(())


@pytest.mark.parametrize("seed", range(12))
def test_first_drafts_are_accepted_with_their_closed_forms(seed: int) -> None:
    p, q = some(seed, 4)
    races, tests = index_law(p, q), sampled_rates(p, q)
    assert tests[0] == 1 - sum(abs(p - q)) / 2
    both = [i for i in range(4) if p[i] and q[i]]
    assert races[0] == sum(1 / sum(max(p[j] / p[i], q[j] / q[i]) for j in range(4)) for i in both)
    assert tests[0] >= races[0] >= sum(p[i] * q[i] / (p[i] + q[i]) for i in both)  # Lemma C.1
    if all(q):
        assert sum(races) == sum(tests) == 1  # all drafted: one is accepted


def test_races_overtake_speculative_sampling_as_alternatives_are_added() -> None:
    """The order that the seed reports: tests lead at k = 1, races from k = 3 on."""
    p = exact([Fraction(2, 3), 0, Fraction(1, 3), 0])
    q = exact([Fraction(3, 10), Fraction(1, 5), Fraction(1, 10), Fraction(2, 5)])
    races, tests = (np.cumsum(law(p, q)) for law in (index_law, sampled_rates))
    assert np.sign(races - tests).tolist() == [-1, -1, 1, 0]
    p, q = (
        exact([Fraction(w, 9) for w in (2, 3, 3, 1)]),
        exact([Fraction(w, 8) for w in (3, 1, 2, 2)]),
    )
    races, tests = (np.cumsum(law(p, q)) for law in (index_law, sampled_rates))
    assert np.sign(races - tests).tolist() == [-1, 1, 1, 0]


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


@pytest.mark.parametrize("races", [False, True])
def test_equal_models_accept_the_first_child(races: bool) -> None:
    assert drawn(P, P, 3, races) == pytest.approx([1, 0, 0])


def test_greedy_rates_are_shares_of_ranks() -> None:
    assert greedy_rates(np.array([1, 2, 2, 4]), 2).tolist() == [0.25, 0.5]
    assert greedy_rates(np.array([5]), 3).tolist() == [0, 0, 0]


def test_stored_tokens_meet_where_both_models_stored_them() -> None:
    target = Stored(np.array([[0, 2]]), np.array([[0.5, 0.25]]), np.array([0.25]))
    draft = Stored(np.array([[2, 1]]), np.array([[0.4, 0.4]]), np.array([0.2]))
    p, q = aligned(target, draft, 4)
    assert p.tolist() == [[0.25, 0, 0.5, 0, 0.25, 0]]
    assert q.tolist() == [[0.4, 0.4, 0, 0, 0, 0.2]]


@pytest.mark.parametrize(
    ("top_p", "top_k", "weights", "tail"),
    [
        (1.0, 0, [4, 2, 1], 1),
        (1.0, 2, [4, 2, 0], 0),
        (0.5, 0, [4, 0, 0], 0),  # exactly half before the second
        (0.51, 0, [4, 2, 0], 0),
        (0.875, 0, [4, 2, 1], 0),
        (0.88, 0, [4, 2, 1], 1),
        (0.7, 2, [4, 2, 0], 0),  # of the two 4/6 come before the second
        (0.6, 2, [4, 0, 0], 0),
    ],
)
def test_truncation_of_what_is_stored(
    top_p: float, top_k: int, weights: list[float], tail: float
) -> None:
    stored = Stored(np.array([[3, 1, 0]]), np.array([[4.0, 2.0, 1.0]]), np.array([1.0]))
    found = stored.truncated(top_p, top_k)
    assert found.weights.tolist() == [weights]
    assert found.tail.tolist() == [tail]

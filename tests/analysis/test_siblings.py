"""Sibling drafts: at which child they are accepted, exactly, and the most that several can be."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import linprog

from analysis.acceptance.best_laws import best_of_drafts
from analysis.topk import Floats
from analysis.trees.acceptance import aligned, drawn_rates, greedy_rates, truncated

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
    stored = np.array([[3, 1, 0]]), np.array([[4.0, 2.0, 1.0]]), np.array([1.0])
    _, kept, rest = truncated(stored, top_p, top_k)
    assert kept.tolist() == [weights]
    assert rest.tolist() == [tail]


def drafts(q: Floats, count: int) -> Counter[frozenset[int]]:
    """Which sets of tokens are drafted, with their probabilities."""
    found: Counter[frozenset[int]] = Counter()
    for order in itertools.permutations(range(len(q)), count):
        weight, left = 1.0, 1.0
        for token in order:
            weight *= q[token] / left if left > 0 else 0.0
            left -= q[token]
        found[frozenset(order)] += weight
    return found


def solved(p: Floats, law: Counter[frozenset[int]]) -> float:
    """The most that any coupling of drafts and the target's token accepts."""
    sets, size = list(law), len(p)
    gain = [float(token in chosen) for chosen in sets for token in range(size)]
    rows = np.kron(np.eye(len(sets)), np.ones(size))
    columns = np.kron(np.ones(len(sets)), np.eye(size))
    given = np.concatenate([[law[chosen] for chosen in sets], p])
    found = linprog(-np.array(gain), A_eq=np.vstack([rows, columns]), b_eq=given)
    return -float(found.fun)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_best_verification_is_the_linear_programs(count: int) -> None:
    rng = np.random.default_rng(count)
    for size in (3, 4, 5, 5):
        p, q = rng.dirichlet(np.full(size, 0.6), 2)
        law = drafts(q, count)
        best = best_of_drafts(p[None], q[None], count)[0]
        assert best == pytest.approx(solved(p, law), abs=1e-6)  # the solver's tolerance
        sets = itertools.chain.from_iterable(
            itertools.combinations(range(size), n) for n in range(size + 1)
        )
        worst = max(
            sum(w for drawn, w in law.items() if drawn <= set(chosen)) - p[list(chosen)].sum()
            for chosen in sets
        )
        assert best == pytest.approx(1 - worst, abs=1e-12)


def test_one_draft_and_the_ends() -> None:
    p, q = np.random.default_rng(0).dirichlet(np.full(6, 0.5), (2, 20))
    tv = np.abs(p - q).sum(axis=1) / 2
    np.testing.assert_allclose(best_of_drafts(p, q, 1), 1 - tv, rtol=1e-12)
    np.testing.assert_allclose(best_of_drafts(p, p, 2), 1, rtol=1e-12)
    np.testing.assert_allclose(best_of_drafts(p, q, 6), 1, atol=1e-12)  # every token is drafted
    apart = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    assert best_of_drafts(*apart, 2)[0] == pytest.approx(0)  # there is no second draft


def test_gss_and_races_do_not_accept_more() -> None:
    rng = np.random.default_rng(3)
    p, q = rng.dirichlet(np.full(5, 0.6), 2)
    rows = np.tile(p, (40_000, 1)), np.tile(q, (40_000, 1))
    for races in (False, True):
        rates = drawn_rates(*rows, rng.exponential(size=rows[0].shape), 3, races) / 40_000
        for count in (1, 2, 3):
            best = best_of_drafts(p[None], q[None], count)[0]
            assert rates[:count].sum() <= best + 0.01  # four standard errors

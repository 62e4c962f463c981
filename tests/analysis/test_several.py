"""Several drafts of one token: the linear program of all verifications, and every order."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from scipy.optimize import linprog

from analysis.topk import Floats
from analysis.trees.acceptance import drawn_rates
from analysis.trees.several import best_of_drafts


def drafts(q: Floats, count: int, replacement: bool) -> Counter[frozenset[int]]:
    """Which sets of tokens are drafted, with their probabilities."""
    found: Counter[frozenset[int]] = Counter()
    tokens = range(len(q))
    orders = itertools.product(tokens, repeat=count)
    for order in orders if replacement else itertools.permutations(tokens, count):
        weight, left = 1.0, 1.0
        for token in order:
            weight *= q[token] / left if left > 0 else 0.0
            left -= 0.0 if replacement else q[token]
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


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_best_verification_is_the_linear_programs(count: int, replacement: bool) -> None:
    rng = np.random.default_rng(count)
    for size in (3, 4, 5, 5):
        p, q = rng.dirichlet(np.full(size, 0.6), 2)
        law = drafts(q, count, replacement)
        best = best_of_drafts(p[None], q[None], count, replacement)[0]
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
    for replacement in (True, False):
        np.testing.assert_allclose(best_of_drafts(p, q, 1, replacement), 1 - tv, rtol=1e-12)
        np.testing.assert_allclose(best_of_drafts(p, p, 2, replacement), 1, rtol=1e-12)
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

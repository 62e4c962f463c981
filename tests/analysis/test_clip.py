"""The best law of a sampled draft: against a convex solver, enumeration, and at its boundaries."""

from __future__ import annotations

import math

import cvxpy
import numpy as np
import pytest

from analysis.beyond.clip import clip_law
from analysis.topk import Floats

from .cases import kl

P, Q = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.25, 0.25, 0.4])


def pairs(count: int, size: int = 6) -> list[tuple[Floats, Floats]]:
    drawn = np.random.default_rng(0).dirichlet(np.full(size, 0.7), size=(count, 2)) + 1e-6
    return [tuple(row / row.sum(axis=1, keepdims=True)) for row in drawn]  # type: ignore[misc]


@pytest.mark.parametrize("ratio", [1.3, 2.0, 5.0])
def test_no_laws_of_several_steps_accept_more_at_their_mean_kl(ratio: float) -> None:
    """The convex solver takes any law a step, and splits one mean KL among three steps."""
    steps = [(P, Q), *pairs(2, size=4)]
    found = [clip_law(p, q, ratio)[0] for p, q in steps]
    spent = sum(kl(r, p) for r, (p, _) in zip(found, steps, strict=True))
    accepted = sum(np.minimum(q, r).sum() for r, (_, q) in zip(found, steps, strict=True))
    laws = [cvxpy.Variable(4) for _ in steps]
    limits = [cvxpy.sum(r) == 1 for r in laws]
    total = sum(cvxpy.sum(cvxpy.rel_entr(r, p)) for r, (p, _) in zip(laws, steps, strict=True))
    goal = sum(cvxpy.sum(cvxpy.minimum(q, r)) for r, (_, q) in zip(laws, steps, strict=True))
    problem = cvxpy.Problem(cvxpy.Maximize(goal), [*limits, total <= spent])
    # the solver's own tolerance is 1e-8
    assert accepted == pytest.approx(problem.solve(solver=cvxpy.CLARABEL), abs=2e-6)


def test_the_law_is_what_it_is_named_for() -> None:
    for p, q in [(P, Q), *pairs(30)]:
        largest, least = (q / p).max(), (q / p).min()
        r, c1, c2 = clip_law(p, q, (largest / least) ** 0.4)
        assert r.sum() == pytest.approx(1, abs=1e-13)
        assert c1 / c2 == pytest.approx((largest / least) ** 0.4, rel=1e-12)
        np.testing.assert_allclose(r, np.clip(q, c2 * p, c1 * p), rtol=1e-12)
        np.testing.assert_allclose(clip_law(p, q, 1.0)[0], p, rtol=1e-14)  # speculative sampling
        np.testing.assert_allclose(clip_law(p, q, largest / least)[0], q, atol=1e-12)
        assert np.minimum(clip_law(p, q, 1 + 1e-9)[0], q).sum() > np.minimum(p, q).sum()
        np.testing.assert_allclose(clip_law(p, p, 3.0)[0], p, rtol=1e-14)


@pytest.mark.parametrize("ratio", [1.0, 1.5, 10.0, 1e9])
def test_tokens_without_probability(ratio: float) -> None:
    p, q = np.array([0.5, 0.3, 0.2, 0.0, 0.0]), np.array([0.0, 0.3, 0.3, 0.4, 0.0])
    r = clip_law(p, q, ratio)[0]
    assert r.sum() == pytest.approx(1, abs=1e-13)
    assert r[3:].tolist() == [0, 0]  # what the target never emits
    assert np.minimum(q, r).sum() <= 0.6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((P, Q, 0.9), "ratio=0.9 is not allowed: give a number of at least 1"),
        ((P, Q, math.nan), "ratio=nan is not allowed"),
        ((2 * P, Q, 1.0), "p is no distribution"),
        ((P, -Q, 1.0), "q is no distribution"),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        clip_law(*arguments)

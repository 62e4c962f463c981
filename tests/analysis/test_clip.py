"""The best law of a sampled draft: against a convex solver, enumeration, and at its boundaries."""

from __future__ import annotations

import math

import cvxpy
import mpmath
import numpy as np
import pytest
from mpmath import mpf

from analysis.beyond.clip import FAMILIES, argmax_acceptance, clipped_target, divergence_of
from analysis.beyond.probability import coin_kl
from analysis.topk import Floats

P, Q = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.25, 0.25, 0.4])
NAMES = list(FAMILIES)


def pairs(count: int, size: int = 6, seed: int = 0) -> list[tuple[Floats, Floats]]:
    rng = np.random.default_rng(seed)
    drawn = rng.dirichlet(np.full(size, 0.7), size=(count, 2)) + 1e-6
    return [tuple(row / row.sum(axis=1, keepdims=True)) for row in drawn]  # type: ignore[misc]


def solved(p: Floats, q: Floats, name: str, budget: float) -> float:
    """The largest acceptance of any law within the budget, by a convex solver."""
    r = cvxpy.Variable(len(p))
    spent = {
        "kl": lambda: cvxpy.sum(cvxpy.rel_entr(r, p)),
        "reverse_kl": lambda: cvxpy.sum(cvxpy.rel_entr(p, r)),
        "chi2": lambda: cvxpy.sum(cvxpy.multiply(1 / p, cvxpy.square(r - p))),
        "hellinger": lambda: 1 - np.sqrt(p) @ cvxpy.sqrt(r),
        "tv": lambda: cvxpy.norm1(r - p) / 2,
    }[name]()
    goal = cvxpy.Maximize(cvxpy.sum(cvxpy.minimum(q, r)))
    problem = cvxpy.Problem(goal, [cvxpy.sum(r) == 1, r >= 0, spent <= budget])
    return float(problem.solve(solver=cvxpy.CLARABEL))


@pytest.mark.parametrize("name", NAMES)
def test_no_law_accepts_more_within_the_budget(name: str) -> None:
    for p, q in [(P, Q), *pairs(5)]:
        for share in (0.02, 0.3, 0.8):
            budget = share * divergence_of(q, p, name)
            r, c1, c2 = clipped_target(p, q, "divergence", budget, name)
            assert r.sum() == pytest.approx(1, abs=1e-13)
            assert divergence_of(r, p, name) == pytest.approx(budget, rel=1e-9)
            np.testing.assert_allclose(r, np.clip(q, c2 * p, c1 * p), rtol=1e-12)
            # the solver's own tolerance is 1e-8
            assert np.minimum(q, r).sum() == pytest.approx(solved(p, q, name, budget), abs=2e-6)
            if name == "tv":
                tv = np.abs(p - q).sum() / 2
                assert np.minimum(q, r).sum() == pytest.approx(1 - tv + budget, rel=1e-12)


def test_the_boundaries_are_speculative_sampling_and_the_draft() -> None:
    for p, q in [(P, Q), *pairs(20)]:
        most = float((q / p).max())
        for dial, value in (("c1", 1.0), ("ratio", 1.0), ("divergence", 0.0)):
            np.testing.assert_allclose(clipped_target(p, q, dial, value)[0], p, rtol=1e-14)
        for dial, value in (("c1", most), ("ratio", math.inf), ("divergence", 1e9)):
            np.testing.assert_allclose(clipped_target(p, q, dial, value)[0], q, rtol=1e-13)
        # a step either side of them
        below = clipped_target(p, q, "c1", most * (1 - 1e-9))[0]
        assert 0 < 1 - np.minimum(below, q).sum() < 1e-8
        above = np.minimum(clipped_target(p, q, "c1", 1 + 1e-9)[0], q).sum()
        assert above > np.minimum(p, q).sum()
    for dial, value in (("c1", 1.5), ("ratio", 3.0), ("divergence", 0.01)):  # equal models
        np.testing.assert_allclose(clipped_target(P, P, dial, value)[0], P, rtol=1e-15)


def test_each_dial_holds_what_it_names() -> None:
    for p, q in pairs(30):
        ratio = q / p
        r, c1, c2 = clipped_target(p, q, "c1", 1 + 0.3 * (ratio.max() - 1))
        assert c1 == pytest.approx(1 + 0.3 * (ratio.max() - 1), rel=1e-14)
        np.testing.assert_allclose(r, np.clip(q, c2 * p, c1 * p), rtol=1e-13)
        wanted = (ratio.max() / ratio.min()) ** 0.4
        _, c1, c2 = clipped_target(p, q, "ratio", wanted)
        assert c1 / c2 == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_tokens_without_probability(name: str) -> None:
    p, q = np.array([0.5, 0.3, 0.2, 0.0, 0.0]), np.array([0.0, 0.3, 0.3, 0.4, 0.0])
    whole = divergence_of(q, p, name)
    last = 0.0
    for budget in (0.0, 0.01, 0.1, 0.2, 0.3, 0.39, 0.45, 2.0):
        r = clipped_target(p, q, "divergence", budget, name)[0]
        assert r.sum() == pytest.approx(1, abs=1e-13)
        assert divergence_of(r, p, name) <= budget + 1e-12
        accepted = np.minimum(q, r).sum()
        assert accepted >= last
        last = accepted
        if budget >= whole:
            assert accepted == pytest.approx(1)
        elif name == "tv":  # of q, 0.1 is above p where p > 0, and 0.4 where p = 0
            assert accepted == pytest.approx(0.5 + budget)
        if name in ("kl", "chi2"):
            assert r[3] == 0
    assert clipped_target(p, q, "c1", 1.5)[0][3] == 0
    assert clipped_target(p, q, "ratio", 1e9)[0][3] == 0
    np.testing.assert_array_equal(clipped_target(p, q, "ratio", math.inf)[0], q)
    assert clipped_target(p, q, "c1", 1.5)[0].sum() == pytest.approx(1)


def test_what_is_not_paid_for_is_not_given_away_by_rounding() -> None:
    """KL(p || r) is infinite where r loses a token: no budget pays for all of q."""
    p = np.array([0.03188533, 0.36006757, 0.53861681, 0.0, 0.06943029])
    q = np.array([0.0, 0.18194183, 0.80968322, 0.00837495, 0.0])
    for budget in (10.0, 100.0, 1e4):
        r = clipped_target(p / p.sum(), q / q.sum(), "divergence", budget, "reverse_kl")[0]
        assert divergence_of(r, p / p.sum(), "reverse_kl") <= budget * (1 + 1e-9)


TINY = [  # p and q that float64 loses digits of where sums are taken from the front
    ([0.6, 0.4 - 1e-17, 1e-17], [0.5, 0.2, 0.3]),
    ([1 - 1e-12, 1e-12, 1e-40, 0.0], [1 - 1e-7, 1e-7, 1e-38, 0.0]),
    ([0.7, 0.3, 1e-17, 0.0], [0.4, 0.3, 0.1, 0.2]),
    ([0.5, 0.5, 1e-300, 5e-324], [0.25, 0.25, 0.25, 0.25]),
    ([1.0, 0.0], [0.0, 1.0]),
    ([1.0], [1.0]),
]
EXACTLY = {  # p f(r / p) where p > 0, and the cost of r where p = 0
    "kl": (lambda r, p: (r * mpmath.log(r / p) if r else 0) - r + p, mpmath.inf),
    "reverse_kl": (lambda r, p: r - p - p * mpmath.log(r / p) if r else mpmath.inf, mpf(1)),
    "chi2": (lambda r, p: (r - p) ** 2 / p, mpmath.inf),
    "hellinger": (lambda r, p: (mpmath.sqrt(p) - mpmath.sqrt(r)) ** 2 / 2, mpf(1) / 2),
    "tv": (lambda r, p: abs(r - p) / 2, mpf(1) / 2),
}


def exactly(r: Floats | list[mpf], p: Floats | list[mpf], name: str) -> mpf:
    """D_f(r || p) at 50 digits."""
    cost, slope = EXACTLY[name]
    terms = [
        (mpf(float(a)) if not isinstance(a, mpf) else a, mpf(b)) for a, b in zip(r, p, strict=True)
    ]
    return sum(cost(a, b) if b > 0 else slope * a if a > 0 else mpf(0) for a, b in terms)


def largest_acceptance(p: list[mpf], q: list[mpf], name: str, budget: float) -> mpf:
    """That of clip(q, c2 p, c1 p) within the budget at 50 digits, both scales by bisection."""

    def law(x: mpf) -> list[mpf]:
        """With log c1 = x up to the largest; beyond, a share of q where p = 0."""
        c1, share = mpmath.exp(min(x, edge)), max(x - edge, mpf(0))
        kept = [min(b, c1 * a) if a > 0 else share * b for a, b in zip(p, q, strict=True)]
        low, high = mpf(0), mpf(1)
        for _ in range(80):
            c2 = (low + high) / 2
            fits = sum(max(k, c2 * a) for k, a in zip(kept, p, strict=True)) <= 1
            low, high = (c2, high) if fits else (low, c2)
        return [max(k, low * a) for k, a in zip(kept, p, strict=True)]

    if exactly(q, p, name) <= budget:
        return mpf(1)
    pairs_of = list(zip(p, q, strict=True))
    edge = max([mpmath.log(b / a) for a, b in pairs_of if a > 0 and b > 0], default=mpf(0))
    edge = max(edge, mpf(0))
    low, high = mpf(0), edge + 1
    for _ in range(60):
        middle = (low + high) / 2
        fits = exactly(law(middle), p, name) <= budget
        low, high = (middle, high) if fits else (low, middle)
    return sum(min(a, b) for a, b in zip(law(low), q, strict=True))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", range(len(TINY)))
def test_a_tiny_probability_overspends_no_budget(name: str, case: int) -> None:
    """KL(r || p) was 8.5 for a budget of 0.01: p of 1e-17 was lost in a sum from the front."""
    p, q = (np.array(values) for values in TINY[case])
    with mpmath.workdps(50):
        exact_p, exact_q = ([mpf(float(x)) for x in values] for values in (p, q))
        exact_p, exact_q = ([x / sum(values) for x in values] for values in (exact_p, exact_q))
        for budget in (1e-6, 0.01, 30.0):
            r, c1, c2 = clipped_target(p, q, "divergence", budget, name)
            assert c2 <= 1 <= c1
            assert sum(map(float, r)) == pytest.approx(1, abs=1e-15)
            # r is rounded: 1e-16 of a token, at a price of 40 nats at most
            assert exactly(r, exact_p, name) <= budget * (1 + 1e-9) + 1e-14
            assert float(exactly(r, exact_p, name)) == pytest.approx(
                divergence_of(r, p, name), rel=1e-9, abs=1e-14
            )
            accepted = sum(mpf(float(min(a, b))) for a, b in zip(r, q, strict=True))
            best = largest_acceptance(exact_p, exact_q, name, budget)
            assert float(accepted) == pytest.approx(float(best), abs=1e-12)


def test_one_ratio_at_every_step_is_best_for_a_mean_of_kl() -> None:
    """No budgets by step accept more: the convex solver splits one mean among three steps."""
    steps = pairs(3, size=4)
    for ratio in (1.5, 2.0, 5.0):
        emitted = [clipped_target(p, q, "ratio", ratio)[0] for p, q in steps]
        spent = sum(divergence_of(r, p) for r, (p, _) in zip(emitted, steps, strict=True))
        kept = sum(np.minimum(q, r).sum() for r, (_, q) in zip(emitted, steps, strict=True))
        laws = [cvxpy.Variable(4) for _ in steps]
        limits = [cvxpy.sum(r) == 1 for r in laws]
        total = sum(cvxpy.sum(cvxpy.rel_entr(r, p)) for r, (p, _) in zip(laws, steps, strict=True))
        goal = sum(cvxpy.sum(cvxpy.minimum(q, r)) for r, (_, q) in zip(laws, steps, strict=True))
        problem = cvxpy.Problem(cvxpy.Maximize(goal / 3), [*limits, total <= spent])
        assert kept / 3 == pytest.approx(problem.solve(solver=cvxpy.CLARABEL), abs=1e-6)


def test_argmax_drafts() -> None:
    p = np.array([0.0, 1e-6, 0.2, 0.7, 1.0])
    for budget in (0.0, 1e-6, 0.05, 0.5, 2.0, 50.0):
        most = argmax_acceptance(p, budget)
        assert (coin_kl(most, p)[1:] <= budget * (1 + 1e-9) + 1e-15).all()
        assert (most >= p).all()
        inside = (most < 1) & (p > 0)
        np.testing.assert_allclose(coin_kl(most, p)[inside], budget, rtol=1e-6, atol=1e-12)
        assert most[0] == 0  # what the target never emits
    exactly = float(coin_kl(1.0, 0.7))
    assert argmax_acceptance(0.7, exactly) == 1.0
    assert argmax_acceptance(0.7, exactly * (1 - 1e-9)) < 1.0
    small = 1e-7  # Cactus' term is the second order
    assert argmax_acceptance(0.3, small) == pytest.approx(
        0.3 + math.sqrt(2 * small * 0.21), rel=1e-6
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((P, Q, "c2", 1.0), "parameter='c2' is not allowed: give c1, ratio, divergence"),
        ((P, Q, "c1", 0.9), "c1=0.9 is not allowed: give a number of at least 1"),
        ((P, Q, "divergence", -0.1), "divergence=-0.1 is not allowed: .* at least 0"),
        ((P, Q, "ratio", math.nan), "ratio=nan is not allowed"),
        ((P, Q, "divergence", 0.1, "js"), "divergence='js' is not allowed: give kl, reverse_kl"),
        ((2 * P, Q, "c1", 1.0), "p is not a distribution"),
        ((P, -Q, "c1", 1.0), "q is not a distribution"),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        clipped_target(*arguments)

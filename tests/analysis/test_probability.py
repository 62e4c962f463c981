"""Certified probabilities against convex programs and enumeration, and beside measured ones."""

import itertools
import math

import cvxpy
import numpy as np
import pytest

from analysis.acceptance.sampling import (
    ARGMAX,
    SAMPLED,
    SPECULATIVE,
    accepted_mass,
    kept_or_drawn,
    sampling_statistics,
    violations,
)
from analysis.beyond import probability
from analysis.rules import AbsoluteThreshold, Additive, Mars, StrictGreedy, Tree
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.topk import Floats, TopK
from tests import divergences
from tests.analysis.cases import dirichlet, drafted_steps, kl, noisy

EPS = [1e-6, 0.01, 0.1, 0.5, 3.0, 4.0, 30.0]
TARGETS = [[0.6, 0.25, 0.1, 0.05], [0.25, 0.25, 0.25, 0.25], [0.97, 0.02, 0.007, 0.003]]
LENGTHS = (12, 30, 18)
BOOTSTRAP = PromptBootstrap(np.repeat(range(3), LENGTHS), 40, 0.9, 0)
Sampled = tuple[TopK, np.ndarray, dict[str, np.ndarray]]  # p, KL, acceptance by law


def inverse(a: float, eps: float) -> float:
    """The lower root b of kl(a || b) = eps by halving log(a / b), from the definition."""
    if a < 1e-12:
        return 0.0
    low, high = 0.0, 700.0
    for _ in range(100):
        t = (low + high) / 2
        other = (1 - a) * math.log((1 - a) / (1 - a * math.exp(-t))) if a < 1 else 0.0
        low, high = (t, high) if a * t + other < eps else (low, t)
    return a * math.exp(-low)


@pytest.mark.parametrize("eps", EPS)
def test_a_sampled_draft_matches_its_definition(eps: float) -> None:
    masses = np.array([1.0, 0.999, 0.7, 0.5, 0.03, 0.0])
    found = probability.sampled_draft(masses, eps)
    np.testing.assert_allclose(found, [inverse(a, eps) for a in masses], rtol=1e-9, atol=1e-12)
    assert found[0] == pytest.approx(math.exp(-eps), rel=1e-14)
    assert (probability.sampled_draft(masses, 0.0) == masses).all()


def test_a_sampled_draft_matches_a_convex_solver() -> None:
    """The least q(S) with KL(p || q) <= eps, S any set; attained by scaling."""
    q = cvxpy.Variable(4)
    for p, eps, size in itertools.product(np.array(TARGETS), (0.05, 0.5), (1, 2)):
        limit = [cvxpy.sum(q) == 1, cvxpy.sum(cvxpy.rel_entr(p, q)) <= eps]
        cvxpy.Problem(cvxpy.Minimize(cvxpy.sum(q[:size])), limit).solve(solver=cvxpy.CLARABEL)
        b = float(probability.sampled_draft(p[:size].sum(), eps))
        assert b == pytest.approx(q.value[:size].sum(), abs=1e-6)
        a = p[:size].sum()
        scaled = np.append(p[:size] * b / a, p[size:] * (1 - b) / (1 - a))
        assert kl(p, scaled) == pytest.approx(eps, rel=1e-9)


def test_an_argmax_draft_takes_the_worst_token_that_can_be_a_mode() -> None:
    p = dirichlet(4, 60, 7, 0.4, 3.0)
    whole = TopK.from_probabilities(p)
    costs = probability.mode_costs(whole)
    assert (np.diff(costs, axis=1) >= 0).all()
    for eps in (0.0, 0.01, 0.1, 0.5, 1.0):
        truth = np.array([min(x[m <= eps]) for x, m in zip(whole.probs, costs, strict=True)])
        np.testing.assert_array_equal(probability.argmax_draft(whole, eps), truth)
        for k in (1, 3, 6):
            found = probability.argmax_draft(TopK.from_probabilities(p, k=k), eps)
            last = (costs[:, :k] <= eps).all(axis=1)  # then one that is not stored may be worse
            np.testing.assert_array_equal(found, np.where(last, 0.0, truth))
    exactly = float(costs[0, 1])
    assert probability.argmax_draft(whole[:1], exactly)[0] == whole.probs[0, 1]
    assert probability.argmax_draft(whole[:1], exactly * (1 - 1e-9))[0] == whole.probs[0, 0]


def most_lost(p: Floats, eps: float) -> float:
    """1 - the least acceptance of speculative sampling, by every proper subset."""
    sums = [sum(chosen) for size in range(1, len(p)) for chosen in itertools.combinations(p, size)]
    return max(min(a, 1.0) - inverse(min(a, 1.0), eps) for a in sums)


@pytest.mark.parametrize("eps", EPS)
def test_lossless_sampling_against_every_subset(eps: float) -> None:
    p = dirichlet(6, 25, 6, 0.3, 2.0)
    p = np.concatenate([p, [[0.9, 0.1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0], np.full(6, 1 / 6)]])
    truth = np.array([1 - most_lost(row, eps) for row in p])
    found = [probability.lossless(TopK.from_probabilities(p, k=k), eps) for k in (1, 3, 6)]
    assert (found[0] <= truth + 1e-8).all()
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    # no set has a mass near 1/2, where little is lost at most: exact
    exact = p.max(axis=1) > 0.8 if eps < 0.1 else p.max(axis=1) == 1.0
    np.testing.assert_allclose(found[0][exact], truth[exact], atol=1e-8)


def test_one_token_and_wrong_arguments() -> None:
    one = TopK.from_probabilities([[1.0]])
    assert probability.lossless(one, 0.5).tolist() == [1.0]
    assert probability.argmax_draft(one, 0.5).tolist() == [1.0]
    with pytest.raises(ValueError, match=r"eps=-1\.0 is not allowed"):
        probability.lossless(one, -1.0)
    with pytest.raises(ValueError, match=r"mass must be in \[0, 1\]"):
        probability.sampled_draft(1.5, 0.1)


def test_mars_keeps_rank_two_in_the_low_margin_step_by_step() -> None:
    z, w = noisy(400, 12, 1.0, 0.9, seed=5)
    drafted, p = w.argmax(axis=1), np.exp(divergences.log_softmax(z))
    rank = 1 + (z > z[range(400), drafted][:, None]).sum(axis=1)
    found = kept_or_drawn(Mars(0.8), TopK.from_logits(z), rank, p[range(400), drafted])
    seen = set()
    for step in range(400):
        first, second = np.sort(z[step])[::-1][:2]
        low, own = first > 0 and second / first > 0.8, z[step, drafted[step]]
        place = "first" if own == first else "second" if own == second else "other"
        chance = p[step, drafted[step]]
        seen.add((low, place))
        assert found[step] == (1 if low and place == "second" else chance)
    assert len(seen) == 6


def sampled(noise: float, k: int = 12, missing: bool = False) -> tuple[Sampled, np.ndarray]:
    z, w = noisy(sum(LENGTHS), 12, 2.0, noise, seed=3)
    if missing:
        w[:, 0] = -np.inf
    steps, found = drafted_steps(z, w, k)
    p, q = (np.exp(divergences.log_softmax(x)) for x in (z, w))
    drafted = p[range(len(p)), q.argmax(axis=1)]
    return (steps.target, found.kl, {SPECULATIVE: 1.0 - found.tv, ARGMAX: drafted}), q


@pytest.mark.parametrize("k", [12, 4])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("noise", [0.0, 0.1, 0.5, 2.0])
def test_nothing_is_accepted_less_often_than_certified(noise: float, missing: bool, k: int) -> None:
    steps, q = sampled(noise, k, missing)
    assert violations(*steps) == {SPECULATIVE: 0, ARGMAX: 0}
    rules = [StrictGreedy(), Additive(0.2), Tree(2)]
    frame = sampling_statistics(*steps, rules, BOOTSTRAP)
    own = frame.set_index(["rule", "kind"])["value"]
    laws = [SPECULATIVE, ARGMAX]
    for law in laws:
        assert own[law, "step"] <= own[law, "measured"] + 1e-9
    for rule in rules[:2]:
        mass = accepted_mass(steps[0], rule)
        p = np.sort(steps[0].probs, axis=1)[:, ::-1]
        inside = (p == p[:, :1]) if rule == StrictGreedy() else p > p[:, :1] - 0.2
        np.testing.assert_allclose(mass, np.where(inside, p, 0).sum(axis=1), atol=1e-12)
        n = inside.sum(axis=1)
        kept = [q[i, steps[0].ids[i, : n[i]]].sum() for i in range(len(q))]  # q(S)
        bound = probability.sampled_draft(mass, steps[1])
        assert (kept >= bound - 1e-9).all()
        assert own[f"{SAMPLED}{rule.label}", "step"] == pytest.approx(bound.mean())
    assert not any("tree" in law for law, _ in own.index)
    if noise == 0 and not missing:
        assert (own.xs(SPECULATIVE) >= 1 - 1e-6).all()
        assert own[ARGMAX, "step"] == pytest.approx(steps[0].top_probability.mean(), abs=1e-4)


def test_a_violation_is_seen() -> None:
    target, kl, measured = sampled(0.3)[0]
    found = violations(target, kl, {SPECULATIVE: measured[SPECULATIVE] - 0.3, ARGMAX: 0 * kl})
    assert found[SPECULATIVE] > 0
    assert found[ARGMAX] == len(kl)


def test_levels_of_each_step_are_those_of_single_numbers() -> None:
    dist = TopK.from_probabilities(dirichlet(9, 8, 6, 0.3, 1.0), k=4)
    eps = np.array([0.0, 1e-9, 1e-3, 0.01, 0.1, 0.5, 1.0, 3.0, 40.0, np.inf] + [0.2] * 6)
    for bound in (probability.lossless, probability.argmax_draft):
        found = bound(dist, eps)
        for i, level in enumerate(eps):
            alone = bound(dist[i : i + 1], float(level))[0]
            assert found[i] == pytest.approx(alone, rel=1e-12), (bound, level)
        assert (bound(dist, np.inf) == 0).all()


def test_the_mass_of_all_tokens_is_one_and_a_tree_has_none() -> None:
    dist, whole = (TopK.from_probabilities(dirichlet(4, 5, 6, 1.0), k=k) for k in (3, 6))
    assert (accepted_mass(dist, AbsoluteThreshold(0.0)) <= 1).all()
    assert (accepted_mass(whole, AbsoluteThreshold(0.0)) == 1).all()
    with pytest.raises(ValueError, match="does not accept a set of tokens"):
        accepted_mass(dist, Tree(2))

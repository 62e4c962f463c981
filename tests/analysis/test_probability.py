"""Certified probabilities against convex programs, enumeration and the drafts that attain them."""

import itertools
import math

import cvxpy
import numpy as np
import pytest

from analysis.beyond import probability
from analysis.certificates.certify import certify
from analysis.topk import Floats, TopK
from tests.analysis.cases import dirichlet, kl

EPS = [1e-6, 0.01, 0.1, 0.5, 3.0, 4.0, 30.0]
TARGETS = [[0.6, 0.25, 0.1, 0.05], [0.25, 0.25, 0.25, 0.25], [0.97, 0.02, 0.007, 0.003]]


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


def test_mean_budgets_of_sampled_drafts_match_a_convex_solver() -> None:
    mass = np.array([0.9, 0.6, 0.3, 0.99, 1.0])
    for eps in (1e-3, 0.05, 0.4):
        b = cvxpy.Variable(5)
        spent = cvxpy.sum(cvxpy.rel_entr(mass, b) + cvxpy.rel_entr(1 - mass, 1 - b))
        problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum(b) / 5), [spent <= 5 * eps, b >= 0])
        problem.solve(solver=cvxpy.CLARABEL)
        found = probability.sampled_draft_mean(mass, eps)
        assert found == pytest.approx(problem.value, abs=1e-6)
        assert found <= probability.sampled_draft(mass, eps).mean() + 1e-12
    assert probability.sampled_draft_mean(mass, 0.0) == mass.mean()


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


def test_mean_budgets_of_argmax_drafts() -> None:
    """Against every choice of tokens at five steps: below the best, by less than one step."""
    dist = TopK.from_probabilities(dirichlet(5, 5, 4, 1.0))
    costs = probability.mode_costs(dist)
    choices = np.array(list(itertools.product(range(4), repeat=5)))
    steps = np.arange(5)
    spent, value = costs[steps, choices].mean(axis=1), dist.probs[steps, choices].mean(axis=1)
    for eps in (0.0, 0.001, 0.02, 0.1, 0.5):
        best = value[spent <= eps].min()
        found = probability.argmax_draft_mean(dist, eps)
        assert best - 0.2 <= found <= best + 1e-9
        cut = probability.argmax_draft_mean(TopK.from_probabilities(dist.probs, k=2), eps)
        assert cut <= found + 1e-9
    at = float(spent[value.argmin()])  # enough for all: the bound is attained
    assert probability.argmax_draft_mean(dist, at + 1e-6) == pytest.approx(value.min(), abs=1e-5)


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


def test_the_loss_of_lossless_sampling_need_not_be_concave_in_eps() -> None:
    """p = (0.6, 0.3, 0.1): the best subset changes, so a mean budget is worth more than eps."""
    p = np.array([0.6, 0.3, 0.1])
    grid = np.linspace(0.01, 1.5, 300)
    lost = np.array([most_lost(p, eps) for eps in grid])
    assert np.diff(lost, 2).max() > 1e-5
    dist = TopK.from_probabilities(np.tile(p, (2, 1)))
    split = max(
        (most_lost(p, eps) + most_lost(p, 2 * middle - eps)) / 2 - most_lost(p, middle)
        for middle in (0.3, 0.45, 0.6)
        for eps in np.linspace(0.05, middle, 40)
    )
    assert split > 1e-4
    for eps in (0.01, 0.3, 0.6, 1.0):
        pairs = [
            (most_lost(p, x) + most_lost(p, 2 * eps - x)) / 2 for x in np.linspace(0, eps, 40)[1:]
        ]
        assert probability.lossless_mean(dist, eps) <= 1 - max(pairs) + 1e-9


def test_one_token_and_wrong_arguments() -> None:
    one = TopK.from_probabilities([[1.0]])
    assert probability.lossless(one, 0.5).tolist() == [1.0]
    assert probability.argmax_draft(one, 0.5).tolist() == [1.0]
    with pytest.raises(ValueError, match=r"eps=-1\.0 is not allowed"):
        probability.lossless(one, -1.0)
    with pytest.raises(ValueError, match=r"mass must be in \[0, 1\]"):
        probability.sampled_draft(1.5, 0.1)
    assert (certify(one, probability.FirstRanks(1)).lower == np.inf).all()

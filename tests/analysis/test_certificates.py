"""Certificates against a convex solver, 50 digits, enumeration and the paper's constructions."""

import itertools
import math
from dataclasses import replace

import cvxpy
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.certificates.certify import certify, extremal_draft
from analysis.rules import (
    NO_COUNT,
    AbsoluteThreshold,
    Additive,
    Mars,
    Multiplicative,
    StrictGreedy,
    TopMAdditive,
    TopMMultiplicative,
    Tree,
    Typical,
)
from analysis.topk import TopK
from tests.analysis.cases import THRESHOLD_RULES, assert_same, certificate, dirichlet, kl

RULES = [StrictGreedy(), *THRESHOLD_RULES, AbsoluteThreshold(0.05)]


def accepts(rule, p, token):
    """The definitions, one token at a time; p is ranked, token 0 is x0."""
    h = -sum(x * math.log(x) for x in p if x > 0)
    test = {
        "greedy": lambda: False,
        "additive": lambda: p[token] > p[0] - rule.t,
        "multiplicative": lambda: p[token] > rule.alpha * p[0],
        "topm_additive": lambda: p[token] > p[0] - rule.t and token < rule.m,
        "topm_multiplicative": lambda: p[token] > rule.alpha * p[0] and token < rule.m,
        "typical": lambda: p[token] > min(rule.eps0, rule.delta0 * math.exp(-h)),
        "absolute": lambda: p[token] > rule.theta,
    }
    return token == 0 or test[rule.name]()


@st.composite
def targets(draw, size):
    """Ranked p over `size` tokens: random, tied, peaked, heavy-tailed, with zeros."""
    kind = draw(st.sampled_from(["random", "tied", "peaked", "heavy", "zeros"]))
    unit = st.floats(0.001, 1.0)
    weights = np.array(draw(st.lists(unit, min_size=size, max_size=size)))
    if kind == "tied":
        weights = np.ceil(weights * 3)
    elif kind == "peaked":
        weights = weights**8 + 1e-9
    elif kind == "heavy":
        weights = 1 / (0.02 + weights)
    elif kind == "zeros":
        weights = np.where(weights < 0.4, 0.0, weights)
        weights[0] = 1.0
    return -np.sort(-weights / weights.sum())


SIZE = 5
_given = cvxpy.Parameter(SIZE, nonneg=True)  # p
_q = cvxpy.Variable(SIZE)
_goal = -_given @ cvxpy.log(_q)
RANKS = range(1, SIZE)
SETS = {
    **{x: [_q <= _q[x]] for x in range(SIZE)},  # x is a mode
    **{c: [_q[x] >= _q[0] for x in c] for m in (1, 2, 3) for c in itertools.combinations(RANKS, m)},
}
PROBLEMS = {
    chosen: cvxpy.Problem(cvxpy.Minimize(_goal), [cvxpy.sum(_q) == 1, _q >= 0, *limits])
    for chosen, limits in SETS.items()
}


def least(p):
    """The solver's least KL from p within each of the sets."""
    _given.value = p
    found = {}
    for chosen, problem in PROBLEMS.items():
        with np.errstate(all="ignore"):  # where p is next to 0, q may end at -1e-9
            try:
                problem.solve(solver=cvxpy.CLARABEL)
            except UserWarning:  # rarely "Solution may be inaccurate": then with shorter steps
                problem.solve(solver=cvxpy.CLARABEL, max_step_fraction=0.9)
        q = np.maximum(_q.value, 1e-12)
        found[chosen] = kl(p, q / q.sum())
    return found


@settings(max_examples=8, deadline=None)
@given(p=targets(SIZE))
def test_rules_and_trees_match_a_convex_solver(p):
    # the solver's own tolerance is 1e-8; without a barrier, at p = 0, it misses by up to 1e-6
    solved = least(p)
    dist, trees = TopK.from_probabilities(p[None]), [Tree(m) for m in (1, 2, 3)]
    found = certify(dist, [*RULES, *trees])
    for index, rule in enumerate(RULES):
        rejected = [x for x in range(SIZE) if not accepts(rule, p, x)]
        assert found.accepted_count[0, index] == SIZE - len(rejected)
        assert rejected == list(range(SIZE - len(rejected), SIZE))
        expected = min((solved[x] for x in rejected), default=math.inf)
        assert found.lower[0, index] == pytest.approx(expected, abs=3e-6)
        assert found.upper[0, index] == found.lower[0, index]
    for m, value in enumerate(found.lower[0, len(RULES) :], 1):
        chosen = [solved[c] for c in itertools.combinations(RANKS, m)]
        assert value == pytest.approx(min(chosen), abs=3e-6)
    # any set of accepted tokens, by id: tokens are given in another order than by rank
    order = np.random.default_rng(int(1e6 * p[0])).permutation(SIZE)
    dist = TopK.from_probabilities(p[order][None])
    rank_of_id = np.empty(SIZE, dtype=int)
    rank_of_id[dist.ids[0]] = range(SIZE)  # ties by id
    for chosen in itertools.product([False, True], repeat=SIZE):
        found = certify(dist, accepted=np.array(chosen))
        rejected = [rank_of_id[token] for token in range(SIZE) if not chosen[token]]
        expected = min((solved[x] for x in rejected), default=math.inf)
        assert found.lower[0, 0] == pytest.approx(0.0 if 0 in rejected else expected, abs=3e-6)
        assert found.upper[0, 0] == found.lower[0, 0]
        assert found.accepted_count[0, 0] == min(rejected, default=SIZE)


def exact(z, n, m=None):
    """The certificate of raw logits at 50 digits, from the defining maximum or minimum."""
    weights = [mpmath.exp(mpmath.mpf(float(x))) for x in z]
    p = [x / mpmath.fsum(weights) for x in weights]
    if m is None:
        size = max(range(n + 1), key=lambda j: (p[n] + mpmath.fsum(p[:j])) / (j + 1))
        active = [*p[:size], p[n]]
    else:
        size = min(range(m + 1), key=lambda j: (p[0] + mpmath.fsum(p[m + 1 - j : m + 1])) / (j + 1))
        active = [p[0], *p[m + 1 - size : m + 1]]
    level = mpmath.fsum(active) / len(active)
    return mpmath.fsum(x * mpmath.log(x / level) for x in active)


def test_relative_accuracy_at_every_gap():
    """A certificate is good to 1e-14, however small the gap: its logits differ exactly."""
    rng = np.random.default_rng(1)
    rules = [StrictGreedy(), Additive(0.1), Multiplicative(0.5), TopMAdditive(3, 0.3)]
    rules += [Tree(2), Tree(4), Tree(8)]
    with mpmath.workdps(50):
        for gap in 10.0 ** np.repeat(np.arange(-6.0, 1.5, 0.5), 3):
            z = rng.uniform(-5, 5) + rng.normal(size=9) * rng.choice([gap, 1.0, 5.0])
            z = -np.sort(-z)
            z[0] = z[1] + gap
            z = z.astype(np.float32)
            found = certify(TopK.from_logits(z), rules)
            for index, rule in enumerate(rules):
                if np.isinf(found.lower[0, index]):
                    continue
                n = int(found.accepted_count[0, index])
                truth = exact(z, n, rule.m if isinstance(rule, Tree) else None)
                assert abs(found.lower[0, index] - truth) <= 1e-14 * truth


def test_relative_accuracy_of_wide_trees():
    """5e-14 at 32 candidates that nearly tie, where terms of a sum cancel most."""
    rng = np.random.default_rng(2)
    with mpmath.workdps(50):
        for spread in 10.0 ** np.arange(-6.0, 0.0, 0.5):
            z = -np.sort(-rng.normal(size=34) * spread)
            z[0] = z[1] + rng.uniform(0.5, 2.0)
            z = z.astype(np.float32)
            found = certify(TopK.from_logits(z), Tree(32)).lower[0, 0]
            truth = exact(z, 32, 32)
            assert abs(found - truth) <= 5e-14 * truth


INF, LOG2, GREEDY = math.inf, math.log(2), StrictGreedy()


@pytest.mark.parametrize(
    ("p", "rule", "lower", "count"),
    [
        *(([0.4, 0.4, 0.2, 0.0], rule, 0.0, 1) for rule in (GREEDY, Additive(0.0))),  # ties
        ([0.4, 0.4, 0.2, 0.0], Multiplicative(1.0), 0.0, 1),
        ([0.4, 0.4, 0.2, 0.0], Tree(1), 0.0, NO_COUNT),
        # zeros are rejected tokens, not absent ones: M(0) = p0 log 2 when only x0 is active
        *(([1.0, 0.0, 0.0], rule, LOG2, 1) for rule in (GREEDY, Additive(0.2))),
        ([1.0, 0.0, 0.0], AbsoluteThreshold(0.0), LOG2, 1),
        ([1.0, 0.0, 0.0], Tree(2), math.log(3), NO_COUNT),
        ([0.5, 0.5, 0.0], Additive(0.5), math.log(1.5), 2),  # t = p0 rejects exact zeros
        # a threshold above p0 keeps x0: strict greedy
        *(
            ([0.75, 0.25], rule, 0.75 * math.log(1.5) + 0.25 * math.log(0.5), 1)
            for rule in (AbsoluteThreshold(0.8), Typical(0.9, 2.0))
        ),
        # nothing is rejected
        ([0.5, 0.3, 0.2], Additive(0.6), INF, 3),
        ([0.5, 0.3, 0.2], TopMAdditive(9, 1.0), INF, 3),
        *(([0.5, 0.3, 0.2], Tree(m), INF, NO_COUNT) for m in (3, 7)),
        ([1.0], GREEDY, INF, 1),
        ([1.0], Tree(2), INF, NO_COUNT),
    ],
)
def test_boundaries(p, rule, lower, count):
    found = certify(TopK.from_probabilities([p]), rule)
    assert found.lower[0, 0] == pytest.approx(lower, rel=1e-14)
    assert found.upper == found.lower
    assert found.accepted_count == count
    assert (found.active_size == 0) == (lower == INF)


def test_masked_tokens_are_zeros():
    """Certificates of logits with -inf are those of the probabilities with zeros."""
    rng = np.random.default_rng(5)
    z = np.where(rng.random((200, 9)) < 0.5, -np.inf, 3 * rng.standard_normal((200, 9)))
    z[:, 4] = 1.0
    weight = np.exp(z)
    p = TopK.from_probabilities(weight / weight.sum(axis=1, keepdims=True))
    rules = [*RULES, AbsoluteThreshold(0.0), Additive(0.9), Tree(2), Tree(5)]
    found, wanted = certify(TopK.from_logits(z), rules), certify(p, rules)
    np.testing.assert_allclose(found.lower, wanted.lower, rtol=1e-11)
    np.testing.assert_array_equal(found.accepted_count, wanted.accepted_count)


def test_large_logits_cost_no_accuracy():
    """The same differences at 0 and at 1e4: not a bit changes (float32 steps by 1/1024 there)."""
    z = np.random.default_rng(6).integers(-9000, 1, (300, 12)).astype(np.float32) / 1024
    rules = [*RULES, Tree(3)]
    far, near = (certify(TopK.from_logits(logits), rules) for logits in (z + np.float32(1e4), z))
    assert_same(far, near)


def test_sets_of_accepted_tokens_are_checked():
    dist = TopK.from_probabilities([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]])
    mask = np.array([True, False, True])
    assert_same(certify(dist, accepted=mask), certify(dist, accepted=[mask, mask]))
    for accepted in (mask[None], mask.astype(int)):
        with pytest.raises(ValueError, match=r"give booleans by token id, \(2, 3\) or \(3,\)"):
            certify(dist, accepted=accepted)
    printed = TopK.from_log_probs([[0, 1]], [[-0.5, -1.0]], 0.01, 3)
    with pytest.raises(ValueError, match="by rules only"):
        certify(printed, accepted=mask)


def test_mars_is_a_multiplicative_rule_on_two_ranks():
    z = -np.sort(-np.random.default_rng(2).normal(size=(200, 12)) * 4).astype(np.float32)
    z[::5] -= 20.0  # negative throughout: the ratio of the first two means nothing
    dist = TopK.from_logits(z)
    found = certify(dist, [Mars(0.9)])
    assert 20 < (found.accepted_count == 2).sum() < 180
    for row, top in enumerate(z[:, 0].tolist()):
        alpha = math.exp(-(1 - 0.9) * top) if top > 0 else 1.0
        same = certify(dist[row : row + 1], [TopMMultiplicative(2, alpha)])
        assert same.lower[0, 0] == pytest.approx(found.lower[row, 0], rel=1e-14)
    with pytest.raises(ValueError, match="raw logits"):
        certify(TopK.from_probabilities(dist.probs), Mars(0.9))
    # z2/z1 = theta exactly is not above it; at z1 <= 0 the ratio means nothing
    steps = [[4.0, 2.0, 1.0], [4.0, 2.000001, 1.0], [0.0, -1.0, -2.0], [-1.0, -2.0, -3.0]]
    assert certify(TopK.from_logits(steps), Mars(0.5)).accepted_count[:, 0].tolist() == [1, 2, 1, 1]
    assert Mars(0.5).undefined(TopK.from_logits(steps)).tolist() == [False, False, True, True]


def test_mars_does_not_depend_on_the_scale_of_the_logits():
    """z2/z1 stays what it is, while the probability ratio exp(z2 - z1) falls."""
    z = -np.sort(-np.random.default_rng(3).uniform(0, 20, (200, 12))).astype(np.float32)
    one, other = (certify(TopK.from_logits(z * s), Mars(0.9)).accepted_count for s in (1, 8))
    assert 20 < (one == 2).sum() < 180
    assert np.array_equal(one, other)


def test_stored_ranks_out_of_order_are_refused():
    dist = TopK.from_probabilities([[0.5, 0.3, 0.2]])
    wrong = replace(dist, stored_probs=np.array([[0.5, 0.2, 0.3]]))
    with pytest.raises(ValueError, match=r"step 0: .* decreasing"):
        certify(wrong, [StrictGreedy(), TopMAdditive(2, 0.4)])


@pytest.mark.parametrize("rule", [*THRESHOLD_RULES, StrictGreedy(), Tree(2)], ids=str)
def test_the_extremal_draft_is_rejected_at_the_certificate(rule):
    """At ties the worst case; levels tie within 1e-13."""

    def rejected(p, q):
        order, tie = np.argsort(-p, kind="stable"), 1 - 1e-13
        if isinstance(rule, Tree):
            return bool(np.sum(q >= q[order[0]] * tie) - 1 >= rule.m)
        n = int(certify(TopK.from_probabilities(p), rule).accepted_count[0, 0])
        return bool(np.isin(np.flatnonzero(q >= q.max() * tie), order[n:]).any())

    for p in dirichlet(0, 3, 12, 0.1, 0.5, 2.0) + 1e-9:
        p = p / p.sum()
        if np.isinf(found := certificate(p, rule)):
            continue
        q, least = extremal_draft(p, rule)
        assert q.sum() == pytest.approx(1, abs=1e-14)
        assert rejected(p, q)
        assert not rejected(p, 0.999 * q + 0.001 * p)  # towards p it is accepted
        assert least == pytest.approx(found, rel=1e-12)
        assert kl(p, q) == pytest.approx(found, rel=1e-9, abs=1e-14)
    with pytest.raises(ValueError, match="rejects nothing"):
        extremal_draft(np.full(2, 0.5), Additive(0.7))

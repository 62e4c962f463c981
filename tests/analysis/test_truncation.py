"""Intervals under truncation and rounding: exact where determined, as narrow as tails allow."""

import itertools
import math

import mpmath
import numpy as np
import pytest

from analysis.certificates.certify import Certificates, certify
from analysis.certificates.intervals import TruncatedSteps
from analysis.rules import (
    AbsoluteThreshold,
    Additive,
    Mars,
    Multiplicative,
    Rule,
    StrictGreedy,
    TopMAdditive,
    TopMMultiplicative,
    Tree,
    Typical,
)
from analysis.topk import TopK
from tests.analysis.cases import RULES, assert_same, certificate, dirichlet

ROUNDING = 1e-11  # relative error allowed in a certificate; actual errors are far below


def targets(rng, steps, size):
    """Draw ranked target distributions, from peaked to flat, some with ties and zeros.

    One in ten is so flat that tokens beyond a small K are active.
    """
    weights = rng.gamma(rng.uniform(0.05, 2.0, (steps, 1)), size=(steps, size)) + 1e-12
    weights *= np.arange(1, size + 1) ** -rng.uniform(0.0, 2.0, (steps, 1))
    weights = np.where(rng.random((steps, 1)) < 0.1, np.round(weights, 1) + 0.1, weights)
    zeros = (rng.random((steps, 1)) < 0.1) & (rng.random(weights.shape) < 0.3)
    weights = np.where(zeros, 0.0, weights)
    weights[:, 0] += 1e-3
    flat = rng.uniform(0.8, 1.2, weights.shape)
    weights = np.where(rng.random((steps, 1)) < 0.1, flat, weights)
    return np.asarray(-np.sort(-weights / weights.sum(axis=1, keepdims=True), axis=1))


@pytest.mark.parametrize("k", [1, 2, 5, 13, 39])
def test_truth_is_inside_and_equal_where_exact(k):
    p = targets(np.random.default_rng(k), 200, 40)
    rules = [AbsoluteThreshold(0.001), Additive(0.3), Multiplicative(0.05), Typical(0.3, 0.05)]
    full = TopK.from_probabilities(p)
    whole, cut = (certify(TopK.from_probabilities(p, k=size), rules) for size in (40, k))
    exact = cut.lower == cut.upper
    assert (cut.lower <= whole.lower * (1 + ROUNDING) + 1e-300)[~exact].all()
    assert (cut.upper >= whole.lower * (1 - ROUNDING))[~exact].all()
    np.testing.assert_allclose(cut.lower[exact], whole.lower[exact], rtol=1e-9)
    # determined wherever p_K is rejected already, and the count is never wrong where known
    thresholds = np.column_stack([rule.cut(full).theta(full) for rule in rules])
    assert exact[p[:, k - 1 : k] <= thresholds].all()
    known = cut.accepted_count >= 0
    assert (cut.accepted_count == whole.accepted_count)[known].all()


def test_rules_of_rank_are_exact():
    p = dirichlet(0, 200, 50, 0.3)
    rules = [StrictGreedy(), TopMAdditive(4, 1.0), TopMAdditive(3, 0.2), Tree(4)]
    whole, cut = (certify(TopK.from_probabilities(p, k=k), rules) for k in (50, 5))
    assert_same(cut, whole)


@pytest.mark.parametrize("k", [1, 3, 11])
def test_sets_of_accepted_tokens_that_are_not_stored(k):
    """Every tail of the same mass, no token above p_K, is above the lower end; one reaches it."""
    rng = np.random.default_rng(k)
    p = -np.sort(-targets(rng, 200, 12))
    rejected = rng.random(p.shape) < np.linspace(0.02, 0.6, 200)[:, None]
    rejected[:, :k] &= rng.random((200, 1)) < 0.2  # most often all that are stored are accepted
    cut, whole = (
        certify(TopK.from_probabilities(p, k=size), accepted=~rejected) for size in (k, 12)
    )
    assert (cut.lower <= whole.lower * (1 + ROUNDING) + 1e-300).all()
    assert (cut.upper >= whole.lower * (1 - ROUNDING)).all()
    known = rejected[:, :k].any(axis=1) | ~rejected.any(axis=1)
    assert 0 < known.sum() < 200
    assert_same(*(Certificates(*(column[known] for column in of)) for of in (cut, whole)))
    # the tail's whole mass on its first rejected token, as far as p_K allows
    for row in np.flatnonzero(~known)[:20]:
        moved, left = p[row].copy(), p[row, k:].sum()
        for token in sorted(range(k, 12), key=lambda token: not rejected[row, token]):
            moved[token] = min(left, p[row, k - 1])
            left -= moved[token]
        other = certify(TopK.from_probabilities(moved), accepted=~rejected[row])
        assert other.lower[0, 0] == pytest.approx(cut.lower[row, 0], rel=1e-8)
    none = ~known & rejected[:, k:].all(axis=1)  # of the others is accepted
    assert np.isinf(cut.upper[~known & ~none]).all()  # it may be as improbable as 0
    assert (cut.upper[none] <= math.log(2)).all()


@pytest.mark.parametrize(
    "rule",
    [
        *(Additive(0.0), Multiplicative(1.0), AbsoluteThreshold(0.25), AbsoluteThreshold(0.6)),
        *(Typical(0.9, 9.0), TopMAdditive(1, 0.0)),
    ],
    ids=str,
)
def test_where_no_unstored_token_can_pass(rule):
    """K = 1, and a threshold of at least p0: four equal tokens, or three, are the only tails."""
    equal = [0.25] * 4
    for p, k in ((equal, 1), ([0.4, 0.3, 0.3], 1), (equal, 4)):
        if k < rule.minimum_k or (rule == AbsoluteThreshold(0.25) and p != equal):
            continue
        found = certify(TopK.from_probabilities(p, k=k), rule)
        truth = certify(TopK.from_probabilities(p), rule).lower[0, 0]
        assert found.lower[0, 0] <= truth <= found.upper[0, 0] < math.log(2)
        assert found.accepted_count == 1
        if p == equal:
            assert found.upper[0, 0] == pytest.approx(0.0, abs=1e-15)
    log = TopK.from_log_probs([[0]], [[math.log(0.25)]], 0.0, 4)
    if rule.minimum_k == 1 and rule != AbsoluteThreshold(0.25):  # by a rounding below p0
        assert certify(log, rule).upper[0, 0] == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize(("alpha", "open_"), [(1.0, False), (1 - 1e-6, True)])
def test_a_step_below_p0_an_unstored_token_can_pass(alpha, open_):
    """Of [0.4, 0.4, 0.2] rank 2 passes, and rank 3 may have no mass; 0.6 in two can't all pass."""
    found = certify(TopK.from_probabilities([0.4, 0.4, 0.2], k=1), Multiplicative(alpha))
    assert (found.accepted_count == -1) == open_
    whole = certify(TopK.from_probabilities([0.4, 0.4, 0.2]), Multiplicative(alpha)).lower
    assert found.lower <= whole <= found.upper
    equal = certify(TopK.from_probabilities([0.25] * 4, k=1), Multiplicative(alpha))
    assert np.isinf(equal.upper[0, 0]) == open_


def test_where_no_unlisted_token_can_pass():
    """A tail below the threshold: what is rejected has at least an even share of it."""
    log = TopK.from_log_probs([[0, 1]], [np.log([0.6, 0.36])], 0.0, 6)
    for theta, truths in ((0.05, (0.04, 0.01)), (0.039, None)):
        found = certify(log, AbsoluteThreshold(theta))
        if truths is None:  # one of the four may pass, and leave nothing
            assert np.isinf(found.upper)
            continue
        for b, end in zip(truths, (found.lower, found.upper), strict=True):
            p = np.array([0.6, 0.36, b, *[(0.04 - b) / 3] * 3])
            assert end[0, 0] == pytest.approx(certificate(p, AbsoluteThreshold(theta)))


def test_one_unstored_token_at_its_threshold():
    """p = theta is rejected, but T may be off: an interval with the truth."""
    p = np.array([[0.5, 0.4, 0.1], [0.5, 0.45, 0.05], [0.625, 0.25, 0.125]])
    rules = [AbsoluteThreshold(0.1), Multiplicative(0.1), Additive(0.4), Additive(0.5)]
    rules += [Typical(0.1, 1.0), AbsoluteThreshold(0.0)]
    whole, cut = (certify(TopK.from_probabilities(p, k=k), rules) for k in (3, 2))
    assert (cut.lower <= whole.lower * (1 + 1e-13)).all()
    assert (cut.upper >= whole.lower * (1 - 1e-13)).all()
    assert not np.isinf(cut.lower[0, 0])


@pytest.mark.parametrize("power", [2, 6, 12])
def test_near_ties_stay_inside(power):
    """The first rejected token is a relative 10^-power below x0 and not stored."""
    gap = 10.0**-power
    for top in ([0.4, 0.4 * (1 - gap)], [0.3, 0.3 * (1 - gap / 3), 0.3 * (1 - gap)]):
        z, k = np.log([*top, 1 - sum(top)]), len(top) - 1
        with mpmath.workdps(50):
            weights = [mpmath.exp(mpmath.mpf(float(x))) for x in z]
            p = [w / mpmath.fsum(weights) for w in weights]
            level, active = max(((p[k] + mpmath.fsum(p[:j])) / (j + 1), j) for j in range(1, k + 1))
            truth = mpmath.fsum(x * mpmath.log(x / level) for x in [*p[:active], p[k]])
        alpha = min(1.0, float(np.exp(z[k] - z[0]) * (1 + 1e-15)))
        found = certify(TopK.from_logits(z, k), Multiplicative(alpha))
        assert found.lower[0, 0] <= truth <= found.upper[0, 0]


def test_the_least_stored_probability_is_never_below_the_true_one():
    """What the kernel accepted, by another rounding, must not fall below the threshold here."""
    z = -np.sort(np.random.default_rng(0).exponential(4.0, (200, 6)), axis=1)
    p_k = TruncatedSteps(TopK.from_logits(z, 4)).p_k
    with mpmath.workdps(50):
        for row, bound in zip(z, p_k, strict=True):
            weights = [mpmath.exp(mpmath.mpf(float(x))) for x in row]
            true = weights[3] / mpmath.fsum(weights)
            assert true <= float(bound) <= true * (1 + 1e-13)


def test_tails_too_small_to_tell_apart():
    """e^-2000 is 0 in float64, yet more than a threshold of 0: nothing is claimed there."""
    rules = [AbsoluteThreshold(0.0), AbsoluteThreshold(1e-9)]
    for z in ([0.0, -2000.0], [0.0, -720.0, -720.0]):
        found = certify(TopK.from_logits(np.array(z), 1), rules)
        np.testing.assert_allclose(found.lower, math.log(2), rtol=1e-11)
        assert found.upper[0] == pytest.approx([math.inf, math.log(2)])
    masked = certify(TopK.from_logits([0.0, -np.inf, -np.inf], 1), AbsoluteThreshold(0.0))
    assert masked.upper.tolist() == masked.lower.tolist() == [[math.log(2)]]


def test_nothing_outside_the_top_k():
    """T = 0: the rest are zeros, which a threshold of 0 rejects and a negative one accepts."""
    dist = TopK.from_probabilities([[0.6, 0.4, 0.0, 0.0]], k=2)
    found = certify(dist, [AbsoluteThreshold(0.0), Additive(0.7), Multiplicative(0.1)])
    level = 1.0 / 3  # 0.4 exceeds (0.6 + 0) / 2, so both are active
    truth = sum(p * math.log(p / level) for p in (0.6, 0.4))
    for end in (found.lower, found.upper):
        assert end[0] == pytest.approx([truth, math.inf, truth], rel=1e-14)
    assert found.accepted_count[0].tolist() == [2, 4, 2]


class Fixed(Rule):
    """A rule given by its count."""

    count: int = 4

    def accepted_count(self, dist, /):
        return np.full(len(dist), self.count, dtype=np.int32)


@pytest.mark.parametrize(
    ("p", "reached"),
    [
        # two tail tokens of p_K leave b each to the others
        ([0.4, 0.12, 0.12, 0.12, 0.12, 0.12], "upper"),
        ([0.14, 0.14, 0.14, 0.14, 0.11, 0.11, 0.11, 0.11], "upper"),
        # the first rejected token has a third of T, the most it can
        ([0.5, 0.2, 0.1, 0.1, 0.1, 0.0], "lower"),
        ([0.14, 0.14, 0.14, 0.14, 0.14, 0.1, 0.1, 0.1], ""),
    ],
)
def test_counts_above_k_bound_the_first_rejected_token(p, reached):
    full = np.array(p)
    found = certify(TopK.from_probabilities(full[None], k=2), [Fixed()])
    truth = certificate(full, Fixed())
    assert found.accepted_count.tolist() == [[4]]
    assert found.lower[0, 0] <= truth * (1 + ROUNDING)
    assert found.upper[0, 0] >= truth * (1 - ROUNDING)
    if reached:
        assert getattr(found, reached)[0, 0] == pytest.approx(truth, rel=1e-7)


T, ALPHA, RANKS = (0.01, 0.05, 0.1, 0.3, 0.5), (0.9, 0.7, 0.3, 0.1), (2, 4, 8)
CHAINS = [
    [StrictGreedy(), *map(Additive, T)],
    [Multiplicative(1.0), *map(Multiplicative, ALPHA)],
    [StrictGreedy(), *map(Tree, (1, 2, 3, 5, 8))],
    *([TopMMultiplicative(m, a) for m in RANKS] + [Multiplicative(a)] for a in ALPHA),
    *([StrictGreedy(), *(TopMAdditive(m, t) for t in T), TopMAdditive(m, 1.0)] for m in RANKS),
]


@pytest.mark.parametrize("k", [60, 12])
def test_certificates_grow_with_what_is_accepted(k):
    """An interval may reach below that of a stricter rule, but not wholly: upper >= lower."""
    dist = TopK.from_probabilities(dirichlet(4, 400, 60, 0.1, 1.0), k=k)
    for chain in CHAINS:
        found = certify(dist, chain)
        assert (found.lower[:, :-1] <= found.upper[:, 1:] * (1 + 1e-12)).all(), chain


@pytest.mark.parametrize("m", RANKS)
def test_a_mixed_rule_is_the_smaller_of_its_parts(m):
    """It rejects what either part rejects, and the best rejected token decides."""
    dist = TopK.from_probabilities(dirichlet(5, 400, 60, 0.1, 1.0))
    mixed = certify(dist, [TopMAdditive(m, t) for t in T]).lower
    parts = certify(dist, [*map(Additive, T), TopMAdditive(m, 1.0)]).lower
    np.testing.assert_array_equal(mixed, np.minimum(parts[:, :-1], parts[:, -1:]))


N = 6  # tokens of a tail
COUNTS = np.array(  # of p_K, of theta or just above, and of one other probability
    [c for c in itertools.product(*map(range, (N, N, 2, N + 1))) if c[3] and sum(c) <= N]
)


def listed_tails(p, k, theta):
    """Every (M, N) tail of the mass of p[k:] with so few probabilities.

    A tail with the least or the greatest first rejected token is among them.
    """
    fixed, mass = np.array([p[k - 1], theta * (1 + 1e-9), theta]), p[k:].sum()
    x = (mass - COUNTS[:, :3] @ fixed) / COUNTS[:, 3]
    levels = np.column_stack([np.tile(fixed, (len(COUNTS), 1)), x, np.zeros(len(x))])
    counts = np.column_stack([COUNTS, N - COUNTS.sum(axis=1)])
    tails = np.array([np.repeat(*row) for row in zip(levels, counts, strict=True)])
    return tails[(tails >= 0).all(axis=1) & (tails <= p[k - 1]).all(axis=1)]


@pytest.mark.parametrize("flat", [False, True])
def test_intervals_are_as_narrow_as_the_tails_of_six_tokens_allow(flat):
    """Nearly so where unseen tokens are active: the others are then the worst that T allows."""
    rng, ratios = np.random.default_rng(7), []
    while len(ratios) < 30:
        k = int(rng.integers(2, 5))
        p = -np.sort(-rng.dirichlet(np.full(k + N, 20.0)))
        if not flat:
            p = np.append(targets(rng, 1, k + N - 1)[0], 0.0)
            p[0] += 2.0  # p_K is below every level, so that no unseen token is active
            p /= p.sum()
        rule = AbsoluteThreshold(float(p[k - 1] * rng.uniform(0.05, 0.99)))
        found = certify(TopK.from_probabilities(p[None], k=k), rule)
        lower, upper = found.lower[0, 0], found.upper[0, 0]
        if p[k] < 1e-6 or lower == upper:
            continue
        tails = listed_tails(p, k, rule.theta)
        full = np.vstack([p, np.column_stack([np.tile(p[:k], (len(tails), 1)), tails])])
        truth = certify(TopK.from_probabilities(full), rule).lower
        assert lower <= truth.min() * (1 + 1e-9)
        assert upper >= truth.max() * (1 - 1e-9)
        assert math.isinf(upper) == math.isinf(truth.max())  # only if a tail is all accepted
        if math.isfinite(upper) and upper - lower > 1e-6:
            ratios.append((upper - lower - 1e-6) / (truth.max() - truth.min()))
    assert np.median(ratios) < (1.2 if flat else 1.001)
    assert max(ratios) < (2.1 if flat else 1.001)


# rounded log-probabilities: certificates contain those of what was rounded

V = 60
PRINTED = [
    *(rule for rule in RULES if not isinstance(rule, Mars)),
    *(Additive(0.0), Additive(1.0), AbsoluteThreshold(0.0)),
]


def distributions(steps, seed=0):
    """(steps, V) probabilities, of flat to certain; near-ties and zeros among them."""
    rng = np.random.default_rng(seed)
    logits = rng.gumbel(size=(steps, V)) * rng.gamma(2, 1.5, size=(steps, 1))
    logits[::5, 1] = logits[::5, 0] + rng.normal(size=len(logits[::5])) * 1e-3
    logits[::7] *= 20
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p[p < 1e-12] = 0.0
    return p / p.sum(axis=1, keepdims=True)


def printed(p, k, digits):
    """The top k of full distributions, as an engine prints them."""
    full = TopK.from_probabilities(p, k)
    with np.errstate(invalid="ignore"):
        log_probs = np.round(full.log_probs, digits)
    return TopK.from_log_probs(full.ids, log_probs, 0.5 * 10.0**-digits, p.shape[1])


def assert_inside(found, exact):
    assert np.all(found.lower <= exact.lower)
    assert np.all(exact.upper <= found.upper)


@pytest.mark.parametrize("digits", [1, 2, 4, 8])
@pytest.mark.parametrize("k", [2, 8, 20, V])
def test_contain_the_exact_ones(digits, k):
    p, rules = distributions(400, seed=digits + k), [r for r in PRINTED if r.minimum_k <= k]
    found = certify(printed(p, k, digits), rules)
    exact = certify(TopK.from_probabilities(p), rules)
    assert_inside(found, exact)
    greedy = found.upper[:, 0] - found.lower[:, 0]
    assert np.median(greedy) < 3 * 10.0**-digits


def of_the_box(told, rng):
    """A distribution of each step that rounds to its log, and which steps have one (N,).

    Three of ten have every stored probability at an end, some all at the same.
    """
    low, high = told.prob_range
    ends = rng.random((len(told), 1)) < 0.3
    same = rng.random((len(told), 1)) < 0.3
    corner = np.where(same, rng.integers(0, 2, (len(told), 1)), rng.integers(0, 2, low.shape))
    share = np.where(ends, corner, rng.random(low.shape))
    top = -np.sort(-(low + share * (high - low)), axis=1)
    rest = 1.0 - top.sum(axis=1)
    weights = rng.random((len(told), V - told.k)) ** rng.integers(0, 9)
    others = rest[:, None] * weights / weights.sum(axis=1, keepdims=True)
    fits = (rest >= 0) & (others.max(axis=1) <= top[:, -1])
    return TopK.from_probabilities(np.column_stack([top, others])[fits]), fits


def test_contain_those_of_any_distribution_of_the_box():
    rng = np.random.default_rng(5)
    p, k, digits = distributions(300, seed=9), 6, 1
    told = printed(p, k, digits)
    found = certify(told, PRINTED)
    tail_low, tail_high = told.tail_range
    tried = 0
    for _ in range(60):
        full, fits = of_the_box(told, rng)
        tried += len(full)
        rest = 1.0 - full.probs[:, :k].sum(axis=1)
        assert np.all((tail_low[fits] <= rest) & (rest <= tail_high[fits]))
        inside = Certificates(*(column[fits] for column in found))
        assert_inside(inside, certify(full, PRINTED))
        least, most = told.entropy_range
        assert np.all(full.entropy >= least[fits] - 1e-9)
        assert np.all(full.entropy <= most[fits] + 1e-9)
    assert tried > 2000


def test_a_threshold_within_the_error_leaves_the_count_open():
    # p = 0.5, 0.4, ...: additive t = 0.1 accepts rank 2 or not, by a rounding
    told = TopK.from_log_probs([[0, 1, 2]], [np.log([0.5, 0.4, 0.05])], 1e-3, 50)
    least, found, most = (certify(told, Additive(t)) for t in (0.09, 0.1, 0.11))
    assert found.lower == pytest.approx(least.lower)
    assert found.upper == pytest.approx(most.upper)
    assert most.lower > least.upper


def test_where_all_that_is_listed_is_accepted():
    """The first rejected token is unlisted: it may be as probable as theta."""
    rule, told = AbsoluteThreshold(0.05), TopK.from_log_probs([[0, 1]], [np.log([0.6, 0.3])], 0, 10)
    found = certify(told, rule)
    p = np.array([0.6, 0.3, 0.05, 0.05, *[0.0] * 6])
    assert found.lower[0, 0] == pytest.approx(certificate(p, rule))
    assert found.upper[0, 0] == np.inf

"""Intervals under truncation: exact where determined, never left by the truth elsewhere."""

import math
from dataclasses import dataclass, replace

import mpmath
import numpy as np
import pytest

from analysis.certificates.certify import certify
from analysis.rules import (
    AbsoluteThreshold,
    Additive,
    Multiplicative,
    Rule,
    StrictGreedy,
    TopMAdditive,
    TopMMultiplicative,
    Tree,
    Typical,
)
from analysis.topk import TopK
from benchmarks.soundness import ROUNDING, attack_drafts, attack_tails, targets, widths
from tests.analysis.cases import assert_same, certificate, dirichlet


@pytest.mark.parametrize(("size", "k"), [(12, 3), (49, 1), (40, 8), (200, 32)])
def test_other_tails_of_the_same_mass_and_entropy_stay_inside(size: int, k: int) -> None:
    _, worst, _, moved = attack_tails(700, size, k, seed=k)
    assert worst < ROUNDING
    assert moved > 0.9


def test_rejected_drafts_are_never_closer_than_lo() -> None:
    assert 1 - 1e-9 < attack_drafts(4000, 30, 12) < 1.2


@pytest.mark.parametrize("k", [1, 2, 5, 13, 39])
def test_truth_is_inside_and_equal_where_exact(k: int) -> None:
    p = targets(np.random.default_rng(k), 300, 40)
    rules = [AbsoluteThreshold(0.001), Additive(0.3), Multiplicative(0.05), Typical(0.3, 0.05)]
    whole, cut = (certify(TopK.from_probabilities(p, k=k), rules) for k in (40, k))
    exact = cut.lower == cut.upper
    assert (cut.lower <= whole.lower * (1 + ROUNDING))[~exact].all()
    assert (cut.upper >= whole.lower * (1 - ROUNDING))[~exact].all()
    np.testing.assert_allclose(cut.lower[exact], whole.lower[exact], rtol=1e-9)
    # determined wherever p_K is rejected already, and the count is never wrong where known
    full = TopK.from_probabilities(p)
    thresholds = np.column_stack([rule.cut(full).threshold(full) for rule in rules])
    assert exact[p[:, k - 1 : k] <= thresholds].all()
    known = cut.accepted_count >= 0
    assert (cut.accepted_count == whole.accepted_count)[known].all()
    for theta in (0.1 - 1e-9, 0.1 + 1e-9):  # above the errors of T and of the probabilities
        full, found = (
            certify(TopK.from_probabilities(EXACT[0], k=k), AbsoluteThreshold(theta))
            for k in (3, 2)
        )
        assert np.isinf(full.lower[0, 0]) == (theta < 0.1)
        for end in (found.lower, found.upper):
            assert end[0, 0] == pytest.approx(full.lower[0, 0], rel=1e-7)


def test_rules_of_rank_are_exact() -> None:
    p = dirichlet(0, 200, 50, 0.3)
    rules = [StrictGreedy(), TopMAdditive(4, 1.0), TopMAdditive(4, 0.2, "paper"), Tree(4)]
    whole, cut = (certify(TopK.from_probabilities(p, k=k), rules) for k in (50, 5))
    assert_same(cut, whole)


EXACT = np.array([[0.5, 0.4, 0.1], [0.5, 0.45, 0.05], [0.625, 0.25, 0.125]])


def test_one_unstored_token_at_its_threshold() -> None:
    """p = theta is rejected, but T may be off: an interval with the truth; a step aside, exact."""
    rules = [AbsoluteThreshold(0.1), Multiplicative(0.1), Additive(0.4), Additive(0.5)]
    rules += [Typical(0.1, 1.0), AbsoluteThreshold(0.0)]
    whole, cut = (certify(TopK.from_probabilities(EXACT, k=k), rules) for k in (3, 2))
    assert (cut.lower <= whole.lower * (1 + 1e-13)).all()
    assert (cut.upper >= whole.lower * (1 - 1e-13)).all()
    assert not np.isinf(cut.lower[0, 0])
    assert whole.lower[0, 0] == pytest.approx(0.1553, abs=1e-4)
    known = cut.accepted_count >= 0
    assert (cut.accepted_count == whole.accepted_count)[known].all()


@pytest.mark.parametrize("power", range(1, 13))
def test_near_ties_stay_inside(power: int) -> None:
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
        for entropy_error in (1e-9, np.inf):
            cut = replace(TopK.from_logits(z, k), entropy_error=entropy_error)
            found = certify(cut, Multiplicative(alpha))
            assert found.lower[0, 0] <= truth <= found.upper[0, 0]


def test_tails_too_small_to_tell_apart() -> None:
    """e^-2000 is 0 in float64, yet more than a threshold of 0: nothing is claimed there."""
    for z in ([0.0, -2000.0], [0.0, -2000.0, -2001.0], [0.0, -720.0, -720.0]):
        found = certify(
            TopK.from_logits(np.array(z), 1), [AbsoluteThreshold(0.0), AbsoluteThreshold(1e-9)]
        )
        np.testing.assert_allclose(found.lower, math.log(2), rtol=1e-11)
        assert found.upper[0] == pytest.approx([math.inf, math.log(2)])
    masked = certify(TopK.from_logits([0.0, -np.inf, -np.inf], 1), AbsoluteThreshold(0.0))
    assert masked.upper.tolist() == masked.lower.tolist() == [[math.log(2)]]


def test_nothing_outside_the_top_k() -> None:
    """T = 0: the rest are zeros, which a threshold of 0 rejects and a negative one accepts."""
    found = certify(
        TopK.from_probabilities([[0.6, 0.4, 0.0, 0.0]], k=2),
        [AbsoluteThreshold(0.0), Additive(0.7), Multiplicative(0.1)],
    )
    level = 1.0 / 3  # 0.4 exceeds (0.6 + 0) / 2, so both are active
    truth = sum(p * math.log(p / level) for p in (0.6, 0.4))
    assert found.lower[0] == pytest.approx([truth, math.inf, truth], rel=1e-14)
    assert found.upper[0] == pytest.approx([truth, math.inf, truth], rel=1e-14)
    assert found.accepted_count[0].tolist() == [2, 4, 2]


def test_entropy_excludes_that_everything_is_accepted() -> None:
    """Twenty tail tokens above 0.01 have 1.118 nats at least (19 of 0.01); h is 0.98."""
    p = np.array([0.4, 0.3, 0.1, 0.1, *np.full(18, 0.1 / 18)])
    found = certify(TopK.from_probabilities(p[None], k=2), [AbsoluteThreshold(0.01)])
    truth = certificate(p, AbsoluteThreshold(0.01))
    assert found.lower[0, 0] < truth < found.upper[0, 0] < 0.3
    # without the entropy, all of them might be
    blind = replace(TopK.from_probabilities(p[None], k=2), entropy_error=np.inf)
    assert np.isposinf(certify(blind, [AbsoluteThreshold(0.01)]).upper).all()


@pytest.mark.parametrize("tail", [[0.2, 0.2, *np.zeros(10)], [0.25, 0.15, 0, 0, 0, 0]])
def test_the_least_entropy_determines_the_tail(tail: list[float]) -> None:
    """Two tokens that have the least entropy T and p_K allow: no other tail has as little."""
    p = np.array([0.6 - max(tail), max(tail), *tail])
    p[0] += 1.0 - p.sum()
    rule = AbsoluteThreshold(0.16)
    found = certify(TopK.from_probabilities(p[None], k=2), [rule])
    truth = certificate(p, rule)
    assert found.lower[0, 0] == pytest.approx(truth, rel=1e-5)
    assert found.upper[0, 0] == pytest.approx(truth, rel=1e-5)


def test_errors_of_mass_and_entropy_are_allowed_for() -> None:
    """Where T and H determine the tail nearly, a small error of both leaves the truth inside."""
    p = np.array([0.4, 0.2, 0.2, 0.2, *np.zeros(10)])
    stored, rule = TopK.from_probabilities(p[None], k=2), AbsoluteThreshold(0.15)
    truth = certificate(p, rule)
    for mass in (-9e-10, 9e-10):
        for h in (-9e-10, 9e-10):
            off = replace(stored, log_tail=stored.log_tail + mass, entropy=stored.entropy + h)
            found = certify(off, [rule])
            assert found.lower[0, 0] <= truth <= found.upper[0, 0]


@dataclass(frozen=True)
class Fixed(Rule):
    """A rule given by its count."""

    count: int = 4

    def accepted_count(self, dist: TopK, /) -> np.ndarray:
        return np.full(len(dist), self.count, dtype=np.int32)


@pytest.mark.parametrize(
    ("p", "reached"),
    [
        # two tail tokens of p_K leave b each to the others
        ([0.4, 0.12, 0.12, 0.12, 0.12, 0.12], "upper"),
        ([0.14, 0.14, 0.14, 0.14, 0.11, 0.11, 0.11, 0.11], "upper"),
        ([0.4, 0.14, 0.14, 0.14, 0.1, 0.08], ""),
        # the first rejected token has a third of T, the most it can
        ([0.5, 0.2, 0.1, 0.1, 0.1, 0.0], "lower"),
        ([0.4, 0.15, 0.15, 0.15, 0.15, 0.0], "lower"),
        ([0.14, 0.14, 0.14, 0.14, 0.14, 0.1, 0.1, 0.1], ""),
    ],
)
def test_counts_above_k_bound_the_first_rejected_token(p: list[float], reached: str) -> None:
    full = np.array(p)
    found = certify(TopK.from_probabilities(full[None], k=2), [Fixed()])
    truth = certificate(full, Fixed())
    assert found.accepted_count.tolist() == [[4]]
    assert found.lower[0, 0] <= truth * (1 + ROUNDING)
    assert found.upper[0, 0] >= truth * (1 - ROUNDING)
    if reached:
        assert getattr(found, reached)[0, 0] == pytest.approx(truth, rel=1e-7)


def test_unseen_active_tokens_raise_the_upper_end() -> None:
    """Of a flat target one token is stored: all that exceed the rejected one are active."""
    rng = np.random.default_rng(3)
    p = rng.uniform(0.8, 1.2, (500, 49))
    p = -np.sort(-p / p.sum(axis=1, keepdims=True))
    rule = Multiplicative(0.9)
    whole, cut = (certify(TopK.from_probabilities(p, k=k), [rule]) for k in (49, 1))
    assert (whole.active_size > 2).mean() > 0.9
    assert (cut.lower <= whole.lower * (1 + ROUNDING)).all()
    assert (cut.upper >= whole.lower * (1 - ROUNDING)).all()


def test_entropy_narrows_intervals() -> None:
    narrow, wide = widths(40, 8)
    assert narrow < 0.9 * wide


T, ALPHA, RANKS = (0.01, 0.05, 0.1, 0.3, 0.5), (0.9, 0.7, 0.3, 0.1), (2, 4, 8)
CHAINS: list[list[Rule]] = [
    [StrictGreedy(), *map(Additive, T)],
    [Multiplicative(1.0), *map(Multiplicative, ALPHA)],
    [StrictGreedy(), *map(Tree, (1, 2, 3, 5, 8))],
    *([TopMAdditive(m, t) for m in RANKS] + [Additive(t)] for t in T),
    *([TopMMultiplicative(m, a) for m in RANKS] + [Multiplicative(a)] for a in ALPHA),
    *([StrictGreedy(), *(TopMAdditive(m, t) for t in T), TopMAdditive(m, 1.0)] for m in RANKS),
    [TopMAdditive(m, 0.3, "paper") for m in (2, 3, 4, 8)],
]


@pytest.mark.parametrize("k", [60, 12])
def test_certificates_grow_with_what_is_accepted(k: int) -> None:
    """An interval may reach below that of a stricter rule, but not wholly: upper >= lower."""
    dist = TopK.from_probabilities(dirichlet(4, 400, 60, 0.1, 1.0), k=k)
    for chain in CHAINS:
        found = certify(dist, chain)
        assert (found.lower[:, :-1] <= found.upper[:, 1:] * (1 + 1e-12)).all(), chain


@pytest.mark.parametrize("m", RANKS)
def test_a_mixed_rule_is_the_smaller_of_its_parts(m: int) -> None:
    """It rejects what either part rejects, and the best rejected token decides."""
    dist = TopK.from_probabilities(dirichlet(5, 400, 60, 0.1, 1.0))
    mixed = certify(dist, [TopMAdditive(m, t) for t in T]).lower
    parts = certify(dist, [*map(Additive, T), TopMAdditive(m, 1.0)]).lower
    np.testing.assert_array_equal(mixed, np.minimum(parts[:, :-1], parts[:, -1:]))
    paper = certify(dist, [TopMAdditive(2, 0.3, "paper"), StrictGreedy()]).lower
    assert (paper[:, 0] == paper[:, 1]).all()  # read literally, m = 2 is strict greedy

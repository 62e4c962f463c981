"""Intervals under truncation: exact where determined, never left by the truth elsewhere."""

import math

import numpy as np
import pytest

from analysis.certificates import certify
from analysis.criteria import (
    AbsoluteThreshold,
    Additive,
    Multiplicative,
    StrictGreedy,
    TopMAdditive,
    Tree,
    Typical,
)
from analysis.distributions import TopK
from benchmarks.soundness import ROUNDING, attack_drafts, attack_tails, targets, widths
from tests.analysis.cases import assert_same, certificate, dirichlet


@pytest.mark.parametrize(("size", "k"), [(12, 3), (40, 8), (200, 32)])
def test_other_tails_of_the_same_mass_and_entropy_stay_inside(size: int, k: int) -> None:
    found = attack_tails(700, size, k, seed=k)
    assert found.worst < ROUNDING
    assert found.moved > 0.9


def test_rejected_drafts_are_never_closer_than_lo() -> None:
    assert 1 - 1e-9 < attack_drafts(4000, 30, 12) < 1.2


@pytest.mark.parametrize("k", [1, 2, 5, 13, 39])
def test_truth_is_inside_and_equal_where_exact(k: int) -> None:
    p = targets(np.random.default_rng(k), 300, 40)
    rules = [AbsoluteThreshold(0.001), Additive(0.3), Multiplicative(0.05), Typical(0.3, 0.05)]
    whole, cut = (certify(TopK.from_probabilities(p, k=k), rules) for k in (40, k))
    exact = cut.lo == cut.hi
    assert (cut.lo <= whole.lo * (1 + ROUNDING))[~exact].all()
    assert (cut.hi >= whole.lo * (1 - ROUNDING))[~exact].all()
    np.testing.assert_allclose(cut.lo[exact], whole.lo[exact], rtol=1e-9)
    # determined wherever p_K is rejected already, and the count is never wrong where known
    thresholds = np.column_stack(
        [
            rule.cut(TopK.from_probabilities(p)).threshold(TopK.from_probabilities(p))
            for rule in rules
        ]
    )
    assert exact[p[:, k - 1 : k] <= thresholds].all()
    known = cut.accepted_count >= 0
    assert (cut.accepted_count == whole.accepted_count)[known].all()


def test_rules_of_rank_are_exact() -> None:
    p = dirichlet(0, 200, 50, 0.3)
    rules = [StrictGreedy(), TopMAdditive(4, 1.0), TopMAdditive(4, 0.2, "paper"), Tree(4)]
    whole, cut = (certify(TopK.from_probabilities(p, k=k), rules) for k in (50, 5))
    assert_same(cut, whole)


def test_one_unstored_token_is_no_uncertainty() -> None:
    rules = [AbsoluteThreshold(0.25), AbsoluteThreshold(0.1), Multiplicative(0.5)]
    whole, cut = (certify(TopK.from_probabilities([[0.5, 0.3, 0.2]], k=k), rules) for k in (3, 2))
    np.testing.assert_allclose(cut.lo, whole.lo, rtol=1e-12)
    np.testing.assert_array_equal(cut.lo, cut.hi)


def test_nothing_outside_the_top_k() -> None:
    """T = 0: the rest are zeros, which a threshold of 0 rejects and a negative one accepts."""
    found = certify(
        TopK.from_probabilities([[0.6, 0.4, 0.0, 0.0]], k=2),
        [AbsoluteThreshold(0.0), Additive(0.7), Multiplicative(0.1)],
    )
    level = 1.0 / 3  # 0.4 exceeds (0.6 + 0) / 2, so both are active
    truth = sum(p * math.log(p / level) for p in (0.6, 0.4))
    assert found.lo[0] == pytest.approx([truth, math.inf, truth], rel=1e-14)
    assert found.hi[0] == pytest.approx([truth, math.inf, truth], rel=1e-14)
    assert found.accepted_count[0].tolist() == [2, 4, 2]


def test_unknown_emptiness_gives_an_infinite_end() -> None:
    tail = np.full(6, 0.05)
    dist = TopK.from_probabilities([[0.4, 0.3, *tail]], k=2)
    found = certify(dist, [AbsoluteThreshold(0.0), AbsoluteThreshold(0.01)])
    assert np.isfinite(found.lo).all()
    assert np.isposinf(found.hi).all()
    assert (found.accepted_count == -1).all()


def test_entropy_narrows_intervals() -> None:
    narrow, wide = widths(40, 8)
    assert narrow < 0.9 * wide


def test_entropy_bounds_are_attained() -> None:
    """A tail of one token at b and an even rest: b_max is found from T and H alone."""
    top, b, n = [0.5, 0.2], 0.05, 20
    p = np.array([*top, b, *np.full(n - 1, (0.3 - b) / (n - 1))])
    rule = AbsoluteThreshold(0.19)
    assert certificate(p, rule, k=2) == pytest.approx(certificate(p, rule), rel=1e-6)

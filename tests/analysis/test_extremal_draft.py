"""Certificates at 40 digits, and the drafts that attain them."""

import math

import mpmath
import numpy as np
import pytest

from analysis.certificates.certify import certify, extremal_draft
from analysis.rules import (
    AbsoluteThreshold,
    Additive,
    Mars,
    Multiplicative,
    Rule,
    StrictGreedy,
    Tree,
)
from analysis.topk import Floats, TopK
from tests.analysis.cases import THRESHOLD_RULES, FirstRanks, certificate, dirichlet, kl


def extremal(p: Floats, active: list[int]) -> Floats:
    """Level on the active tokens."""
    q = p.copy()
    q[active] = p[active].mean()
    return q


def test_every_certificate_is_attained() -> None:
    """By a draft that is rejected; of which tokens are active, only the count is taken."""
    p = -np.sort(-dirichlet(11, 60, 9, 0.4, 3.0), axis=1)
    rules = [StrictGreedy(), Additive(0.2), Multiplicative(0.3), FirstRanks(5), Tree(3)]
    found = certify(TopK.from_probabilities(p), rules)
    for (row, column), value in np.ndenumerate(found.lower):
        if np.isinf(value):
            continue
        size, n = found.active_size[row, column], found.accepted_count[row, column]
        tree = isinstance(rules[column], Tree)
        active = [0, *range(5 - size, 4)] if tree else [*range(size - 1), n]
        q = extremal(p[row], active)
        slack = 1 + 1e-12
        if tree:
            assert (q[1:] * slack >= q[0]).sum() >= 3
        else:
            assert q[n] * slack >= q.max()
        assert kl(p[row], q) == pytest.approx(value, rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("rule", [*THRESHOLD_RULES, StrictGreedy(), Tree(2), Tree(5)], ids=str)
def test_the_extremal_draft_is_rejected_at_the_certificate(rule: Rule) -> None:
    """At ties the worst case; levels tie within 1e-13."""

    def rejected(p: Floats, q: Floats) -> bool:
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


@pytest.mark.parametrize(
    ("rule", "message"),
    [(Additive(0.7), "rejects nothing"), (Tree(2), "rejects nothing"), (Mars(0.9), "raw logits")],
)
def test_nothing_to_show(rule: Rule, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        extremal_draft([0.5, 0.5], rule)


def test_it_is_shown_for_one_step() -> None:
    with pytest.raises(ValueError, match=r"shape \(2, 2\): give the \(V,\)"):
        extremal_draft([[0.5, 0.5], [0.7, 0.3]], StrictGreedy())


def test_accuracy_at_every_gap() -> None:
    rng = np.random.default_rng(3)
    for gap in (1e-6, 1e-4, 1e-2, 0.3, 3.0):
        z = -np.sort(-rng.normal(size=7) * rng.choice([gap, 1.0], 7)).astype(np.float32)
        z[0] = z[1] + np.float32(gap)
        value = certify(TopK.from_logits(z), FirstRanks(1)).lower[0, 0]
        with mpmath.workdps(40):
            w = [mpmath.exp(mpmath.mpf(float(x))) for x in z]
            p = [x / mpmath.fsum(w) for x in w][:2]
            m = (p[0] + p[1]) / 2
            truth = sum(x * mpmath.log(x / m) for x in p)
            assert abs(value - truth) <= 1e-13 * truth


def test_zeros_ties_and_wide_rules() -> None:
    p = TopK.from_probabilities([[0.4, 0.4, 0.2, 0.0]])
    rules = [StrictGreedy(), AbsoluteThreshold(0.2), AbsoluteThreshold(0.1), Tree(1), Tree(4)]
    found = certify(p, rules).lower[0]
    assert found[[0, 3]].tolist() == [0.0, 0.0]
    assert found[4] == math.inf
    assert 0 < found[1] < math.inf  # p = theta is rejected
    assert found[2] < math.inf

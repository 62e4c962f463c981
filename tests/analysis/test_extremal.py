"""q* attains the certificate, and nothing near it does better."""

import numpy as np
import pytest

from analysis.certificates.reference import extremal_draft
from analysis.rules import (
    Additive,
    Mars,
    Multiplicative,
    Rule,
    StrictGreedy,
    TopMAdditive,
    Tree,
    Typical,
)
from analysis.topk import TopK
from tests.analysis.cases import certificate, kl

RULES = [StrictGreedy(), Additive(0.2), Multiplicative(0.3), TopMAdditive(2, 0.9)]
RULES += [Typical(0.1, 0.09), Tree(2), Tree(5)]


def rejected(p: np.ndarray, q: np.ndarray, rule: Rule) -> bool:
    """Whether the draft q can be rejected, at ties the worst case; levels tie within 1e-13."""
    order = np.argsort(-p, kind="stable")
    tie = 1 - 1e-13
    if isinstance(rule, Tree):
        return np.sum(q >= q[order[0]] * tie) - 1 >= rule.m
    n = int(rule.accepted_count(TopK.from_probabilities(p[None]))[0])
    return bool(np.isin(np.flatnonzero(q >= q.max() * tie), order[n:]).any())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.label)
def test_attained_and_least(rule: Rule) -> None:
    rng = np.random.default_rng(0)
    for concentration in (0.1, 0.5, 2.0):
        p = rng.dirichlet(np.full(12, concentration)) + 1e-9
        p /= p.sum()
        found = certificate(p, rule)
        if np.isinf(found):
            continue
        q, least = extremal_draft(p, rule)
        assert q.sum() == pytest.approx(1, abs=1e-14)
        assert rejected(p, q, rule)
        assert least == pytest.approx(found, rel=1e-12)
        assert kl(p, q) == pytest.approx(found, rel=1e-9, abs=1e-14)
        assert not rejected(p, 0.999 * q + 0.001 * p, rule)  # towards p it is accepted
        ratios = []
        for size in 10.0 ** rng.uniform(-9, -1, 400):  # rejected drafts around q*
            near = q * np.exp(size * rng.standard_normal(12))
            near /= near.sum()
            if rejected(p, near, rule):
                ratios.append(kl(p, near) / least)
        lifted = q * np.where(q >= q.max() * (1 - 1e-13), 1.0, 1 - 1e-9)
        ratios.append(kl(p, lifted / lifted.sum()) / least)
        assert min(ratios) > 1 - 1e-9


def test_nothing_to_show() -> None:
    for p, rule, message in (
        ([0.5, 0.5], Additive(0.7), "rejects nothing"),
        ([0.5, 0.5], Tree(2), "rejects nothing"),
        ([0.5, 0.5], Mars(0.9), "raw logits"),
    ):
        with pytest.raises(ValueError, match=message):
            extremal_draft(p, rule)

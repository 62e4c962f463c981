"""C(q) against a convex solver over all targets that reject the draft, and random targets."""

import itertools
import math

import cvxpy
import numpy as np
import pytest

from analysis.beyond.drafter_side import certify_draft
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
from tests.analysis.cases import kl

DRAFTS = np.array([[0.5, 0.25, 0.15, 0.1], [0.4, 0.4, 0.1, 0.1], [0.93, 0.04, 0.02, 0.01]])
RULES: list[Rule] = [
    *(StrictGreedy(), Additive(0.0), Additive(0.25), Additive(0.9), Multiplicative(0.4)),
    *(TopMAdditive(2, 0.3), TopMMultiplicative(3, 0.2), Tree(2)),
]


def rejecting(rule: Rule, p: cvxpy.Variable) -> list[list[cvxpy.Constraint]]:
    """The closed convex sets of targets whose union rejects the draft, token 0."""
    if isinstance(rule, Tree):  # the argmax is none of the m first
        return [[p <= p[x]] for x in range(rule.m, 4)]
    found = [[p[0] <= p[x]] for x in (1, 2, 3)] if isinstance(rule, StrictGreedy) else []
    if hasattr(rule, "t"):
        found += [[p[0] <= p[x] - rule.t] for x in (1, 2, 3)]
    if hasattr(rule, "alpha"):
        found += [[p[0] <= rule.alpha * p[x]] for x in (1, 2, 3)]
    if hasattr(rule, "m"):
        others = itertools.combinations((1, 2, 3), rule.m)
        found += [[p[0] <= p[x] for x in chosen] for chosen in others]
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.label)
def test_matches_a_convex_solver(rule: Rule) -> None:
    p = cvxpy.Variable(4)
    for q in DRAFTS:
        least = math.inf
        for limits in rejecting(rule, p):
            goal = cvxpy.Minimize(cvxpy.sum(cvxpy.rel_entr(p, q)))
            cvxpy.Problem(goal, [cvxpy.sum(p) == 1, *limits]).solve(solver=cvxpy.CLARABEL)
            best = np.maximum(p.value, 0)
            least = min(least, kl(best / best.sum(), q))
        found = certify_draft(TopK.from_probabilities(q), rule)[0]
        assert found == pytest.approx(least, abs=3e-6)


def test_known_forms() -> None:
    q = TopK.from_probabilities([0.5, 0.3, 0.15, 0.05])
    root = -math.log(1 - (math.sqrt(0.5) - math.sqrt(0.3)) ** 2)
    assert certify_draft(q, StrictGreedy())[0] == pytest.approx(root, rel=1e-13)
    assert certify_draft(q, Additive(0.0))[0] == pytest.approx(root, rel=1e-13)
    assert certify_draft(q, Multiplicative(1.0))[0] == pytest.approx(root, rel=1e-13)
    assert certify_draft(q, Additive(1.0))[0] == pytest.approx(-math.log(0.3), rel=1e-13)
    assert certify_draft(q, Tree(4))[0] == math.inf
    assert certify_draft(TopK.from_probabilities([0.4, 0.4, 0.2]), StrictGreedy())[0] == 0.0
    certain = TopK.from_probabilities([1.0, 0.0, 0.0])
    for rule in (StrictGreedy(), Additive(0.5), Multiplicative(0.5), Tree(2)):
        assert certify_draft(certain, rule)[0] == math.inf  # p has no mass outside the draft
        assert certify_draft(TopK.from_probabilities([[1.0]]), rule)[0] == math.inf


@pytest.mark.parametrize(
    "rule", [Typical(0.1, 0.1), Mars(0.9), AbsoluteThreshold(0.1), TopMAdditive(2, 0.1, "paper")]
)
def test_what_needs_more_of_the_target_is_refused(rule: Rule) -> None:
    q = TopK.from_probabilities([0.5, 0.3, 0.2], k=2)
    with pytest.raises(ValueError, match="cannot be certified from the drafter's side"):
        certify_draft(q, rule)
    with pytest.raises(ValueError, match="needs 3 tokens of q, K=2"):
        certify_draft(q, Tree(2))

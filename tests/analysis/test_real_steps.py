"""Bounds and orderings of certificates on steps that the embedded models really took."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from analysis.certificates import bounds
from analysis.certificates.certify import Certificates, certify
from analysis.rules import (
    Additive,
    Multiplicative,
    Rule,
    StrictGreedy,
    TopMAdditive,
    TopMMultiplicative,
    Tree,
    Typical,
)
from analysis.topk import Floats, TopK
from pipeline.loader import Study
from tests.conftest import SmallStudy

T = (0.01, 0.05, 0.1, 0.2, 0.3, 0.5)
ALPHA = (0.9, 0.7, 0.5, 0.3, 0.1)
M = (1, 2, 3, 4, 8, 20, 63)
MIXED = (2, 4, 8)
RULES: list[Rule] = [
    StrictGreedy(),
    *map(Additive, T),
    *map(Multiplicative, ALPHA),
    *(TopMAdditive(m, t) for m in MIXED for t in (*T, 1.0)),  # t = 1: top-m alone
    *(TopMMultiplicative(m, alpha) for m in MIXED for alpha in ALPHA),
    Typical(0.1, 0.09),
    Tree(1),
    *map(Tree, M[1:]),
]
ROUNDING = 1e-12
WIDENED = 1e-12  # by this much are the ends of intervals, for safety


@pytest.fixture(scope="module")
def steps(small_study: SmallStudy) -> TopK:
    """All steps of the first target, 64 of 2048 tokens stored."""
    study = Study(*small_study.overrides)
    return study.distributions(study.targets[0])


@pytest.fixture(scope="module")
def found(steps: TopK) -> Certificates:
    return certify(steps, RULES)


def of(found: Certificates, rule: Rule) -> tuple[Floats, Floats]:
    at = RULES.index(rule)
    return found.lower[:, at], found.upper[:, at]


def gap(steps: TopK, ranks: np.ndarray) -> Floats:
    """Difference of the best logit and that of `ranks` (from 0), exact in float64."""
    logits = steps.logits.astype(np.float64)
    return logits[:, 0] - np.take_along_axis(logits, ranks[:, None], axis=1)[:, 0]


def at_least(value: Floats, bound: Floats, gaps: Floats) -> None:
    """Assert value >= bound up to rounding, which a bound made of p0 - b has at small gaps."""
    slack = ROUNDING + 4e-15 / np.maximum(gaps, 1e-300)
    assert (value >= bound * (1 - slack)).all()


def test_the_steps_are_worth_testing(steps: TopK, found: Certificates) -> None:
    assert len(steps) > 60
    assert steps.k < steps.vocab_size
    assert (found.lower < found.upper).any()  # intervals,
    assert np.isinf(found.lower).any()  # empty regions,
    assert (steps.probs[:, 0] > 0.9).any()  # certain steps
    assert (steps.probs[:, 0] < 0.2).any()  # and open ones


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.name != "tree"], ids=str)
def test_bounds_of_one_token(rule: Rule, steps: TopK, found: Certificates) -> None:
    lower, upper = of(found, rule)
    count = found.accepted_count[:, RULES.index(rule)]
    p0, finite = steps.probs[:, 0], np.isfinite(upper)
    stored = (count >= 0) & (count < steps.k)
    ranks = np.where(stored, count, 1)
    b, gaps = np.take_along_axis(steps.probs, ranks[:, None], axis=1)[:, 0], gap(steps, ranks)
    assert (lower[stored] == upper[stored]).all()
    at_least(lower[stored], bounds.two_token(p0, b)[stored], gaps[stored])
    assert (lower[stored] <= bounds.single_upper(p0, b)[stored] * (1 + ROUNDING)).all()
    assert (upper[finite] <= bounds.single_upper(p0)[finite] * (1 + ROUNDING)).all()
    assert (upper[finite] <= math.log(2)).all()
    exact = finite & (lower == upper)
    size = found.active_size[exact, RULES.index(rule)]
    assert (upper[exact] <= bounds.ceiling(size) * (1 + ROUNDING)).all()

    # what a theorem promises of every step holds of the lower ends, intervals included
    lower = np.where(lower < upper, lower * (1 + WIDENED), lower)
    everywhere = np.full(len(steps), np.inf)
    if rule.name == "greedy":
        at_least(lower, bounds.greedy_lower(p0 - b), gaps)
        at_least(lower, bounds.pinsker(p0 - b), gaps)
    elif rule.name == "additive":
        at_least(
            lower, np.full(len(steps), bounds.additive_lower(rule.parameters["t"])), everywhere
        )
    elif rule.name == "multiplicative":
        at_least(lower, bounds.multiplicative_lower(p0, rule.parameters["alpha"]), everywhere)
    elif rule.name == "typical":
        theta = np.minimum(0.1, 0.09 * np.exp(-steps.entropy))
        at_least(lower, bounds.two_token(p0, theta), everywhere)


@pytest.mark.parametrize("m", M)
def test_bounds_of_trees(m: int, steps: TopK, found: Certificates) -> None:
    lower, upper = of(found, Tree(m))
    p0, gamma = steps.probs[:, 0], steps.probs[:, 0] - steps.probs[:, m]
    assert (lower == upper).all()
    at_least(lower, bounds.tree_lower(gamma, m), gap(steps, np.full(len(steps), m)))
    assert (upper <= bounds.tree_upper(p0, m) * (1 + ROUNDING)).all()
    assert (upper < bounds.tree_ceiling(m)).all()


def never_falls(chain: list[Rule], found: Certificates) -> None:
    """Assert that certificates do not fall along a chain of rules that accept more and more.

    An interval may reach below the one before it, but not wholly: upper >= the lower before it.
    Where both are exact this is R >= R.
    """
    for one, next_ in itertools.pairwise(chain):
        assert (of(found, one)[0] <= of(found, next_)[1] * (1 + ROUNDING)).all(), (one, next_)


def test_certificates_grow_with_what_is_accepted(found: Certificates) -> None:
    never_falls([StrictGreedy(), *map(Additive, T)], found)
    never_falls([StrictGreedy(), *map(Multiplicative, ALPHA)], found)
    never_falls([StrictGreedy(), *map(Tree, M)], found)
    for t in T:
        never_falls([*(TopMAdditive(m, t) for m in MIXED), Additive(t)], found)
    for alpha in ALPHA:
        never_falls([*(TopMMultiplicative(m, alpha) for m in MIXED), Multiplicative(alpha)], found)
    for m in MIXED:
        never_falls([StrictGreedy(), *(TopMAdditive(m, t) for t in T)], found)
        never_falls([StrictGreedy(), *(TopMMultiplicative(m, a) for a in ALPHA)], found)


@pytest.mark.parametrize("m", MIXED)
def test_a_mixed_rule_is_the_smaller_of_its_parts(m: int, found: Certificates) -> None:
    """It rejects what either part rejects, and the best rejected token decides."""
    top_m = of(found, TopMAdditive(m, 1.0))[0]
    for mixed_rule, part in [
        *((TopMAdditive(m, t), Additive(t)) for t in T),
        *((TopMMultiplicative(m, alpha), Multiplicative(alpha)) for alpha in ALPHA),
    ]:
        (mixed, same), (lower, upper) = of(found, mixed_rule), of(found, part)
        assert (mixed == same).all()
        assert (mixed <= upper * (1 + ROUNDING)).all()
        assert (mixed <= top_m * (1 + ROUNDING)).all()
        threshold = mixed < top_m
        np.testing.assert_allclose(mixed[threshold], lower[threshold], rtol=ROUNDING)


def test_a_tree_of_width_one_is_strict_greedy(found: Certificates) -> None:
    np.testing.assert_allclose(of(found, Tree(1))[0], of(found, StrictGreedy())[0], rtol=1e-12)

"""The closed forms that the paper gives for each rule, over steps whose certificate is exact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch
from typing import NamedTuple

import numpy as np

from ...certificates import bounds
from ...rules import (
    Additive,
    Multiplicative,
    Rule,
    StrictGreedy,
    TopMAdditive,
    TopMMultiplicative,
    Tree,
    Typical,
)
from ...topk import Floats


@dataclass(frozen=True)
class Compared:
    """Steps of one target at which one rule's certificate is exact and finite.

    Attributes:
        rule: one that `has_closed_form`.
        total: number of all steps of the target.
        certificate: (N,) nats.
        active_size: (N,) |A|.
        p0: (N,) probability of the argmax.
        b: (N,) probability of the first rejected token; of rank m + 1 for a tree.
        theta: (N,) the rule's threshold on probabilities, NaN for strict greedy and trees.
    """

    rule: Rule
    total: int
    certificate: Floats
    active_size: Floats
    p0: Floats
    b: Floats
    theta: Floats


class Bound(NamedTuple):
    """A closed form over steps; `kind` is lower, upper or asymptotic (then it bounds nothing)."""

    name: str
    kind: str
    values: Floats


def closed_forms(steps: Compared) -> Iterator[Bound]:
    """Yield every closed form of `bounds` that applies to the rule, (N,) each.

    The first bound from below is the value form of Lemma 4.5 (a tree has none), the next one the
    rule's own theorem or corollary; the first ones from above are those that the table prints.
    """
    rule, p0, b = steps.rule, steps.p0, steps.b
    if isinstance(rule, Tree):
        yield from own_forms(rule, steps)
        return
    yield Bound("lemma 4.5", "lower", bounds.two_token(p0, b))
    yield from own_forms(rule, steps)
    yield Bound("lemma 4.5 polynomial", "lower", bounds.two_token_polynomial(p0, b))
    yield Bound("log(1 + p0 - b) - b log(p0/b)", "upper", bounds.single_upper(p0, b))
    yield Bound("theorem 4.6", "upper", bounds.ceiling(steps.active_size))
    yield Bound("log 2", "upper", np.full_like(p0, rule.ceiling))
    if rule == StrictGreedy():  # R is G(p0, p1) but for ties, and Lemma A.1 bounds its g
        s = p0 + b
        yield Bound("lemma A.1", "upper", s * bounds.g_upper((p0 - b) / s))


@singledispatch
def own_forms(rule: Rule, _steps: Compared) -> Iterator[Bound]:
    """Yield what the paper says of this rule in particular."""
    raise NotImplementedError(f"the paper gives no closed form for rule {rule.label!r}")


def has_closed_form(rule: Rule) -> bool:
    """Whether the paper has a closed form for a rule; it has none for a user's own.

    A user's rule may derive from one of the paper's and accept otherwise.
    """
    return not rule.own and own_forms.dispatch(type(rule)) is not own_forms.dispatch(object)


@own_forms.register
def _greedy(_rule: StrictGreedy, steps: Compared) -> Iterator[Bound]:
    yield Bound("theorem 4.9", "lower", bounds.g(steps.p0 - steps.b))
    yield Bound("proposition 4.8", "lower", bounds.pinsker(steps.p0 - steps.b))


@own_forms.register
def _additive(rule: Additive, steps: Compared) -> Iterator[Bound]:
    t = np.full_like(steps.p0, rule.t)
    yield Bound("theorem 4.11", "lower", bounds.g(t))
    yield Bound("theorem 4.11 polynomial", "lower", bounds.g_lower(t))
    threshold_form = bounds.two_token(steps.p0, np.minimum(steps.theta, steps.p0))
    yield Bound("lemma 4.5 threshold form", "lower", threshold_form)


@own_forms.register
def _multiplicative(rule: Multiplicative, steps: Compared) -> Iterator[Bound]:
    alpha = rule.alpha
    yield Bound("theorem 4.13", "lower", bounds.multiplicative_lower(steps.p0, alpha))
    series = bounds.multiplicative_lower_series(steps.p0, alpha)
    yield Bound("theorem 4.13 series", "asymptotic", series)


@own_forms.register(TopMAdditive)
@own_forms.register(TopMMultiplicative)
def _top_m(_rule: Rule, steps: Compared) -> Iterator[Bound]:
    return _threshold_forms("corollary 4.14", steps)


@own_forms.register
def _typical(_rule: Typical, steps: Compared) -> Iterator[Bound]:
    return _threshold_forms("corollary 4.15", steps)


def _threshold_forms(name: str, steps: Compared) -> Iterator[Bound]:
    # above p0 the argmax is kept, and nothing is promised; a limit on ranks may reject a
    # token above the threshold, whose level is b then
    theta = np.minimum(np.maximum(steps.theta, steps.b), steps.p0)
    yield Bound(name, "lower", bounds.two_token(steps.p0, theta))
    yield Bound(f"{name} polynomial", "lower", bounds.two_token_polynomial(steps.p0, theta))


@own_forms.register
def _tree(rule: Tree, steps: Compared) -> Iterator[Bound]:
    p0, margin, m = steps.p0, steps.p0 - steps.b, rule.m
    yield Bound("theorem 5.2", "lower", bounds.tree_lower(margin, m))
    yield Bound("theorem 5.2 series", "asymptotic", bounds.tree_lower_series(margin, m))
    yield Bound("log(1 + m p0)", "upper", bounds.tree_upper(p0, m))
    yield Bound("theorem 5.3", "upper", np.full_like(p0, bounds.tree_ceiling(m)))

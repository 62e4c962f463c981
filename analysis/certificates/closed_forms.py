"""The paper's closed-form bounds on the certificate R of each rule, and conditions from them.

A closed form bounds R at a step from p0, the probability b of the first rejected token (rank m + 1
for a tree) and the rule's threshold theta. Solved for one quantity, a lower bound is a condition
sufficient for R > eps: strict greedy asks for a margin p0 - p1 above g^-1(eps) at the step,
additive relaxation for a parameter t above it at any step.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .. import rules
from ..topk import Floats, TopK
from . import bounds

# names of the lower bounds that hold for every rule that judges tokens
GENERAL = ("lemma 4.5", "lemma 4.5 threshold form", "lemma 4.5 polynomial")
BELOW_1 = math.nextafter(1.0, 0.0)
SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
# name; lower, upper or asymptotic (which bounds nothing); values (N,), nats
Form = tuple[str, str, Floats]
# name; kind; values (N,) or None; the condition's name of the quantity, quantity and level, or None
Row = tuple[str, str, Floats | None, tuple[str, Floats | float, float] | None]


class Condition(NamedTuple):
    """A closed form solved for a quantity: a step is certified at eps if `quantity` > `level`."""

    name: str  # of the theorem
    # sufficient; asymptotic, as eps goes to 0; or necessary: for every margin up to the level, some
    # target with this margin has a draft within eps that is rejected
    kind: str
    name_of_quantity: str  # as printed
    quantity: Floats | float  # (N,) of each step, or a parameter of the rule
    level: float  # what it has to exceed

    @property
    def met(self) -> float:
        """The share of the steps that meet the condition; 0 or 1 if it is on the rule."""
        return float(np.mean(np.asarray(self.quantity) > self.level))

    @property
    def asks(self) -> str:
        """The condition as printed, with four digits; a sufficient level is rounded up.

        No quantity can exceed 1: they are probabilities, their differences, or at most log 2 nats.
        """
        if not self.level < 1:
            return f"no {self.name_of_quantity} is enough"
        level = self.level
        if self.kind == "sufficient" and level > 0:
            unit = 10.0 ** (math.floor(math.log10(level)) - 3)
            level = math.ceil(level / unit) * unit
        if level >= 1:
            return f"{self.name_of_quantity} = 1"
        return f"{self.name_of_quantity} > {level:.4g}"


def rejected_levels(
    dist: TopK, rule: rules.Rule, accepted_count: NDArray[Any]
) -> tuple[Floats, Floats | float]:
    """Return b, (N,), NaN where it is not stored, and theta, NaN for a rule without threshold.

    b is the probability of the first rejected token, of rank m + 1 for a tree. `accepted_count`
    (N,) is that of `certify`.
    """
    count = np.full(len(dist), rule.m) if isinstance(rule, rules.Tree) else accepted_count
    stored = (count >= 1) & (count < dist.k)
    column = np.where(stored, count, 0)[:, None]
    log_b = np.take_along_axis(dist.log_probs, column, axis=1)[:, 0]
    b = np.where(stored, np.exp(log_b), np.nan)
    threshold = rule.cut(dist)
    return b, math.nan if threshold is None else threshold.theta(dist)


def compared_steps(
    ends: tuple[Floats, Floats],
    active_size: NDArray[Any],
    p0: Floats,
    b: Floats,
    theta: Floats | float,
) -> pd.DataFrame:
    """Return the inputs of a rule's closed forms, one row per step.

    `ends` are the lower and upper ends of `certify`, `active_size` is its |A|; `b` and `theta` are
    of `rejected_levels`.

    Returns:
        certificate, in nats, NaN unless it is exact and finite; active_size; p0; b; theta.
    """
    lower, upper = ends
    return pd.DataFrame(
        {
            "certificate": np.where((lower == upper) & np.isfinite(upper), lower, np.nan),
            "active_size": active_size,
            "p0": p0,
            "b": b,
            "theta": theta,
        }
    )


def closed_forms(
    rule: rules.Rule, steps: pd.DataFrame, eps: float
) -> tuple[list[Form], list[Condition]]:
    """Return the closed forms that apply to a rule, and their conditions for R > eps, in nats.

    For a rule that judges tokens, Lemma 4.5 comes first and the upper bounds come last, as they
    hold for all of them. Between them is the theorem or corollary on the rule's family, whose
    condition comes first; a rule without one has the condition of the threshold form of Lemma 4.5.
    The level of a condition is NaN or infinite if no value is enough. `steps` are of
    `compared_steps`.

    >>> columns = {"p0": [0.9, 0.5], "b": [0.1, 0.3], "theta": [0.6, 0.2], "active_size": 2}
    >>> _, conditions = closed_forms(rules.Additive(0.3), pd.DataFrame(columns), 0.05)
    >>> [condition.asks for condition in conditions]
    ['t > 0.3136', 't > 0.3136']
    >>> _, conditions = closed_forms(rules.Tree(2), pd.DataFrame(columns), 0.05)
    >>> conditions[0].asks
    'p₀ − p₂ > 0.2566'
    """
    rows = _rows(rule, steps, eps)
    forms = [(name, kind, values) for name, kind, values, _ in rows if values is not None]
    conditions = [
        Condition(name, "sufficient" if kind == "lower" else kind, *condition)
        for name, kind, _, condition in rows
        if condition is not None
    ]
    return forms, conditions


def _rows(rule: rules.Rule, steps: pd.DataFrame, eps: float) -> list[Row]:
    """Return the closed forms of a rule, each with its condition for R > eps."""
    p0, b, theta = (steps[name].to_numpy() for name in ("p0", "b", "theta"))
    if isinstance(rule, rules.Tree):
        return _tree_rows(rule.m, p0, p0 - b, eps)
    # a limit on ranks may reject a token above theta, so b counts if it is larger; a theta above p0
    # accepts the argmax alone, and the bound is 0
    theta = np.minimum(np.fmax(theta, b), p0)
    family = [] if rule.is_custom else _family_rows(rule, p0, b, theta, eps)
    form = bounds.two_token(p0, theta)
    of_two, of_threshold, polynomial = GENERAL
    rows: list[Row] = [
        (of_two, "lower", bounds.two_token(p0, b), None),
        (of_threshold, "lower", form, None if family else ("G(p₀, θ)", form, eps)),
        *family,
        (polynomial, "lower", bounds.two_token_polynomial(p0, b), None),
        ("log(1 + p0 - b) - b log(p0/b)", "upper", bounds.single_upper(p0, b), None),
        ("theorem 4.6", "upper", bounds.ceiling(steps["active_size"].to_numpy()), None),
        ("log 2", "upper", np.full_like(p0, rule.ceiling), None),
    ]
    if rule == rules.StrictGreedy():  # ties aside R = G(p0, p1), and Lemma A.1 bounds its g
        s = p0 + b
        rows.append(("lemma A.1", "upper", s * bounds.g_upper((p0 - b) / s), None))
    return rows


def _tree_rows(m: int, p0: Floats, margin: Floats, eps: float) -> list[Row]:
    name = f"p₀ − p{m}".translate(SUBSCRIPTS)
    first_term = math.sqrt(4 * eps / (m + 1))
    level = float(bounds.tree_inverse(eps, m))
    series = bounds.tree_lower_series(margin, m)
    return [
        ("theorem 5.2", "lower", bounds.tree_lower(margin, m), (name, margin, level)),
        ("theorem 5.2 series", "asymptotic", series, None),
        ("theorem 5.2 first term", "asymptotic", None, (name, margin, first_term)),
        ("log(1 + m p0)", "upper", bounds.tree_upper(p0, m), None),
        ("theorem 5.3", "upper", np.full_like(p0, bounds.tree_ceiling(m)), None),
    ]


def _family_rows(rule: rules.Rule, p0: Floats, b: Floats, theta: Floats, eps: float) -> list[Row]:
    inverse = float(bounds.g_inverse(eps))
    series = float(bounds.g_inverse_series(eps))
    match rule:
        case rules.StrictGreedy():
            name = "p₀ − p₁"
            margin = p0 - b
            pinsker = float(bounds.pinsker_margin(eps))
            necessary = float(bounds.greedy_necessary_margin(eps))
            return [
                ("theorem 4.9", "lower", bounds.g(margin), (name, margin, inverse)),
                ("proposition 4.8", "lower", bounds.pinsker(margin), (name, margin, pinsker)),
                ("lemma A.2", "asymptotic", None, (name, margin, series)),
                ("theorem 4.9 (ii)", "necessary", None, (name, margin, necessary)),
            ]
        case rules.Additive(t=t):
            at_every_step = np.full_like(p0, t)
            level = inverse if inverse < 1 else BELOW_1  # t = 1 rejects no token with p > 0
            return [
                ("theorem 4.11", "lower", bounds.g(at_every_step), ("t", t, level)),
                ("theorem 4.11 polynomial", "lower", bounds.g_lower(at_every_step), None),
                ("lemma A.2", "asymptotic", None, ("t", t, series)),
            ]
        case rules.Multiplicative(alpha=alpha):
            largest = float(bounds.multiplicative_lower(1.0, alpha))  # at p0 = 1
            level = eps / largest if eps < largest else math.inf
            expansion = bounds.multiplicative_lower_series(p0, alpha)
            form = bounds.multiplicative_lower(p0, alpha)
            return [
                ("theorem 4.13", "lower", form, ("p₀", p0, level)),
                ("theorem 4.13 series", "asymptotic", expansion, None),
            ]
        case rules.TopMAdditive() | rules.TopMMultiplicative() | rules.Typical():
            name = "corollary 4.15" if isinstance(rule, rules.Typical) else "corollary 4.14"
            form = bounds.two_token(p0, theta)
            polynomial = bounds.two_token_polynomial(p0, theta)
            return [
                (name, "lower", form, ("G(p₀, θ)", form, eps)),
                (f"{name} polynomial", "lower", polynomial, None),
            ]
    return []

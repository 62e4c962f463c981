"""Certificates compared with the paper's closed forms, and the share of exact certificates.

A closed form is compared at the steps whose certificate is exact and finite. The steps of a rule
are a frame with one row for each step: `certificate`, NaN unless it is exact and finite;
`active_size`, |A|; `p0`, the probability of the argmax; `b`, the probability of the first rejected
token (rank m + 1 for a tree), NaN if it is not stored; `theta`, the rule's threshold on
probabilities, NaN for strict greedy and trees.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

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
from ..measured import Certified
from ..records import Table, together, worded

CLOSED = (
    StrictGreedy,
    Additive,
    Multiplicative,
    TopMAdditive,
    TopMMultiplicative,
    Typical,
    Tree,
)  # rules with a closed form in the paper
PRINTED = ("R", "G", "Form", "R/G", "R/Form", "Upper", "(2/k) log 2", "Ceiling")  # columns
Form = tuple[str, str, Floats]  # name; lower, upper or asymptotic (not a bound); values
RuleSteps = tuple[Rule, pd.DataFrame]


def has_closed_form(rule: Rule) -> bool:
    """Whether the paper has a closed form for a rule; never for a user's rule.

    A user's rule may be a subclass of one of the paper's and accept other tokens.
    """
    return not rule.own and isinstance(rule, CLOSED)


def closed_forms(rule: Rule, steps: pd.DataFrame) -> list[Form]:
    """Return every closed form of `bounds` for a rule, (N,) each.

    The first lower bound is the value form of Lemma 4.5 (not for a tree), the next one the rule's
    own theorem or corollary. The table prints the first upper bounds.
    """
    active_size, p0, b, theta = (
        steps[name].to_numpy() for name in ("active_size", "p0", "b", "theta")
    )
    own = _own_forms(rule, p0, b, theta)
    if isinstance(rule, Tree):
        return own
    forms: list[Form] = [
        ("lemma 4.5", "lower", bounds.two_token(p0, b)),
        *own,
        ("lemma 4.5 polynomial", "lower", bounds.two_token_polynomial(p0, b)),
        ("log(1 + p0 - b) - b log(p0/b)", "upper", bounds.single_upper(p0, b)),
        ("theorem 4.6", "upper", bounds.ceiling(active_size)),
        ("log 2", "upper", np.full_like(p0, rule.ceiling)),
    ]
    if rule == StrictGreedy():  # R = G(p0, p1), ties aside, and Lemma A.1 bounds its g
        s = p0 + b
        forms.append(("lemma A.1", "upper", s * bounds.g_upper((p0 - b) / s)))
    return forms


def _own_forms(rule: Rule, p0: Floats, b: Floats, theta: Floats) -> list[Form]:
    """Return the closed forms specific to the rule."""
    match rule:
        case Tree(m=m):
            return [
                ("theorem 5.2", "lower", bounds.tree_lower(p0 - b, m)),
                ("theorem 5.2 series", "asymptotic", bounds.tree_lower_series(p0 - b, m)),
                ("log(1 + m p0)", "upper", bounds.tree_upper(p0, m)),
                ("theorem 5.3", "upper", np.full_like(p0, bounds.tree_ceiling(m))),
            ]
        case StrictGreedy():
            return [
                ("theorem 4.9", "lower", bounds.g(p0 - b)),
                ("proposition 4.8", "lower", bounds.pinsker(p0 - b)),
            ]
        case Additive(t=t):
            whole = np.full_like(p0, t)
            threshold = bounds.two_token(p0, np.minimum(theta, p0))
            return [
                ("theorem 4.11", "lower", bounds.g(whole)),
                ("theorem 4.11 polynomial", "lower", bounds.g_lower(whole)),
                ("lemma 4.5 threshold form", "lower", threshold),
            ]
        case Multiplicative(alpha=alpha):
            series = bounds.multiplicative_lower_series(p0, alpha)
            return [
                ("theorem 4.13", "lower", bounds.multiplicative_lower(p0, alpha)),
                ("theorem 4.13 series", "asymptotic", series),
            ]
    name = "corollary 4.15" if isinstance(rule, Typical) else "corollary 4.14"
    # a threshold above p0 still accepts the argmax and guarantees nothing; a limit on ranks may
    # reject a token above the threshold, and b replaces the threshold then
    theta = np.minimum(np.maximum(theta, b), p0)
    return [
        (name, "lower", bounds.two_token(p0, theta)),
        (f"{name} polynomial", "lower", bounds.two_token_polynomial(p0, theta)),
    ]


def bounds_table(targets: Mapping[str, Sequence[RuleSteps]]) -> Table | None:
    """Return the comparison of exact certificates with closed forms; None if no rule has one.

    Args:
        targets: rules with a closed form and their steps, by printed name of the target.
    """
    frames_by_target = {
        target: [_bound_rows(*item) for item in items] for target, items in targets.items()
    }
    if not any(frames_by_target.values()):
        return None
    shown = {
        target: pd.DataFrame(map(_printed, frames)) for target, frames in frames_by_target.items()
    }
    return Table(
        **worded("bounds"),
        data=together(
            {target: pd.concat(frames) for target, frames in frames_by_target.items() if frames}
        ),
        shown=together(shown),
        names={rule.label: rule.title for items in targets.values() for rule, _ in items},
    )


def _bound_rows(rule: Rule, steps: pd.DataFrame) -> pd.DataFrame:
    compared = steps.dropna(subset=["certificate", "b"])
    r = compared["certificate"].to_numpy()
    rows = []
    for name, kind, values in closed_forms(rule, compared):
        above, below = (values, r) if kind == "upper" else (r, values)
        usable = (below > 0) & (above > 0)
        rows.append(
            {
                "rule": rule.label,
                "bound": name,
                "kind": kind,
                "median": median(values),
                "certificate": median(r),
                "ratio": float(np.min(above[usable] / below[usable])) if any(usable) else math.nan,
                "compared": len(r) / len(steps),
                "steps": len(steps),
            }
        )
    return pd.DataFrame(rows)


def _printed(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the printed row of a rule's closed forms."""
    of_kind = frame.set_index("kind")
    medians, ratios = (
        {kind: [*of_kind.loc[[kind], name]] for kind in ("lower", "upper")}
        for name in ("median", "ratio")
    )
    upper = medians["upper"]
    if len(upper) == 2:  # a tree has neither a value form nor the bound by active tokens
        medians["lower"].insert(0, math.nan)
        ratios["lower"].insert(0, math.nan)
        upper.insert(1, math.nan)
    values = [frame["certificate"].iloc[0], *medians["lower"][:2], *ratios["lower"][:2], *upper[:3]]
    return {"rule": frame["rule"].iloc[0], **dict(zip(PRINTED, values, strict=True))}


def median(values: Floats) -> float:
    """Return the smallest value that half of the (N,) values do not exceed; NaN if there is none.

    >>> median(np.array([3.0, 1.0, 2.0, 9.0]))
    2.0
    """
    return float(np.quantile(values, 0.5, method="inverted_cdf")) if len(values) else math.nan


def determined_table(panels: Mapping[str, Certified]) -> Table:
    """Return the shares of exact, empty and unbounded certificates, by rule and target."""
    rows = []
    for target, items in panels.items():
        for rule, (lower, upper) in items.items():
            exact, bounded = lower == upper, np.isfinite(upper)
            widths = upper[bounded] - lower[bounded]
            rows.append(
                {
                    "target": target,
                    "rule": rule.label,
                    "determined": float(np.mean(exact)),
                    "empty": float(np.mean(np.isinf(lower))),
                    "widest": float(np.max(widths, initial=0.0)),
                    "unbounded": float(np.mean(~exact & ~bounded)),
                    "steps": len(lower),
                }
            )
    data = pd.DataFrame(rows)
    return Table(
        **worded("determined", list(panels)),
        data=data,
        shown=data.replace({"widest": {0.0: math.nan}, "unbounded": {0.0: math.nan}}),
        names={rule.label: rule.title for items in panels.values() for rule in items},
    )

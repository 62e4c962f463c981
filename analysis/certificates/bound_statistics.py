"""How tight the paper's `closed_forms` are, and how many steps they certify.

They are compared with the certificates over the steps whose certificate is exact and finite and
whose first rejected token is stored.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from ..rules import Rule
from ..topk import Floats
from .closed_forms import closed_forms


def bound_statistics(rule: Rule, steps: pd.DataFrame, eps: float) -> pd.DataFrame:
    """Return how tight the closed forms of a rule are, and which conditions they give at eps.

    Args:
        rule: the rule.
        steps: of `closed_forms.compared_steps`.
        eps: in nats; a step is certified if R > eps.

    Returns:
        One row for each closed form, then one for each of their conditions: rule, its label; bound,
        the name of the closed form; kind (lower, upper, asymptotic, sufficient or necessary);
        median of the closed form and `certificate`, the median certificate, in nats; ratio, the
        least ratio over the steps of the larger to the smaller of the two, 1 if the bound is
        attained; eps; asks, the condition in words, and its level; certified, the share of steps
        that the bound or condition certifies; exact, the share that the certificates certify;
        compared, the share of steps that are compared; steps, the number of all.
    """
    is_compared = steps["certificate"].notna() & steps["b"].notna()
    compared = steps if is_compared.all() else steps[is_compared]  # without a copy, if it can be
    certificate = compared["certificate"].to_numpy()
    forms, conditions = closed_forms(rule, compared, eps)
    rows: list[dict[str, Any]] = []
    for name, kind, values in forms:
        is_upper = kind == "upper"
        ratio = _least_ratio(values, certificate) if is_upper else _least_ratio(certificate, values)
        rows.append(
            {
                "bound": name,
                "kind": kind,
                "median": _median(values),
                "ratio": ratio,
                "certified": math.nan if is_upper else _share(values > eps),
            }
        )
    rows += [
        {
            "bound": condition.name,
            "kind": condition.kind,
            "asks": condition.asks,
            "level": condition.level,
            "certified": condition.met if len(certificate) else math.nan,
        }
        for condition in conditions
    ]
    frame = pd.DataFrame(rows).assign(
        rule=rule.label,
        eps=eps,
        certificate=_median(certificate),
        exact=_share(certificate > eps),
        compared=len(certificate) / len(steps),
        steps=len(steps),
    )
    keys = ["rule", "bound", "kind", "median", "certificate", "ratio"]
    return frame[[*keys, "eps", "asks", "level", "certified", "exact", "compared", "steps"]]


def _least_ratio(above: Floats, below: Floats) -> float:
    positive = (below > 0) & (above > 0)
    if not positive.any():
        return math.nan
    return float(np.min(above[positive] / below[positive]))


def _share(flags: np.ndarray) -> float:
    return float(np.mean(flags)) if len(flags) else math.nan


def _median(values: Floats) -> float:
    """Return the smallest value that half of the (N,) values do not exceed; NaN of none."""
    return float(np.quantile(values, 0.5, method="inverted_cdf")) if len(values) else math.nan

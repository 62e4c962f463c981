"""Statistics of certificates beside the paper's `closed_forms`.

They are compared over the steps whose certificate is exact and finite and whose first rejected
token is stored.
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
    """Return how tight the closed forms of a rule are, and what they ask for at eps.

    Args:
        rule: the rule.
        steps: of `closed_forms.compared_steps`.
        eps: in nats, at which the closed forms are turned round and certified steps are counted.

    Returns:
        One row for each closed form, and for each condition of a theorem that certifies at eps:
        rule (its label), bound (its name), kind (lower, upper or sufficient); median of the closed
        form and `certificate`, the median certificate, in nats; ratio, the least ratio of the
        larger to the smaller of the two, 1 where the bound is tight; eps; asks, the condition in
        words, and its level; certified, the share of steps that the bound or condition certifies;
        exact, the share that the certificates certify; compared, the share of compared steps;
        steps.
    """
    compared = steps.dropna(subset=["certificate", "b"])
    certificate = compared["certificate"].to_numpy()
    forms, conditions = closed_forms(rule, compared, eps)
    rows: list[dict[str, Any]] = []
    for name, kind, values in forms:
        is_upper = kind == "upper"
        above, below = (values, certificate) if is_upper else (certificate, values)
        rows.append(
            {
                "bound": name,
                "kind": kind,
                "median": _median(values),
                "ratio": _least_ratio(above, below),
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

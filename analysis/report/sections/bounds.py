"""Certificates beside the paper's closed forms (`analysis.certificates.closed_forms`).

They are compared over the steps whose certificate is exact and finite and whose first rejected
token is stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...certificates.closed_forms import closed_forms, conditions
from ...rules import Rule
from ...topk import Floats
from ..measured import Certified
from ..records import Table, together, worded

RuleSteps = tuple[Rule, pd.DataFrame]


def bounds_table(targets: Mapping[str, Sequence[RuleSteps]], eps: float) -> Table | None:
    """Compare exact certificates with the closed forms; None where no rule has one.

    Args:
        targets: the rules and their steps (`compared_steps`), by printed name of the target.
        eps: KL at which the closed forms are turned round, and the certified steps are counted.
    """
    frames = {
        target: [_bound_rows(*item, eps) for item in items] for target, items in targets.items()
    }
    if not any(frames.values()):
        return None
    shown = {target: pd.DataFrame(map(_printed, rows)) for target, rows in frames.items()}
    return Table(
        **worded("bounds", eps=f"{eps:g}"),
        data=together({target: pd.concat(rows) for target, rows in frames.items() if rows}),
        shown=together(shown),
        names={rule.label: rule.title for items in targets.values() for rule, _ in items},
    )


def _bound_rows(rule: Rule, steps: pd.DataFrame, eps: float) -> pd.DataFrame:
    compared = steps.dropna(subset=["certificate", "b"])
    r = compared["certificate"].to_numpy()
    rows: list[dict[str, Any]] = []
    for name, kind, values in closed_forms(rule, compared):
        above, below = (values, r) if kind == "upper" else (r, values)
        usable = (below > 0) & (above > 0)
        least = float(np.min(above[usable] / below[usable])) if any(usable) else math.nan
        certified = math.nan if kind == "upper" else share(values > eps)
        row: dict[str, Any] = {"median": median(values), "ratio": least, "certified": certified}
        rows.append({"bound": name, "kind": kind, **row})
    for condition in conditions(rule, compared, eps):
        certified = condition.met if len(r) else math.nan
        row = {"asks": condition.asks, "level": condition.level, "certified": certified}
        rows.append({"bound": condition.name, "kind": condition.kind, **row})
    frame = pd.DataFrame(rows).assign(rule=rule.label, eps=eps, certificate=median(r))
    frame = frame.assign(exact=share(r > eps), compared=len(r) / len(steps), steps=len(steps))
    keys = ["rule", "bound", "kind", "median", "certificate", "ratio"]
    return frame[[*keys, "eps", "asks", "level", "certified", "exact", "compared", "steps"]]


def _printed(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the printed row of a rule's closed forms."""
    lower, upper, wanted = (
        frame[frame["kind"] == kind].set_index("bound") for kind in ("lower", "upper", "sufficient")
    )
    own = next((name for name in lower.index if not name.startswith("lemma")), None)
    value, threshold, theorem = (
        lower.loc[name] if name in lower.index else dict.fromkeys(lower.columns, math.nan)
        for name in ("lemma 4.5", "lemma 4.5 threshold form", own)
    )
    # a tree has no count of active tokens
    tops = [*upper["median"]]
    nearest, by_size, ceiling = tops[:3] if len(tops) > 2 else (tops[0], math.nan, tops[1])
    return {
        "rule": frame["rule"].iloc[0],
        "R": frame["certificate"].iloc[0],
        "G": value["median"],
        "threshold": threshold["median"],
        "form": theorem["median"],
        "R/G": value["ratio"],
        "R/form": theorem["ratio"],
        "exact": frame["exact"].iloc[0],
        "asks": wanted["asks"].iloc[0],
        "certified": wanted["certified"].iloc[0],
        "upper": nearest,
        "by_size": by_size,
        "ceiling": ceiling,
    }


def share(flags: np.ndarray) -> float:
    """Return the share of (N,) flags that are set; NaN of none."""
    return float(np.mean(flags)) if len(flags) else math.nan


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

"""Certificates beside the paper's closed forms (`analysis.certificates.closed_forms`).

They are compared over the steps whose certificate is exact and finite and whose first rejected
token is stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from ..certificates.closed_forms import closed_forms
from ..rules import Rule
from ..topk import Floats
from .table import Table, concat_targets
from .text import decimals, number_text, percent_text

RuleSteps = tuple[Rule, pd.DataFrame]
COMPARED_AT = 0.1  # nats: what is shown at one level is at the nearest to it
NUMBERS = {  # columns of medians and of ratios: heading
    ("", "R"): "R",
    ("from below", "G(p₀, b)"): "value",
    ("from below", "G(p₀, θ)"): "threshold",
    ("from below", "theorem"): "theorem",
    ("least ratio", "R/G(p₀, b)"): "value_ratio",
    ("least ratio", "R/theorem"): "theorem_ratio",
    ("from above", "upper"): "upper",
    ("from above", "ceiling"): "ceiling",
}


def compared_level(levels: Iterable[float]) -> float:
    """Return the level of eps nearest to `COMPARED_AT`."""
    return min(sorted(set(levels)), key=lambda level: abs(level - COMPARED_AT))


def bounds_table(targets: Mapping[str, Iterable[RuleSteps]], eps: float) -> Table | None:
    """Compare exact certificates with the closed forms; None where no rule has one.

    At `eps`, in nats, the closed forms are turned round, and the certified steps are counted.
    """
    frames = [
        (target, rule, _bound_rows(rule, steps, eps))
        for target, items in targets.items()
        for rule, steps in items
    ]
    if not frames:
        return None
    names = [{"target": target, "Criterion": rule.title} for target, rule, _ in frames]
    printed = pd.DataFrame([_printed(rows) for *_, rows in frames])
    columns: dict[Any, Any] = {}
    for heading, name in NUMBERS.items():
        digits = decimals(printed[name])
        columns[heading] = [number_text(value, digits) for value in printed[name]]
    above = f"certified at ε = {eps:g}"
    columns[above, "R > ε"] = printed["exact"].map(percent_text)
    columns[above, "asks for"] = printed["asks"]
    columns[above, "met"] = printed["certified"].map(percent_text)
    return Table(
        "bounds",
        "Certificates and their bounds",
        "Exact certificates R beside the paper's closed forms, medians in nats: from below Lemma "
        "4.5 with the first rejected probability b and with the threshold θ, and the rule's "
        "theorem; the least ratio is 1 where a bound is tight. What the theorem asks for R > ε, "
        "and the share of steps that meet it.",
        concat_targets((target, rows) for target, _, rows in frames),
        pd.DataFrame(columns).set_axis(pd.MultiIndex.from_frame(pd.DataFrame(names))),
    )


def _bound_rows(rule: Rule, steps: pd.DataFrame, eps: float) -> pd.DataFrame:
    """Return the closed forms of a rule, and what they ask for, over its compared steps."""
    compared = steps.dropna(subset=["certificate", "b"])
    r = compared["certificate"].to_numpy()
    rows: list[dict[str, Any]] = []
    forms, conditions = closed_forms(rule, compared, eps)
    for name, kind, values in forms:
        above, below = (values, r) if kind == "upper" else (r, values)
        usable = (below > 0) & (above > 0)
        least = float(np.min(above[usable] / below[usable])) if any(usable) else math.nan
        certified = math.nan if kind == "upper" else share(values > eps)
        row: dict[str, Any] = {"median": median(values), "ratio": least, "certified": certified}
        rows.append({"bound": name, "kind": kind, **row})
    for condition in conditions:
        certified = condition.met if len(r) else math.nan
        row = {"asks": condition.asks, "level": condition.level, "certified": certified}
        rows.append({"bound": condition.name, "kind": condition.kind, **row})
    frame = pd.DataFrame(rows).assign(rule=rule.label, eps=eps, certificate=median(r))
    frame = frame.assign(exact=share(r > eps), compared=len(r) / len(steps), steps=len(steps))
    keys = ["rule", "bound", "kind", "median", "certificate", "ratio"]
    return frame[[*keys, "eps", "asks", "level", "certified", "exact", "compared", "steps"]]


def _printed(frame: pd.DataFrame) -> dict[str, Any]:
    lower, upper, wanted = (
        frame[frame["kind"] == kind].set_index("bound") for kind in ("lower", "upper", "sufficient")
    )
    theorem = [name for name in lower.index if not name.startswith("lemma")]
    lower = lower.reindex(["lemma 4.5", "lemma 4.5 threshold form", *(theorem or [""])[:1]])
    value, threshold, own = lower[["median", "ratio"]].to_dict("records")
    return {
        "R": frame["certificate"].iloc[0],
        "value": value["median"],
        "threshold": threshold["median"],
        "theorem": own["median"],
        "value_ratio": value["ratio"],
        "theorem_ratio": own["ratio"],
        "exact": frame["exact"].iloc[0],
        "asks": wanted["asks"].iloc[0],
        "certified": wanted["certified"].iloc[0],
        "upper": upper["median"].iloc[0],
        "ceiling": upper["median"].drop("lemma A.1", errors="ignore").iloc[-1],
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

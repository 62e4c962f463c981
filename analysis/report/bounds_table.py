"""The table of certificates beside the paper's closed forms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from ..certificates.bound_statistics import bound_statistics
from ..rules import Rule
from .table import Table, concat_targets
from .text import decimals, number_text, percent_text

RuleSteps = tuple[Rule, pd.DataFrame]
COMPARED_AT = 0.1  # nats: a table that shows one level shows the nearest to this
NUMBERS = {  # columns of medians and of ratios: heading and number
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
    """Return the table of `bound_statistics` at eps, in nats; None without a closed form."""
    frames = [
        (target, rule, bound_statistics(rule, steps, eps))
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


def _printed(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the numbers that are printed of a rule's `bound_statistics`."""
    lower, upper, wanted = (
        frame[frame["kind"] == kind].set_index("bound") for kind in ("lower", "upper", "sufficient")
    )
    theorems = [name for name in lower.index if not name.startswith("lemma")]
    theorem_name = theorems[0] if theorems else ""
    lower = lower.reindex(["lemma 4.5", "lemma 4.5 threshold form", theorem_name])
    value, threshold, theorem = lower[["median", "ratio"]].to_dict("records")
    return {
        "R": frame["certificate"].iloc[0],
        "value": value["median"],
        "threshold": threshold["median"],
        "theorem": theorem["median"],
        "value_ratio": value["ratio"],
        "theorem_ratio": theorem["ratio"],
        "exact": frame["exact"].iloc[0],
        "asks": wanted["asks"].iloc[0],
        "certified": wanted["certified"].iloc[0],
        "upper": upper["median"].iloc[0],
        "ceiling": upper["median"].drop("lemma A.1", errors="ignore").iloc[-1],
    }

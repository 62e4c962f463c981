"""The table of certificates beside the paper's closed forms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from ..certificates.bound_statistics import bound_statistics
from ..certificates.closed_forms import GENERAL
from ..rules import Rule
from .table import Table, concat_targets
from .text import number_text, percent_text

RuleSteps = tuple[Rule, pd.DataFrame]
COMPARED_AT = 0.1  # nats: a table that shows one level shows the nearest to this


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
    at_eps = f"steps with R > {eps:g}"
    columns: dict[Any, Any] = {
        (at_eps, "the theorem asks for"): printed["asks"],
        (at_eps, "steps that meet it"): printed["certified"].map(percent_text),
        (at_eps, "certified"): printed["exact"].map(percent_text),
    }
    for heading, name in {"theorem": "theorem", "R": "R"}.items():
        columns["median, nats", heading] = [number_text(value, 3) for value in printed[name]]
    columns["median, nats", "theorem / R"] = (printed["theorem"] / printed["R"]).map(percent_text)
    return Table(
        "bounds",
        "How far the paper's theorems reach",
        f"A step is certified when its exact certificate R exceeds {eps:g} nats; the rule's "
        "theorem asks for more, so no other steps meet its condition. Medians over steps of the "
        "theorem's lower bound and of R, and how much of R the theorem gives. The other bounds "
        "and levels are in the CSV file.",
        concat_targets((target, rows) for target, _, rows in frames),
        pd.DataFrame(columns).set_axis(pd.MultiIndex.from_frame(pd.DataFrame(names))),
    )


def _printed(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the numbers in the table's row for a rule, from its `bound_statistics`."""
    lower, wanted = (
        frame[frame["kind"] == kind].set_index("bound") for kind in ("lower", "sufficient")
    )
    theorems = [name for name in lower.index if name not in GENERAL]
    theorem_name = theorems[0] if theorems else ""
    return {
        "R": frame["certificate"].iloc[0],
        "theorem": lower["median"].get(theorem_name, math.nan),
        "exact": frame["exact"].iloc[0],
        "asks": wanted["asks"].iloc[0],
        "certified": wanted["certified"].iloc[0],
    }

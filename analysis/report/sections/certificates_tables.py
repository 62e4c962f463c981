"""How far certificates are determined by what is stored, and how near the closed forms come."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...rules import Tree
from ...topk import Floats
from ..measured import Certified, Panels
from ..table import Cell, Section, Table
from ..text import UNDEFINED, digits_text, share_text
from .certificates_bounds import Compared, closed_forms

COLUMNS = ("R", "G", "Form", "R/G", "R/Form", "Upper", "(2/k) log 2", "Ceiling")


def bounds_table(targets: Mapping[str, Sequence[Compared]]) -> Table | None:
    """Compare exact certificates with the closed forms; None where no rule has one.

    Args:
        targets: what is compared, by printed name of the target and in the order of the rules.
    """
    frames, sections = [], []
    for target, items in targets.items():
        frames += [_bound_rows(item).assign(target=target, rule=item.rule.label) for item in items]
        rows = [
            (item.rule.title, _bound_cells(item, frame))
            for item, frame in zip(items, frames[len(frames) - len(items) :], strict=True)
        ]
        sections.append(Section(target, rows))
    if not frames:
        return None
    data = pd.concat(frames, ignore_index=True)
    first = ["target", "rule"]
    return Table(
        "bounds",
        "Certificates and their bounds",
        "Exact certificates R beside closed forms: medians in nats over the steps whose "
        "certificate is exact and finite and whose first rejected token is stored. From below: "
        "G, the value form of Lemma 4.5 (p₀ and the first rejected probability b), and the "
        "rule's own closed form: Theorems 4.9, 4.11, 4.13, Corollaries 4.14, 4.15, Theorem 5.2. "
        "R/G and R/Form are the least ratios over these steps; 1 is tight, and none is below. "
        "From above: log(1+p₀-b) - b log(p₀/b), for trees log(1+m p₀); (2/k) log 2 for k active "
        "tokens (Theorem 4.6); the ceiling log 2 or log(m+1), which is asymptotic: approached as "
        "p₀ goes to 1, never reached.",
        "Criterion",
        [("", 1), ("from below", 2), ("least ratio", 2), ("from above", 3)],
        COLUMNS,
        sections,
        data[[*first, *(name for name in data if name not in first)]],
        [
            "The CSV file has further bounds: the polynomials of the closed forms, Proposition "
            "4.8, the threshold form of Lemma 4.5, the upper half of Lemma A.1 for strict greedy. "
            "It has the share of steps compared, and the expansions of Theorem 4.13 for α near 1 "
            "and of Theorem 5.2 for small margins. These are asymptotic, no bounds: for m > 5 the "
            "first term of the latter exceeds the bound. The column ratio is the least of "
            "R/value, or of value/R for kind upper, over steps where both are above 0."
        ],
    )


def _bound_rows(steps: Compared) -> pd.DataFrame:
    r = steps.certificate
    rows = []
    for bound in closed_forms(steps):
        above, below = (bound.values, r) if bound.kind == "upper" else (r, bound.values)
        usable = (below > 0) & (above > 0)
        rows.append(
            {
                "bound": bound.name,
                "kind": bound.kind,
                "median": median(bound.values),
                "certificate": median(r),
                "ratio": float(np.min(above[usable] / below[usable])) if any(usable) else math.nan,
                "compared": len(r) / steps.total,
                "steps": steps.total,
            }
        )
    return pd.DataFrame(rows)


def _bound_cells(steps: Compared, frame: pd.DataFrame) -> list[Cell]:
    lower, upper = (frame[frame["kind"] == kind].to_dict("records") for kind in ("lower", "upper"))
    none: dict[Hashable, Any] = {"median": math.nan, "ratio": math.nan}
    if isinstance(steps.rule, Tree):  # it has no value form
        lower, upper = [none, *lower], [upper[0], none, *upper[1:]]
    shown = [
        frame["certificate"].iloc[0],
        *(row[column] for column in ("median", "ratio") for row in lower[:2]),
        *(row["median"] for row in upper[:3]),
    ]
    return [Cell(digits_text(value)) for value in shown]


def median(values: Floats) -> float:
    """Return the smallest value that half of the (N,) values do not exceed; NaN of none.

    >>> median(np.array([3.0, 1.0, 2.0, 9.0]))
    2.0
    """
    return float(np.quantile(values, 0.5, method="inverted_cdf")) if len(values) else math.nan


def determined_table(panels: Panels) -> Table:
    """Say, per rule and target, how far the stored tokens determine the certificates."""
    rows, cells = [], {}
    for target, items in panels.items():
        for item in items:
            row = _determined(item)
            rows.append({"target": target, "rule": item.rule.label, **row})
            cells[target, item.rule] = [
                Cell(share_text(row["determined"])),
                Cell(share_text(row["empty"])),
                Cell(f"{row['widest']:.2g}" if row["widest"] > 0 else UNDEFINED),
                Cell(share_text(row["unbounded"]) if row["unbounded"] > 0 else UNDEFINED),
            ]
    rules = [item.rule for item in next(iter(panels.values()))]
    body = [(r.title, [cell for name in panels for cell in cells[name, r]]) for r in rules]
    return Table.side_by_side(
        "determined",
        "What the stored tokens determine",
        "How far the stored tokens determine the certificates. Determined: share of steps whose "
        "certificate is exact. Empty: share at which nothing is rejected for certain, R = +∞. "
        "Widest: of the intervals with two finite ends, the widest, in nats. Open: share of steps "
        "whose upper end is +∞ and whose lower end is not, as everything may be accepted there.",
        "Criterion",
        list(panels),
        ["Determined", "Empty", "Widest", "Open"],
        [Section("", body)],
        pd.DataFrame(rows),
        [f"{UNDEFINED}: there is no such interval."],
    )


def _determined(item: Certified) -> dict[str, float]:
    exact, bounded = item.lower == item.upper, np.isfinite(item.upper)
    return {
        "determined": float(np.mean(exact)),
        "empty": float(np.mean(np.isinf(item.lower))),
        "widest": float(np.max(item.upper[bounded] - item.lower[bounded], initial=0.0)),
        "unbounded": float(np.mean(~exact & ~bounded)),
        "steps": len(item.lower),
    }

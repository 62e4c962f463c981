"""Figures of a drafter's acceptance, one panel a target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from ..rules import Mars
from .dots import dots
from .figure import Figure
from .pairs import Pairs
from .published import TABLE2
from .style import percent, styled

MOST = 10  # rows of a panel
FEWEST = 30  # steps of a bin that is drawn


@styled
def rules_figure(pairs: Pairs) -> Figure:
    """Draw certified and accepted shares with their intervals, a row for each rule."""
    every = pairs.labels("baseline", "criteria")
    rules = [x for x in every if pairs.rules[x] in (*TABLE2, Mars(0.9)) or pairs.rules[x].own]
    rules = (rules if len(rules) > 1 else every)[:MOST]
    kinds = {"certified": "certified", "acceptance": "accepted"}
    drawing, axes = dots(pairs, rules, kinds, pairs.row)
    for axis in axes:
        percent(axis, "x")
        axis.set_xlabel("steps")
    frames = [
        pd.DataFrame({"target": target, "rule": every, **_shares(pairs, target, every, kinds)})
        for target in pairs.targets
    ]
    return Figure(
        "acceptance_rules",
        "Certified and accepted, rule by rule",
        "Share of steps that each rule accepts, and that its certificate promised "
        "to accept for certain, by the lower ends where certificates are intervals. The distance "
        "between them is what the certificate, which holds for every drafter of this KL, cannot "
        "know of this one. Bars: intervals over prompts. The CSV file has the other rules.",
        drawing,
        pd.concat(frames, ignore_index=True),
    )


def _shares(
    pairs: Pairs, target: str, rules: Sequence[str], kinds: Iterable[str]
) -> dict[str, list[float]]:
    columns = {}
    for kind in kinds:
        found = [pairs.row(target, rule, kind) for rule in rules]
        columns[kind] = [row["value"] for row in found]
        columns |= {f"{kind}_{end}": [row[end] for row in found] for end in ("ci_low", "ci_high")}
    return columns

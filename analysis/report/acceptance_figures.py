"""Figures of a drafter's acceptance, one panel a target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from ..rules import Mars
from .dots import dots
from .figure import Figure
from .pairs import Pairs
from .published import TABLE2
from .style import LINES, RULED, TEXT, percent, styled

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


@styled
def profile_figure(pairs: Pairs, profile: pd.DataFrame, rules: Sequence[str]) -> Figure:
    """Draw accepted and, below, certified shares by position and by margin decile.

    Args:
        pairs: the targets and the names of the rules.
        profile: target and the columns of analysis.acceptance.realised.profile.
        rules: labels of the rules drawn.
    """
    kinds = [(target, kind) for target in pairs.targets for kind in ("accepted", "certified")]
    drawing = Drawing(figsize=(TEXT, 0.5 + 1.7 * len(kinds)), layout="constrained")
    axes = drawing.subplots(len(kinds), 2, sharey=True, squeeze=False)
    for row, (target, kind) in zip(axes, kinds, strict=True):
        for axis, by in zip(row, ("position", "margin"), strict=True):
            part = profile[(profile["target"] == target) & (profile["by"] == by)]
            _profile(axis, part, rules, by, kind)
            axis.set_title(f"{target}, {kind}")
            percent(axis, "y")
        row[0].set_ylabel(f"{kind} steps")
    for axis, name in zip(
        axes[-1], ("position in the answer", "decile of the target's margin p₀ − p₁"), strict=True
    ):
        axis.set_xlabel(name)
    colors = [
        Line2D([], [], color=color, linestyle=style, label=pairs.names[rule])
        for (color, style), rule in zip(LINES, rules, strict=False)
    ]
    drawing.legend(handles=colors, loc="outside lower center", ncols=4)
    return Figure(
        "acceptance_profile",
        "Where in an answer, and at which margin",
        "Accepted and certified steps by position in the answer, and by the target's margin "
        f"p₀ − p₁ in deciles. Bins of fewer than {FEWEST} steps are left out; the CSV file has "
        "them, and the number of steps of each.",
        drawing,
        profile[profile["rule"].isin(rules)],
    )


def _profile(axis: Axes, part: pd.DataFrame, rules: Sequence[str], by: str, kind: str) -> None:
    for (color, style), rule in zip(LINES, rules, strict=False):
        lines = part[(part["rule"] == rule) & (part["steps"] >= FEWEST)]
        x = (lines["begin"] + lines["end"]) / 2 if by == "position" else lines["bin"] + 1
        axis.plot(x, lines[kind], linestyle=style, color=color, marker=".", markersize=3)
    axis.set_ylim(-0.03, 1.03)
    axis.grid(axis="y", **RULED)

"""Figures of the section on a drafter's acceptance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ...rules import Mars, StrictGreedy
from ..measured import Results
from ..published import TABLE2
from ..records import Figure, Row, records_of, together, worded
from ..style import (
    BLACK,
    BLUE,
    LINES,
    RULED,
    TEXT,
    VERMILION,
    error_bars,
    grid,
    legend,
    percent,
    styled,
)

GREEDY = StrictGreedy().label
DOTS = ("D", "o", "s", "^", "v")
ROW, APART = 0.3, 0.16  # inches for a rule, and between two of its points
MOST = 10  # rows of a panel


def judged_rules(results: Results) -> list[str]:
    """Return the labels of the rules that drafts were judged by, strict greedy first."""
    return [label for label in results["acceptance"]["rule"].unique() if label in results.rules]


def row_of(results: Results, target: str, rule: str, statistic: str) -> Row:
    """Return the row of a rule's statistic, with NaN if there is none."""
    return results.row(target, rule, statistic, "acceptance")


@styled
def rules_figure(results: Results) -> Figure:
    """Draw the certified and accepted shares of each rule with their intervals."""
    labels = judged_rules(results)
    rules = [x for x in labels if results.rules[x] in (*TABLE2, Mars(0.9)) or results.rules[x].own]
    rules = (rules if len(rules) > 1 else labels)[:MOST]
    kinds = {"certified": "certified", "acceptance": "accepted"}
    drawing, axes = _dots(results, rules, kinds, partial(row_of, results))
    for axis in axes:
        axis.set_xlabel("share of steps")
    rows = [
        {"target": target, "rule": rule}
        | {
            f"{kind}{end and '_'}{end}": row[end or "value"]
            for kind in kinds
            for row in [row_of(results, target, rule, kind)]
            for end in ("", "ci_low", "ci_high")
        }
        for target in results.targets
        for rule in labels
    ]
    return Figure(**worded("acceptance_rules"), data=pd.DataFrame(rows), drawing=drawing)


@styled
def margin_figure(by_target: Mapping[str, pd.DataFrame], rule: str) -> Figure:
    """Draw the accepted share of steps by R - KL.

    Args:
        by_target: `analysis.acceptance.summary.margins` by printed name of the target.
        rule: printed name of the rule.
    """
    drawing, (axes,) = grid(1, list(by_target))
    for axis, frame in zip(axes, by_target.values(), strict=True):
        for place, row in enumerate(records_of(frame)):
            if row["steps"]:
                share = row["accepted"] / row["steps"]
                axis.bar(place, share, color=BLUE if row["low"] >= 0 else VERMILION)
                note = f"{row['steps']:.0f}"
                axis.annotate(note, (place, share), ha="center", va="bottom", fontsize=5)
        axis.axvline((frame["low"] < 0).sum() - 0.5, color=BLACK, linewidth=0.8, linestyle=":")
        names = [margin_text(row) for row in records_of(frame)]
        axis.set_xticks(range(len(frame)), names, rotation=45, ha="right", fontsize=6)
        axis.set(xlabel="R − KL, nats", ylim=(0, 1.08))
        percent(axis, "y")
    axes[0].set_ylabel("accepted, of the steps")
    return Figure(**worded("margins", rule=rule), data=together(by_target), drawing=drawing)


def margin_text(row: Row) -> str:
    """Return the name of a bin of margins.

    >>> margin_text({"low": -0.1, "high": 0.0}), margin_text({"low": 0.5, "high": float("inf")})
    ('−0.1 to 0', 'above 0.5')
    """
    low, high = (f"{end:g}".replace("-", "−") for end in (row["low"], row["high"]))
    if not np.isfinite(row["low"]):
        return f"to {high}"
    return f"{low} to {high}" if np.isfinite(row["high"]) else f"above {low}"


def _dots(
    results: Results,
    rules: Sequence[str],
    kinds: Mapping[str, str],
    row_of: Callable[[str, str, str], Row],
) -> tuple[Drawing, Sequence[Axes]]:
    """Draw a point with an interval for each rule and kind, one panel for each target.

    Args:
        results: the study's results.
        rules: labels of the rules, from the top.
        kinds: printed name of each kind.
        row_of: returns value, ci_low and ci_high of a target, rule and kind.
    """
    size = (TEXT, 1.0 + ROW * len(rules))
    drawing = Drawing(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.1))
    axes = drawing.subplots(1, len(results.targets), sharex=True, sharey=True, squeeze=False)[0]
    heights = np.arange(len(rules))
    for axis, target in zip(axes, results.targets, strict=True):
        for place, (kind, name) in enumerate(kinds.items()):
            rows = [row_of(target, rule, kind) for rule in rules]
            value, low, high = (
                np.array([row[key] for row in rows]) for key in ("value", "ci_low", "ci_high")
            )
            axis.errorbar(
                value,
                heights + APART * (place - (len(kinds) - 1) / 2),
                xerr=error_bars(value, low, high),
                fmt=DOTS[place % len(DOTS)],
                color=LINES[place % len(LINES)][0],
                markersize=3,
                elinewidth=0.7,
                label=name,
            )
        axis.set_title(target)
        axis.grid(axis="x", **RULED)
        axis.set_axisbelow(True)
        percent(axis, "x")
    axes[0].set_yticks(heights, [results.names[rule] for rule in rules], fontsize=6.5)
    axes[0].set_ylim(len(rules) - 0.4, -0.6)
    axes[0].set_xlim(-0.02, 1.02)
    legend(drawing, axes[:1], len(kinds))
    return drawing, axes

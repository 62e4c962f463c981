"""Figures of the section on a drafter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ...rules import Mars, StrictGreedy
from ..measured import Results
from ..published import TABLE2
from ..records import Figure, Row, select, worded
from ..style import (
    BLACK,
    GREY,
    LINES,
    RULED,
    TEXT,
    error_bars,
    family,
    grid,
    legend,
    logarithmic,
    percent,
    rule_colour,
    styled,
)

GREEDY = StrictGreedy().label
MARKERS = "osD^vP*Xh"
DOTS = ("D", "o", "s", "^", "v")
ROW, APART = 0.3, 0.16  # inches of a rule; of that, between two points
MOST = 10  # rows of a panel
COSTS_SHOWN = {  # axis of the figure
    "nats": "log-likelihood given up, nats a token",
    "probability": "probability given up a token",
}


def rules_in(results: Results, *groups: str) -> list[str]:
    """Return the labels of groups of the listing, each label once."""
    listing = results["listing"]
    found = (listing.loc[listing["group"] == group, "rule"] for group in groups)
    return list(dict.fromkeys(label for rules in found for label in rules))


def own_rules(results: Results) -> list[str]:
    """Return the labels of strict greedy and of the study's own rules."""
    return rules_in(results, "baseline", "criteria")


def row_of(results: Results, target: str, rule: str, statistic: str) -> Row:
    """Return the row of a rule's statistic; its numbers are NaN where it does not exist."""
    return results.row(target, rule, statistic, "acceptance")


@styled
def rules_figure(results: Results) -> Figure:
    """Draw certified and accepted shares with their intervals, a row for each rule."""
    every = own_rules(results)
    rules = [x for x in every if results.rules[x] in (*TABLE2, Mars(0.9)) or results.rules[x].own]
    rules = (rules if len(rules) > 1 else every)[:MOST]
    kinds = {"certified": "certified", "acceptance": "accepted"}
    drawing, axes = _dots(results, rules, kinds, partial(row_of, results))
    for axis in axes:
        axis.set_xlabel("steps")
    rows = [
        {"target": target, "rule": rule}
        | {
            f"{kind}{end and '_'}{end}": found[end or "value"]
            for kind in kinds
            for found in [row_of(results, target, rule, kind)]
            for end in ("", "ci_low", "ci_high")
        }
        for target in results.targets
        for rule in every
    ]
    return Figure(**worded("acceptance_rules"), data=pd.DataFrame(rows), drawing=drawing)


@styled
def divergence_figure(
    results: Results, rules: Sequence[str], divergences: Mapping[str, str]
) -> Figure:
    """Draw the coverage of some rules by each divergence and by the union.

    Args:
        results: the study.
        rules: labels of the rules drawn.
        divergences: printed name of each divergence, the union last.
    """
    frame = select(results["breakdown"], depth=0, statistic="coverage").drop(columns="depth")
    found = results.rows("breakdown", "target", "rule", "depth", "divergence", "statistic")
    names = {name: divergences[name] for name in frame["divergence"].unique()}
    drawing, axes = _dots(
        results, rules, names, lambda t, r, name: found[t, r, 0, name, "coverage"], [*names][-1]
    )
    for axis in axes:
        axis.set_xlabel("of accepted steps")
    data = select(frame, rule=rules)
    return Figure(**worded("divergences_figure"), data=data, drawing=drawing)


def _dots(
    results: Results,
    rules: Sequence[str],
    kinds: Mapping[str, str],
    row_of: Callable[[str, str, str], Row],
    last: str = "",
) -> tuple[Drawing, Sequence[Axes]]:
    """Draw a point of each kind for each rule, with its interval, one panel a target.

    Args:
        results: the targets and the names of the rules.
        rules: labels of the rules, from the top.
        kinds: printed name of each kind.
        row_of: gives value, ci_low and ci_high of a target, rule and kind.
        last: a kind that is drawn in black, as a bar.
    """
    size = (TEXT, 1.0 + ROW * len(rules))
    drawing = Drawing(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.1))
    axes = drawing.subplots(1, len(results.targets), sharey=True, squeeze=False)[0]
    at = np.arange(len(rules))
    for axis, target in zip(axes, results.targets, strict=True):
        for place, (kind, name) in enumerate(kinds.items()):
            rows = [row_of(target, rule, kind) for rule in rules]
            value, low, high = (
                np.array([row[key] for row in rows]) for key in ("value", "ci_low", "ci_high")
            )
            axis.errorbar(
                value,
                at + APART * (place - (len(kinds) - 1) / 2),
                xerr=error_bars(value, low, high),
                fmt="|" if kind == last else DOTS[place % len(DOTS)],
                color=BLACK if kind == last else LINES[place % len(LINES)][0],
                markersize=6 if kind == last else 3,
                elinewidth=0.7,
                label=name,
            )
        axis.set_title(target)
        axis.set_xlim(-0.02, 1.02)
        axis.grid(axis="x", **RULED)
        axis.set_axisbelow(True)
        percent(axis, "x")
    axes[0].set_yticks(at, [results.names[rule] for rule in rules], fontsize=6.5)
    axes[0].set_ylim(len(rules) - 0.4, -0.6)
    legend(drawing, axes[:1], len(kinds))
    return drawing, axes


@styled
def frontier_figure(results: Results) -> Figure:
    """Draw rules and presets on both planes, below the curve of the best rule."""
    frame = results["frontier"]
    drawing, axes = grid(len(COSTS_SHOWN), results.targets)
    drawing.set_figheight(5.6)
    for row, (cost, name) in zip(axes, COSTS_SHOWN.items(), strict=True):
        for axis, target in zip(row, results.targets, strict=True):
            part = frame[(frame["target"] == target) & (frame["cost"] == cost)]
            _plane(axis, part, results)
            axis.set_xlabel(name)
        row[0].set_ylabel("tokens a call (log scale)")
    legend(drawing, axes[:, 0], 3)
    return Figure(**worded("frontier_figure"), data=frame, drawing=drawing)


def _plane(axis: Axes, part: pd.DataFrame, results: Results) -> None:
    curve = part[part["rule"] == ""]
    axis.plot(
        curve["value"], curve["tokens"], color=GREY, linewidth=3, zorder=0, label="the best rule"
    )
    rules = part[(part["rule"] != "") & np.isfinite(part["value"])].set_index("rule")
    others = rules.drop(index=list(results.presets), errors="ignore")
    families = others.index.str.partition(" ").get_level_values(0)
    for name, mine in others.groupby(families, sort=False):
        colours = list(map(rule_colour, mine.index))
        axis.scatter(mine["value"], mine["tokens"], s=7, c=colours, zorder=1)
        label, hue = family(str(name))
        axis.plot([], [], ".", color=hue, label=label)
    for marker, (rule, name) in zip(cycle(MARKERS), results.presets.items(), strict=False):
        if rule in rules.index:
            one, own = rules.loc[rule], results.names[rule]
            axis.errorbar(
                one["value"],
                one["tokens"],
                xerr=error_bars([one["value"]], [one["ci_low"]], [one["ci_high"]]),
                yerr=error_bars([one["tokens"]], [one["tokens_low"]], [one["tokens_high"]]),
                fmt=marker,
                color=BLACK,
                markersize=4,
                elinewidth=0.6,
                label=own if own.startswith(name) else f"{name}: {own}",
            )
    logarithmic(axis, "y")
    most = rules[["value", "ci_high"]].max(axis=None)
    if most > 0:  # the curve goes on where no rule is
        drawn = curve.loc[curve["value"] <= 1.1 * most, "tokens"]
        heights = np.concatenate(
            [drawn, *rules[["tokens", "tokens_low", "tokens_high"]].T.to_numpy()]
        )
        heights = heights[np.isfinite(heights)]
        axis.set_xlim(-0.03 * most, 1.1 * most)
        axis.set_ylim(0.95 * heights.min(), 1.05 * heights.max())
    axis.grid(**RULED)

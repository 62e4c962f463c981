"""The paper's Figures 1 to 5, one panel for each target, sized for the columns of a paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ..acceptance.target import Target
from ..rules import Additive, Multiplicative, Rule, StrictGreedy, Tree
from ..statistics.bootstrap import survival
from ..topk import Floats
from . import style
from .table import Figure
from .text import percent_text

PANEL_HEIGHT = 2.3  # inches
# strict greedy as the reference: a wide line below the others, which may coincide with it
REFERENCE: dict[str, Any] = {"color": style.GREY, "linewidth": 3.2, "zorder": 1.5}
GRID_POINTS = 600
MAX_BANDS = 4  # with more curves, only the first and the last have a band
VERY_CERTAIN = 0.975  # p0 above which the paper counts steps of Figure 1
BAND = "Shaded: pointwise intervals over prompts"
# Figures 2 to 5: the family of rules drawn beside strict greedy, the title and the caption
SURVIVAL_FIGURES: Mapping[int, tuple[type[Rule], str, str]] = {
    2: (
        StrictGreedy,
        "strict greedy certificates",
        "Strict greedy certificates: share of steps whose certificate exceeds ε. Certificates are "
        "bounded above by log 2 (Theorem 4.6), which very certain steps approach.",
    ),
    3: (
        Additive,
        "additive certificates over t",
        "Additive relaxed certificates across values of t: share of steps whose certificate "
        "exceeds ε. Steps where nothing can be rejected stay above every ε.",
    ),
    4: (
        Multiplicative,
        "multiplicative certificates over α",
        "Multiplicative relaxed certificates across values of α: share of steps whose certificate "
        "exceeds ε.",
    ),
    5: (
        Tree,
        "tree certificates over m",
        "Tree certificates across m, beside strict greedy: share of steps whose certificate "
        "exceeds ε, bounded by log(m+1) (Theorem 5.3).",
    ),
}


def figure1(top: Mapping[str, Floats]) -> Figure:
    """Figure 1: distribution of the argmax's probability. `top` has p0 by target, (N,) each."""
    above = ", ".join(
        f"{percent_text(float((probability > VERY_CERTAIN).mean()))} of the steps of {target}"
        for target, probability in top.items()
    )

    @style.styled
    def draw() -> Drawing:
        drawing, axes = _panels(list(top))
        bins = np.linspace(0, 1, 41)
        for axis, probability in zip(axes, top.values(), strict=True):
            share = np.histogram(probability, bins)[0] / len(probability)
            bars: dict[str, Any] = {"align": "edge", "color": style.BLUE, "edgecolor": "white"}
            axis.bar(bins[:-1], share, np.diff(bins), linewidth=0.3, **bars)
            for name, value, colour, dashes in (
                ("mean", float(probability.mean()), style.VERMILION, "--"),
                ("median", float(np.median(probability)), style.BLACK, ":"),
            ):
                line: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": 1.3}
                axis.axvline(value, 0, 0.78, label=f"{name} {value:.3f}", **line)
            axis.set_xlim(0, 1)
            axis.set_xlabel("p₀, probability of the most probable token")
            axis.legend(loc="upper center")  # most p0 lie at the ends
        axes[0].set_ylabel("share of steps")
        return drawing

    return Figure(
        "figure1",
        "Figure 1: probability of the most probable token",
        "Distribution of the probability of the argmax token over decoding steps. "
        f"{above} have a p₀ above {VERY_CERTAIN:g}.",
        draw,
    )


def survival_figure(number: int, targets: Sequence[Target]) -> Figure | None:
    """Figures 2 to 5: share of steps whose certificate exceeds ε. None if its rules are missing."""
    family, title, caption = SURVIVAL_FIGURES[number]
    shows_custom = family is StrictGreedy  # Figure 2 also has the user's own rules
    rules = [
        rule
        for rule in targets[0].certificates
        if type(rule) in (StrictGreedy, family) or (shows_custom and rule.is_custom)
    ]
    if len(rules) > 1 and shows_custom:
        caption = f"{caption} Beside it: rules of your own."
    if not any(type(rule) is family for rule in rules):
        return None

    @style.styled
    def draw() -> Drawing:
        limit = 1.06 * max(rule.ceiling for rule in rules)
        grid = np.linspace(0, limit, GRID_POINTS)
        columns = 4 if len(targets) > 1 else 2
        legend_rows = -(-len(rules) // columns) if len(rules) > 1 else 0
        drawing, axes = _panels([target.label for target in targets], legend_rows)
        for axis, target in zip(axes, targets, strict=True):
            _curves(axis, target, rules, grid)
            _ceilings(axis, rules)
            axis.set_xlim(0, limit)
            axis.set_ylim(0, 1.02)
            axis.set_xlabel("ε (nats)")
        axes[0].set_ylabel("share of steps with R > ε")
        style.legend(drawing, axes[:1], columns)
        return drawing

    if family is Tree and any(rule.ceiling > StrictGreedy().ceiling for rule in rules):
        caption += " The axis is longer than in Figures 2 to 4."
    name = f"figure{number}"
    of_which = "." if len(rules) <= MAX_BANDS else ", of the first and the last curve."
    return Figure(name, f"Figure {number}: {title}", f"{caption} {BAND}{of_which}", draw)


def _panels(targets: Sequence[str], legend_rows: int = 0) -> tuple[Drawing, list[Axes]]:
    """Return a panel for each target: one column wide, or side by side across the text's width."""
    width = style.COLUMN if len(targets) == 1 else style.TEXT
    size = (width, PANEL_HEIGHT + style.LEGEND_ROW * legend_rows)
    drawing = Drawing(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.06))
    axes = list(drawing.subplots(1, len(targets), sharey=True, squeeze=False).flat)
    for axis, target in zip(axes, targets, strict=True):
        axis.set_title(target)
        axis.grid(axis="y", **style.GRID_LINES)
        axis.set_axisbelow(True)
        style.percent(axis, "y")
    return drawing, axes


def _curves(axis: Axes, target: Target, rules: Sequence[Rule], grid: Floats) -> None:
    others = [rule for rule in rules if rule != StrictGreedy()]
    for rule in rules:
        colour, dashes = style.LINES[others.index(rule) % len(style.LINES) if rule in others else 0]
        drawn: dict[str, Any] = {"color": colour, "linestyle": dashes}
        if others and rule not in others:
            drawn = REFERENCE
        share, low, high = survival(target.certificates[rule][0], grid, target.bootstrap)
        axis.plot(grid, share, label=rule.title, **drawn)
        if len(rules) <= MAX_BANDS or rule in (rules[0], rules[-1]):
            axis.fill_between(grid, low, high, color=drawn["color"], alpha=0.18, linewidth=0)


def _ceilings(axis: Axes, rules: Sequence[Rule]) -> None:
    for ceiling in dict.fromkeys(rule.ceiling for rule in rules):
        integer = round(math.exp(ceiling))
        name = f"log {integer}" if math.isclose(math.log(integer), ceiling) else f"{ceiling:.3g}"
        axis.axvline(ceiling, **style.REFERENCE_LINE)
        offset: dict[str, Any] = {"xytext": (-2, 0), "textcoords": "offset points", "rotation": 90}
        axis.annotate(
            name, (ceiling, 1.0), **offset, ha="right", va="top", fontsize=6.5, color="#555555"
        )

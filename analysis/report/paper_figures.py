"""The paper's Figures 1 to 5, one panel for each target, sized for the columns of a paper."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ..rules import Additive, Multiplicative, Rule, StrictGreedy, Tree
from ..statistics.bootstrap import Floats, PromptBootstrap, survival
from .measured import Certified
from .style import (
    BLACK,
    BLUE,
    COLUMN,
    LEGEND_ROW,
    LEVEL,
    LINES,
    RULED,
    TEXT,
    VERMILION,
    legend,
    percent,
    rule_colour,
    styled,
)
from .table import Figure
from .text import percent_text

PANEL_HEIGHT = 2.3  # inches
# strict greedy as the reference: a wide line below the others, which may coincide with it
REFERENCE: dict[str, Any] = {"linewidth": 3.2, "alpha": 0.75, "zorder": 1.5}
GRID_POINTS, SHADED = 600, 4  # curves that all have a band
VERY_CERTAIN = 0.975  # p0 above which the paper counts steps of Figure 1
BAND = "Shaded: pointwise intervals over prompts (of more than four curves, the first and last)."
SHOWN: Mapping[int, tuple[type[Rule], str, str]] = {  # beside strict greedy, the reference
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
        "exceeds ε, bounded by log(m+1) (Theorem 5.3). The axis is longer than in Figures 2 to 4.",
    ),
}


def figure1(top: Mapping[str, Floats]) -> Figure:
    """Figure 1, the distribution of the argmax's probability, (N,) for each target."""
    above = ", ".join(
        f"{percent_text(float((probability > VERY_CERTAIN).mean()))} of the steps of {target}"
        for target, probability in top.items()
    )

    @styled
    def draw() -> Drawing:
        drawing, axes = _panels(list(top))
        bins = np.linspace(0, 1, 41)
        for axis, probability in zip(axes, top.values(), strict=True):
            share = np.histogram(probability, bins)[0] / len(probability)
            bars: dict[str, Any] = {"align": "edge", "color": BLUE, "edgecolor": "white"}
            axis.bar(bins[:-1], share, np.diff(bins), linewidth=0.3, **bars)
            for name, value, colour, style in (
                ("mean", float(probability.mean()), VERMILION, "--"),
                ("median", float(np.median(probability)), BLACK, ":"),
            ):
                line: dict[str, Any] = {"color": colour, "linestyle": style, "linewidth": 1.3}
                axis.axvline(value, 0, 0.78, label=f"{name} {value:.3f}", **line)
            axis.set_xlim(0, 1)
            axis.set_xlabel("p₀, probability of the most probable token")
            percent(axis, "y")
            axis.legend(loc="upper center")  # most p0 lie at the ends
        for axis in axes[::2]:
            axis.set_ylabel("share of steps")
        return drawing

    return Figure(
        "figure1",
        "Figure 1: probability of the most probable token",
        "Distribution of the probability of the argmax token over decoding steps. "
        f"{above} have one above {VERY_CERTAIN:g}.",
        draw,
    )


def survival_figure(
    number: int, panels: Mapping[str, Certified], bootstraps: Mapping[str, PromptBootstrap]
) -> Figure | None:
    """Figures 2 to 5, the share of steps whose certificate exceeds eps.

    Args:
        number: of the figure, which selects the family of rules.
        panels: certificates of every target.
        bootstraps: of every target.

    Returns:
        The figure; None if the study has no rule of the family.
    """
    family, title, caption = SHOWN[number]
    chosen = {
        target: {rule: x for rule, x in items.items() if type(rule) in (StrictGreedy, family)}
        for target, items in panels.items()
    }
    if not any(type(rule) is family for items in chosen.values() for rule in items):
        return None

    def draw() -> Drawing:
        return _survival(chosen, bootstraps)

    name = f"figure{number}"
    return Figure(name, f"Figure {number}: {title}", f"{caption} {BAND}", draw)


@styled
def _survival(
    chosen: Mapping[str, Certified], bootstraps: Mapping[str, PromptBootstrap]
) -> Drawing:
    limit = 1.06 * max(rule.ceiling for items in chosen.values() for rule in items)
    grid = np.linspace(0, limit, GRID_POINTS)
    columns = 4 if len(chosen) > 1 else 2  # of the legend
    most = max(map(len, chosen.values()))
    drawing, axes = _panels(list(chosen), legend_rows=-(-most // columns) if most > 1 else 0)
    for axis, (target, items) in zip(axes, chosen.items(), strict=True):
        _draw(axis, items, bootstraps[target], grid)
        _ceilings(axis, list(items))
        axis.set_xlim(0, limit)
        axis.set_ylim(0, 1.02)
        axis.set_xlabel("ε (nats)")
        percent(axis, "y")
    for axis in axes[::2]:
        axis.set_ylabel("share of steps with R > ε")
    legend(drawing, axes[:1], columns)
    return drawing


def _panels(targets: Sequence[str], legend_rows: int = 0) -> tuple[Drawing, list[Axes]]:
    """Return a panel for each target: one column wide, or pairs across the text's width."""
    columns = min(2, len(targets))
    rows = -(-len(targets) // columns)
    size = (COLUMN if columns == 1 else TEXT, PANEL_HEIGHT * rows + LEGEND_ROW * legend_rows)
    drawing = Drawing(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.06))
    axes = list(drawing.subplots(rows, columns, sharey=True, squeeze=False).flat)
    for axis in axes[len(targets) :]:
        axis.remove()
    for axis, target in zip(axes, targets, strict=False):
        axis.set_title(target)
        axis.grid(axis="y", **RULED)
        axis.set_axisbelow(True)
    return drawing, axes[: len(targets)]


def _draw(axis: Axes, items: Certified, bootstrap: PromptBootstrap, grid: Floats) -> None:
    """Draw the survival curve of each rule, and the interval over prompts of some."""
    dashes, rules = itertools.cycle(dash for _, dash in LINES), list(items)
    for rule, (lower, _) in items.items():
        reference = rule == StrictGreedy() and len(rules) > 1
        style = REFERENCE if reference else {"linestyle": next(dashes)}
        style = {"color": rule_colour(rule.label), **style}
        share, low, high = survival(lower, grid, bootstrap)
        axis.plot(grid, share, label=rule.title, **style)
        if len(rules) <= SHADED or rule in (rules[0], rules[-1]):
            band: dict[str, Any] = {"color": style["color"], "alpha": 0.18, "linewidth": 0}
            axis.fill_between(grid, low, high, **band)


def _ceilings(axis: Axes, rules: Sequence[Rule]) -> None:
    """Draw the ceilings of the rules: log(m+1) for a tree, log 2 for most others."""
    for ceiling in dict.fromkeys(rule.ceiling for rule in rules):
        whole = round(math.exp(ceiling))
        name = f"log {whole}" if math.isclose(math.log(whole), ceiling) else f"{ceiling:.3g}"
        axis.axvline(ceiling, **LEVEL)
        axis.annotate(
            name,
            (ceiling, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(-2, -2),
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="top",
            fontsize=6.5,
            color="#555555",
        )

"""The paper's Figures 1 to 5, one panel for each target, sized for the columns of a paper."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ...rules import Additive, Multiplicative, Rule, StrictGreedy, Tree
from ...statistics.bootstrap import Floats, PromptBootstrap, survival
from ..measured import Certified
from ..records import Figure, sentence, worded
from ..style import (
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
from ..text import share_text

PANEL_HEIGHT = 2.3  # inches
# strict greedy as the reference: a wide line below the others, which may coincide with it
REFERENCE: dict[str, Any] = {"linewidth": 3.2, "alpha": 0.75, "zorder": 1.5}
GRID_POINTS, SHADED = 600, 4  # curves that all have a band
VERY_CERTAIN = 0.975  # p0 above which the paper counts steps of Figure 1
# of an axis' size: from left and below, width, height; where curves end before this share of it
INSET, INSET_BELOW = (0.46, 0.2, 0.52, 0.74), 0.42
SHOWN: Mapping[str, type[Rule]] = {  # beside strict greedy, the reference
    "figure2": StrictGreedy,
    "figure3": Additive,
    "figure4": Multiplicative,
    "figure5": Tree,
}


@styled
def figure1(top: Mapping[str, Floats]) -> Figure:
    """Draw Figure 1, the distribution of the argmax's probability, (N,) for each target."""
    drawing, axes = _panels(list(top))
    bins = np.linspace(0, 1, 41)
    frames = []
    for axis, (target, probability) in zip(axes, top.items(), strict=True):
        share = np.histogram(probability, bins)[0] / len(probability)
        bars: dict[str, Any] = {"align": "edge", "color": BLUE, "edgecolor": "white"}
        axis.bar(bins[:-1], share, np.diff(bins), linewidth=0.3, **bars)
        mean, median = float(probability.mean()), float(np.median(probability))
        mean_line: dict[str, Any] = {"color": VERMILION, "linestyle": "--", "linewidth": 1.2}
        median_line: dict[str, Any] = {"color": BLACK, "linestyle": ":", "linewidth": 1.4}
        axis.axvline(mean, 0, 0.78, label=f"mean {mean:.3f}", **mean_line)
        axis.axvline(median, 0, 0.78, label=f"median {median:.3f}", **median_line)
        axis.set_xlim(0, 1)
        axis.set_xlabel("p₀, probability of the most probable token")
        percent(axis, "y")
        axis.legend(loc="upper center")  # most p0 lie at the ends
        drawn = {"target": target, "from": bins[:-1], "to": bins[1:], "share": share}
        frames.append(pd.DataFrame(drawn).assign(mean=mean, median=median))
    for axis in axes[::2]:
        axis.set_ylabel("share of steps")
    above = ", ".join(
        f"{share_text(float((probability > VERY_CERTAIN).mean()))} of the steps of {target}"
        for target, probability in top.items()
    )
    texts = worded("figure1", share=above, threshold=VERY_CERTAIN)
    return Figure(**texts, data=pd.concat(frames, ignore_index=True), drawing=drawing)


@styled
def survival_figure(
    name: str, panels: Mapping[str, Certified], bootstraps: Mapping[str, PromptBootstrap]
) -> Figure | None:
    """Draw Figures 2 to 5, the share of steps whose certificate exceeds eps.

    All of them share their limits of eps, as in the paper. Where a figure's ceilings lie far below
    those of trees, its curves end behind them, and an inset has them again in full width.

    The numbers drawn: target, rule, eps, and the share of steps whose certificate exceeds eps, with
    the interval over prompts.

    Args:
        name: of the figure, which selects the family of rules.
        panels: certificates of every target.
        bootstraps: of every target.

    Returns:
        The figure; None if the study has no rule of the family.
    """
    chosen = {
        target: {rule: x for rule, x in items.items() if type(rule) in (StrictGreedy, SHOWN[name])}
        for target, items in panels.items()
    }
    rules = [rule for items in chosen.values() for rule in items]
    if SHOWN[name] not in map(type, rules):
        return None
    every = [rule for items in panels.values() for rule in items if type(rule) in SHOWN.values()]
    own, limit = (1.06 * max(rule.ceiling for rule in of) for of in (rules, every))
    grid = np.linspace(0, own, GRID_POINTS)
    columns = 4 if len(panels) > 1 else 2  # of the legend
    most = max(map(len, chosen.values()))
    drawing, axes = _panels(list(panels), legend_rows=-(-most // columns) if most > 1 else 0)
    frames = []
    for axis, (target, items) in zip(axes, chosen.items(), strict=True):
        curves = _curves(items, bootstraps[target], grid)
        frames += [frame.assign(target=target) for frame in curves.values()]
        shown = {axis: limit}
        if own < INSET_BELOW * limit:
            shown[axis.inset_axes(INSET)] = own
        for drawn, end in shown.items():
            _draw(drawn, curves)
            _ceilings(drawn, list(items))
            drawn.set_xlim(0, end)
            drawn.set_ylim(0, 1.02)
            percent(drawn, "y")
        axis.set_xlabel("ε (nats)")
    for axis in axes[::2]:
        axis.set_ylabel("share of steps with R > ε")
    legend(drawing, axes[:1], columns)
    optional = {"first_last": most > SHADED, "inset": own < INSET_BELOW * limit}
    sentences: dict[str, Any] = {
        key: sentence(key) if true else "" for key, true in optional.items()
    }
    texts = worded(name, **sentences)
    data = pd.concat(frames, ignore_index=True)
    data = data[["target", "rule", "eps", "share", "ci_low", "ci_high"]]
    return Figure(**texts, data=data, drawing=drawing)


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


def _curves(items: Certified, bootstrap: PromptBootstrap, grid: Floats) -> dict[Rule, pd.DataFrame]:
    """Return the survival curve of each rule and its interval over prompts."""
    frames = {}
    for rule, (lower, _) in items.items():
        share, low, high = survival(lower, grid, bootstrap)
        curve = {"rule": rule.label, "eps": grid, "share": share}
        frames[rule] = pd.DataFrame(curve | {"ci_low": low, "ci_high": high})
    return frames


def _draw(axis: Axes, curves: Mapping[Rule, pd.DataFrame]) -> None:
    """Draw survival curves and their intervals."""
    dashes, rules = itertools.cycle(dash for _, dash in LINES), list(curves)
    for rule, curve in curves.items():
        reference = rule == StrictGreedy() and len(curves) > 1
        style = REFERENCE if reference else {"linestyle": next(dashes)}
        style = {"color": rule_colour(rule.label), **style}
        axis.plot(curve["eps"], curve["share"], label=rule.title, **style)
        band: dict[str, Any] = {"color": style["color"], "alpha": 0.18, "linewidth": 0}
        if len(curves) <= SHADED or rule in (rules[0], rules[-1]):
            axis.fill_between(curve["eps"], curve["ci_low"], curve["ci_high"], **band)


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

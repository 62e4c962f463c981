"""The paper's Figures 1 to 5, one panel a target, sized for the columns of a paper."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ..rules import Rule
from ..statistics.bootstrap import Floats, PromptBootstrap, survival
from .measured import Certified, Panels
from .style import BLUE, COLUMN, LEVEL, LINES, RULED, TEXT, legend, styled
from .text import rule_text

PANEL_HEIGHT, LEGEND_ROW = 2.3, 0.17  # inches
# strict greedy, wherever it is the reference: wide and below, as other curves run along it
REFERENCE: dict[str, Any] = {"color": "#A8A8A8", "linewidth": 3.2, "zorder": 1.5}
GRID_POINTS = 600
SINGLE = 0.76  # nats shown of single-token certificates, which end at log 2


def all_figures(
    top: Mapping[str, Floats], panels: Panels, bootstraps: Mapping[str, PromptBootstrap]
) -> dict[str, Figure]:
    """Return every figure that the study's rules fill, by file name without suffix."""
    figures = {
        "figure1": figure1(top),
        "figure2": figure2(panels, bootstraps),
        "figure3": figure3(panels),
        "figure4": figure4(panels),
        "figure5": figure5(panels),
        "own": own_figure(panels),
    }
    return {name: figure for name, figure in figures.items() if figure is not None}


@styled
def figure1(top: Mapping[str, Floats]) -> Figure:
    """Draw the distribution of the argmax's probability; (N,) of each target."""
    figure, axes = _panels(list(top))
    bins = np.linspace(0, 1, 41)
    for axis, probability in zip(axes, top.values(), strict=True):
        share = np.histogram(probability, bins)[0] / len(probability)
        axis.bar(
            bins[:-1],
            share,
            np.diff(bins),
            align="edge",
            color=BLUE,
            edgecolor="white",
            linewidth=0.3,
        )
        mean, median = float(probability.mean()), float(np.median(probability))
        for value, name, style in ((mean, "mean", "--"), (median, "median", ":")):
            axis.axvline(
                value,
                0,
                0.78,
                linestyle=style,
                color="black",
                linewidth=0.9,
                label=f"{name} {value:.3f}",
            )
        axis.set_xlim(0, 1)
        axis.set_xlabel("probability of the most probable token")
        axis.legend(loc="upper left")
    for axis in axes[::2]:
        axis.set_ylabel("fraction of steps")
    return figure


@styled
def figure2(panels: Panels, bootstraps: Mapping[str, PromptBootstrap]) -> Figure | None:
    """Draw the share of steps whose strict greedy certificate exceeds eps, with its interval."""
    chosen = {
        target: [item for item in items if item.rule.name == "greedy"]
        for target, items in panels.items()
    }
    if not all(chosen.values()):
        return None
    figure, axes = _panels(list(chosen), legend_rows=1)
    grid = np.linspace(0, SINGLE, GRID_POINTS)
    for axis, (target, items) in zip(axes, chosen.items(), strict=True):
        greedy, bootstrap = items[0], bootstraps[target]
        low = survival_band(greedy.lo, grid, bootstrap)[0]
        high = survival_band(greedy.hi, grid, bootstrap)[1]
        axis.fill_between(
            grid,
            low,
            high,
            color=BLUE,
            alpha=0.3,
            linewidth=0,
            label=f"{100 * bootstrap.confidence:g} % interval over prompts",
        )
        axis.plot(
            grid, survival(greedy.lo, grid), color=BLUE, linewidth=1, label=rule_text(greedy.rule)
        )
        _finish(axis, SINGLE, [greedy.rule])
    _label(figure, axes)
    return figure


def figure3(panels: Panels) -> Figure | None:
    """Compare additive certificates across t."""
    return _family(panels, lambda rule: rule.name == "additive", limit=SINGLE)


def figure4(panels: Panels) -> Figure | None:
    """Compare multiplicative certificates across alpha."""
    return _family(panels, lambda rule: rule.name == "multiplicative", limit=SINGLE)


def figure5(panels: Panels) -> Figure | None:
    """Compare tree certificates across m."""
    return _family(panels, lambda rule: rule.name == "tree")


def own_figure(panels: Panels) -> Figure | None:
    """Compare the certificates of a user's own rules."""
    return _family(panels, lambda rule: rule.own)


def _family(
    panels: Panels, of_family: Callable[[Rule], bool], limit: float | None = None
) -> Figure | None:
    """Draw strict greedy, as the reference, and all rules of one family, up to their ceilings."""
    chosen = {
        target: [item for item in items if item.rule.name == "greedy" or of_family(item.rule)]
        for target, items in panels.items()
    }
    ceilings = [
        item.rule.ceiling for items in chosen.values() for item in items if of_family(item.rule)
    ]
    if not ceilings:
        return None
    return _survival(chosen, 1.06 * max(ceilings) if limit is None else limit)


@styled
def _survival(panels: Panels, limit: float) -> Figure:
    most = max(len(items) for items in panels.values())
    figure, axes = _panels(list(panels), legend_rows=-(-most // _legend_columns(len(panels))))
    for axis, items in zip(axes, panels.values(), strict=True):
        _curves(axis, items, limit)
        _finish(axis, limit, [item.rule for item in items])
    _label(figure, axes)
    return figure


def _curves(axis: Axes, items: Sequence[Certified], limit: float) -> None:
    """Draw the survival curve of each rule, and the area between lo and hi where they differ."""
    grid = np.linspace(0, limit, GRID_POINTS)
    lines = itertools.cycle(LINES)
    for item in items:
        style = (
            REFERENCE
            if item.rule.name == "greedy"
            else dict(zip(("color", "linestyle"), next(lines), strict=True))
        )
        share, possible = survival(item.lo, grid), survival(item.hi, grid)
        axis.plot(grid, share, label=rule_text(item.rule), **style)
        if not np.array_equal(share, possible):
            axis.fill_between(grid, share, possible, color=style["color"], alpha=0.25, linewidth=0)


def _finish(axis: Axes, limit: float, rules: Sequence[Rule]) -> None:
    _ceilings(axis, rules)
    axis.set_xlim(0, limit)
    axis.set_ylim(0, 1.02)
    axis.set_xlabel("ε (nats)")


def _label(figure: Figure, axes: Sequence[Axes]) -> None:
    """Name the y axis once a row, and put one legend for all panels below them."""
    columns = min(2, len(axes))
    for axis in axes[::columns]:
        axis.set_ylabel("fraction of steps with R > ε")
    legend(figure, axes[:1], _legend_columns(len(axes)))


def _legend_columns(panels: int) -> int:
    return 4 if panels > 1 else 2


def _ceilings(axis: Axes, rules: Sequence[Rule]) -> None:
    """Draw the ceilings of the shown rules: log(m+1) of each tree, log 2 of most others."""
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


def _panels(targets: Sequence[str], legend_rows: int = 0) -> tuple[Figure, list[Axes]]:
    """Make one panel a target: a column wide, or two side by side over the text's width."""
    columns = min(2, len(targets))
    rows = -(-len(targets) // columns)
    size = (COLUMN if columns == 1 else TEXT, PANEL_HEIGHT * rows + LEGEND_ROW * legend_rows)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.06))
    axes = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    for axis in axes[len(targets) :]:
        axis.remove()
    for at, (axis, target) in enumerate(zip(axes, targets, strict=False)):
        axis.set_title(target if len(targets) == 1 else f"({chr(ord('a') + at)}) {target}")
        axis.grid(axis="y", **RULED)
        axis.set_axisbelow(True)
    return figure, axes[: len(targets)]


def survival_band(
    values: Floats, grid: Floats, bootstrap: PromptBootstrap
) -> tuple[Floats, Floats]:
    """Return the pointwise interval of the share of (N,) values above each of (G,) levels."""
    cell = np.searchsorted(grid, values, side="left")  # number of levels below the value
    width = len(grid) + 1
    counts = np.bincount(bootstrap.prompts * width + cell, minlength=bootstrap.count * width)
    above = np.cumsum(counts.reshape(-1, width)[:, ::-1], axis=1)[:, ::-1][:, 1:]
    draws = bootstrap.sums(above) / bootstrap.sums(bootstrap.steps[:, None])
    return bootstrap.interval(draws)

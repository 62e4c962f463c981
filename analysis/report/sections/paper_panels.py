"""Survival curves of certificates, one panel a target: what Figures 2 to 5 of the paper share."""

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

from ...rules import Rule, StrictGreedy
from ...statistics.bootstrap import Floats, PromptBootstrap, share_above
from ..measured import Certified, Panels, survival_band
from ..style import COLUMN, LEVEL, LINES, RULED, TEXT, legend, percent

PANEL_HEIGHT, LEGEND_ROW = 2.3, 0.17  # inches
# strict greedy, wherever it is the reference: wide and below, as other curves run along it
REFERENCE: dict[str, Any] = {"color": "#A8A8A8", "linewidth": 3.2, "zorder": 1.5}
GRID_POINTS = 600


def panels_of(targets: Sequence[str], legend_rows: int = 0) -> tuple[Drawing, list[Axes]]:
    """Make one panel a target: a column wide, or two side by side over the text's width."""
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


def survival_drawing(
    panels: Panels, bootstraps: Mapping[str, PromptBootstrap], limit: float
) -> tuple[Drawing, pd.DataFrame]:
    """Draw the survival curves of certificates from 0 to `limit` nats; return them as well.

    Returns:
        The drawing, and its numbers: target, rule, eps, and the share of steps whose certificate
        exceeds eps, by lower ends (share) and by upper ends (optimistic), with the interval over
        prompts, from the lower ends to the upper ends.
    """
    most = max(len(items) for items in panels.values())
    drawing, axes = panels_of(list(panels), legend_rows=-(-most // _legend_columns(len(panels))))
    frames = []
    for axis, (target, items) in zip(axes, panels.items(), strict=True):
        found = _curves(axis, items, bootstraps[target], limit)
        frames += [frame.assign(target=target) for frame in found]
        finish(axis, limit, [item.rule for item in items])
    label(drawing, axes)
    data = pd.concat(frames, ignore_index=True)
    return drawing, data[["target", "rule", "eps", "share", "optimistic", "ci_low", "ci_high"]]


def _curves(
    axis: Axes, items: Sequence[Certified], bootstrap: PromptBootstrap, limit: float
) -> list[pd.DataFrame]:
    """Draw the survival curve of each rule and its interval over prompts."""
    grid = levels(limit)
    lines = itertools.cycle(LINES)
    frames = []
    for item in items:
        style = (
            REFERENCE
            if item.rule == StrictGreedy() and len(items) > 1
            else dict(zip(("color", "linestyle"), next(lines), strict=True))
        )
        share, possible = share_above(item.lower, grid), share_above(item.upper, grid)
        axis.plot(grid, share, label=item.rule.title, **style)
        low = survival_band(item.lower, grid, bootstrap)[0]
        high = survival_band(item.upper, grid, bootstrap)[1]
        axis.fill_between(grid, low, high, color=style["color"], alpha=0.18, linewidth=0)
        curve = {"rule": item.rule.label, "eps": grid, "share": share, "optimistic": possible}
        frames.append(pd.DataFrame(curve | {"ci_low": low, "ci_high": high}))
    return frames


def levels(limit: float) -> Floats:
    """Return the (GRID_POINTS,) levels in nats at which curves up to `limit` are drawn."""
    return np.linspace(0, limit, GRID_POINTS)


def finish(axis: Axes, limit: float, rules: Sequence[Rule]) -> None:
    """Set the limits of a panel and draw the ceilings of the rules it shows."""
    _ceilings(axis, rules)
    axis.set_xlim(0, limit)
    axis.set_ylim(0, 1.02)
    percent(axis, "y")
    axis.set_xlabel("ε (nats)")


def label(drawing: Drawing, axes: Sequence[Axes]) -> None:
    """Name the y axis once a row, and put one legend for all panels below them."""
    columns = min(2, len(axes))
    for axis in axes[::columns]:
        axis.set_ylabel("steps with R > ε")
    legend(drawing, axes[:1], _legend_columns(len(axes)))


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

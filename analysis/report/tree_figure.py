"""The figure of draft trees, after Figures 3 and 4 of arXiv 2504.15475.

One row for each target and temperature, with GSS and ERSS on one axis; left the tokens per call,
right the gain of one more drafted token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from ..decoding.metrics import Decoded
from ..decoding.tree_curves import ADDED, BEST_M_BOUND, FIXED_M_BOUND, TOKENS, tree_curves
from ..decoding.tree_runs import ERSS, GREEDY, GSS, SHAPES
from .style import GREY, LINES, error_bars, grid, styled
from .table import Figure

COLOURS = {name: colour for name, (colour, _) in zip(SHAPES.values(), LINES, strict=False)}
BOUND_WIDTHS = {BEST_M_BOUND: 1.6, FIXED_M_BOUND: 0.7}  # of lines
QUANTITIES = {TOKENS: "tokens per call", ADDED: "added by a token"}
STYLES = {GSS: ("o", (0, ())), ERSS: ("^", (0, (4, 2))), GREEDY: ("s", (0, ()))}
APART = {GSS: 0.97, ERSS: 1.03, GREEDY: 1.0}  # points at equal sizes do not hide each other


def trees_figure(decoded: Sequence[Decoded], runs: Sequence[pd.DataFrame]) -> Figure | None:
    """Draw tokens per call, and the gain of one more drafted token, over drafted tokens.

    None if no method drafted trees, or if at each temperature all drafts have the same size.
    """
    curves = tree_curves(decoded, runs)
    if curves.empty:
        return None

    @styled
    def draw() -> Drawing:
        groups = list(curves.groupby(["target", "setting"], sort=False))
        drawing, axes = grid(len(groups), list(QUANTITIES.values()))
        for row, (key, of_setting) in zip(axes, groups, strict=True):
            for axis, quantity in zip(row, QUANTITIES, strict=True):
                axis.set_title(f"{', '.join(map(str, key))}:\n{QUANTITIES[quantity]}")
                axis.set(xlabel="drafted tokens", ylabel=QUANTITIES[quantity], xscale="log")
                _draw(axis, of_setting[of_setting["quantity"] == quantity])
            row[1].set(yscale="log", xlim=row[0].get_xlim())
            for scale in (row[0].xaxis, row[1].xaxis, row[1].yaxis):
                scale.set_major_locator(LogLocator(subs=(1, 3)))
                scale.set_minor_locator(NullLocator())
                scale.set_major_formatter("{x:g}")  # powers of ten would need math text
        _legend(drawing, curves)
        return drawing

    return Figure(
        "decoding_trees",
        "Tokens per call over drafted tokens, and what one more adds",
        "After Figures 3 and 4 of arXiv 2504.15475. Points: measured, with intervals over prompts. "
        "Lines: predicted from R, levels independent. Grey: the bounds of Lemma 4.3 on this "
        "prediction; measured values exceed it where acceptance comes in stretches. Gains of 0 or "
        "less lie at the lower edge.",
        draw,
    )


def _draw(axis: Axes, drawn: pd.DataFrame) -> None:
    least = -np.inf
    if drawn["quantity"].iloc[0] == ADDED:  # the axis is logarithmic: gains of 0 or less are cut
        least = 0.7 * drawn["value"][drawn["value"] > 0].min()
    for key, part in drawn.sort_values("drafted").groupby(["scheme", "curve", "kind"], sort=False):
        scheme, curve, kind = map(str, key)
        marker, dashes = STYLES[scheme]
        k = part["drafted"]
        value = part["value"].clip(lower=least)
        colour = GREY if kind == "bound" else COLOURS[curve]
        if kind == "measured":
            face = "white" if scheme == ERSS else colour
            ends = error_bars(value, part["ci_low"], part["ci_high"])
            axis.errorbar(k * APART[scheme], value, ends, fmt=marker, color=colour, markersize=3.5,
                          markerfacecolor=face, elinewidth=0.7)  # fmt: skip
        else:
            width = BOUND_WIDTHS.get(curve, 0.9)
            axis.plot(k, value, color=colour, linestyle=dashes, linewidth=width)


def _legend(drawing: Drawing, curves: pd.DataFrame) -> None:
    """Add a legend: a colour for each shape, a marker and a line for each scheme, the bounds."""
    bounds = curves["curve"][curves["kind"] == "bound"].unique()
    shapes = curves["curve"][curves["kind"] != "bound"].unique()
    handles = [Line2D([], [], color=COLOURS[shape], linewidth=3, label=shape) for shape in shapes]
    for scheme in curves["scheme"][curves["kind"] == "measured"].unique():
        marker, dashes = STYLES[scheme]
        look: dict[str, Any] = {"color": "black", "marker": marker, "linestyle": dashes}
        face = "white" if scheme == ERSS else "black"
        look |= {"markersize": 3.5, "markerfacecolor": face, "linewidth": 0.9}
        handles.append(Line2D([], [], **look, label=f"{scheme}: measured, predicted"))
    for bound in bounds:
        width = BOUND_WIDTHS.get(bound, 0.9)
        handles.append(Line2D([], [], color=GREY, linewidth=width, label=bound))
    drawing.legend(handles=handles, loc="outside lower center", ncols=3)

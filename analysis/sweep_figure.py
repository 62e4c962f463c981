"""The plot of a sweep: statistics of the swept stage over one or two swept keys."""

from __future__ import annotations

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from analysis.printing import upper_end

STATISTICS = ("mean", "median", "p25", "p5", "value", "accepted", "certified", "coverage")
MAX_LINES = 12


def sweep_figure(table: pd.DataFrame, swept: list[str]) -> Figure | None:
    """Draw one panel a target: the statistics over one key, or p5 over the first key by the rest.

    Args:
        table: one row a point and target, with the swept keys, `target` and statistics in nats.
        swept: names of the swept columns, in the order they were given.

    Returns:
        The figure, or None when the table has nothing that can be drawn.
    """
    statistics = [name for name in STATISTICS if name in table]
    if not statistics or "target" not in table or not swept:
        return None
    lines = [key for key in [*swept[1:], "rule", "eps"] if key in table and _varies(table, key)]
    lines = [key for key in lines if key == "eps" or key in swept[1:] or not _bound(table, swept)]
    x = swept[0]
    targets = list(table["target"].unique())
    with matplotlib.rc_context({"font.size": 8, "pdf.fonttype": 42}):
        figure = Figure(figsize=(3.4 * len(targets), 2.6), layout="constrained")
        axes = figure.subplots(1, len(targets), sharey=True, squeeze=False)[0]
        for axis, target in zip(axes, targets, strict=True):
            part = table[table["target"] == target]
            if lines:
                shown = "p5" if "p5" in statistics else statistics[0]
                for key, group in list(part.groupby(lines, sort=False))[:MAX_LINES]:
                    name = ", ".join(f"{k}={v}" for k, v in zip(lines, key, strict=True))
                    _line(axis, group, x, shown, name)
                axis.set_ylabel(f"{shown} (nats)" if shown == "p5" else shown)
            else:
                for name in statistics:
                    _line(axis, part, x, name, name)
                axis.set_ylabel(
                    "certificate (nats)"
                    if "p5" in statistics
                    else "share of steps"
                    if "accepted" in statistics
                    else statistics[0]
                )
            axis.set_xlabel(x)
            axis.set_title(str(target))
            axis.grid(alpha=0.3, linewidth=0.5)
        axes[0].legend(fontsize=6, frameon=False)
    return figure


def _varies(table: pd.DataFrame, key: str) -> bool:
    return len(table[key].unique()) > 1


def _bound(table: pd.DataFrame, swept: list[str]) -> bool:
    """Whether each swept point has one rule only, so that the rule says nothing new."""
    return "rule" in table and bool(
        table.groupby([*swept, "target"], dropna=False)["rule"].nunique().max() == 1
    )


def _line(axis: matplotlib.axes.Axes, part: pd.DataFrame, x: str, y: str, name: str) -> None:
    values = part.sort_values(x) if pd.api.types.is_numeric_dtype(part[x]) else part
    (line,) = axis.plot(values[x], values[y], marker="o", markersize=3, linewidth=1, label=name)
    if (ends := upper_end(y)) in values:  # of certificates known as intervals
        axis.fill_between(
            values[x], values[y], values[ends], color=line.get_color(), alpha=0.25, linewidth=0
        )

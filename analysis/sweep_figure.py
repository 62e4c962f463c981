"""The plot of a sweep: statistics of the swept stage over one or two swept keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.printing import upper_end
from analysis.style import LINES, POINTS, RULED, grid, legend, styled

AXES = {  # statistics by stage: the name of their axis, and theirs
    "certificate (nats)": {
        "mean": "mean certificate",
        "median": "median certificate",
        "p25": "25 % quantile of the certificate",
        "p5": "5 % quantile of the certificate",
    },
    "tokens": {"value": "certified tokens per call"},
    "share": {
        "accepted": "accepted, of all steps",
        "certified": "certified, of all steps",
        "coverage": "coverage: certified, of accepted steps",
    },
}
NAMES = {key: name for names in AXES.values() for key, name in names.items()}
MAX_LINES = 12  # in a panel; more cannot be told apart
LEGEND_COLUMNS, LEGEND_ROW = 3, 0.14  # the height in inches


@styled
def sweep_figure(table: pd.DataFrame, swept: list[str]) -> Figure | None:
    """Draw one panel a target: the statistics over one key, or p5 over the first key by the rest.

    Of more than `MAX_LINES` rules, or other settings, the first are drawn and the title says so.

    Args:
        table: one row a point and target, with the swept keys, `target` and statistics in nats.
        swept: names of the swept columns, in the order they were given.

    Returns:
        The figure, or None when the table has nothing that can be drawn.
    """
    statistics = [name for name in NAMES if name in table]
    if not statistics or "target" not in table or not swept:
        return None
    lines = [key for key in [*swept[1:], "rule", "eps"] if key in table and _varies(table, key)]
    lines = [key for key in lines if key == "eps" or key in swept[1:] or not _bound(table, swept)]
    figure, axes = grid(1, [str(target) for target in table["target"].unique()])
    if lines:
        shown = "p5" if "p5" in statistics else statistics[0]
        groups = {
            _named(lines, key): rows for key, rows in table.groupby(lines, sort=False, dropna=False)
        }
        if len(groups) > MAX_LINES:
            kind = "rules" if lines == ["rule"] else "settings"
            figure.suptitle(f"{MAX_LINES} of {len(groups)} {kind} drawn", fontsize=8)
        label = NAMES[shown] + (" (nats)" if shown in AXES["certificate (nats)"] else "")
        curves = dict.fromkeys(list(groups)[:MAX_LINES], shown)
    else:
        label = next(axis for axis, names in AXES.items() if statistics[0] in names)
        statistics = [name for name in statistics if name in AXES[label]]
        curves = {NAMES[name]: name for name in statistics}
        groups = dict.fromkeys(curves, table)
    for axis, target in zip(axes[0], table["target"].unique(), strict=True):
        for at, (name, statistic) in enumerate(curves.items()):
            part = groups[name]
            _line(axis, part[part["target"] == target], swept[0], statistic, name, at)
        axis.set_xlabel(swept[0])
        axis.grid(**RULED)
    for axis in axes[0, 1:]:
        axis.sharey(axes[0, 0])
    axes[0, 0].set_ylabel(label)
    legend(figure, axes[0], LEGEND_COLUMNS)
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW * -(-len(curves) // LEGEND_COLUMNS))
    return figure


def _named(keys: list[str], values: Iterable[Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in zip(keys, values, strict=True))


def _varies(table: pd.DataFrame, key: str) -> bool:
    return len(table[key].unique()) > 1


def _bound(table: pd.DataFrame, swept: list[str]) -> bool:
    """Whether each swept point has one rule only, so that the rule says nothing new."""
    return "rule" in table and bool(
        table.groupby([*swept, "target"], dropna=False)["rule"].nunique().max() == 1
    )


def _line(axis: Axes, part: pd.DataFrame, x: str, y: str, name: str, at: int) -> None:
    """Draw the `at`-th curve; colours come again with another line style."""
    values = part.sort_values(x) if pd.api.types.is_numeric_dtype(part[x]) else part
    color, _ = LINES[at % len(LINES)]
    _, style = LINES[(at + at // len(LINES)) % len(LINES)]
    axis.plot(values[x], values[y], color=color, linestyle=style, **POINTS, label=name)
    if (ends := upper_end(y)) in values:  # of certificates known as intervals
        axis.fill_between(values[x], values[y], values[ends], color=color, alpha=0.25, linewidth=0)

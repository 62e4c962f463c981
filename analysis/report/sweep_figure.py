"""The plot of a sweep: statistics of the swept stage over the first swept key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..statistics.estimate import Estimate, interval_columns
from .style import GRID_LINES, LEGEND_ROW, LINES, POINTS, error_bars, grid, legend, styled
from .text import symbol

PANELS = {  # label of the y axis: its statistics and their printed names
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
    "tokens per call": {"tokens_per_call": "tokens per call of the target"},
    "speedup": {"speedup": "speedup over the target alone"},
    "nats": {"nats_given_up": "nats given up per token"},
    "cost": {"cost": "cost of a drafted token, ρ"},
}
NAMES = {key: name for names in PANELS.values() for key, name in names.items()}
# with several curves only the first two of these statistics are drawn
SELECTED = ("tokens_per_call", "speedup", "p5", "value", "accepted")
# keys in which the rows of one point of the sweep may differ
KINDS = ("rule", "eps", "method", "temperature", "draft_length")
WORDS = {"draft_length": "γ", "temperature": "T", "eps": "ε"}
DODGE = 0.6  # spread of a category's points, as a share of the distance between categories
MAX_LINES = 10  # in a panel; more lines look alike
COLUMNS = 3  # of the legend
Curves = dict[str, tuple[pd.DataFrame, str]]  # label: rows and statistic


@styled
def sweep_figure(table: pd.DataFrame, swept: list[str]) -> Figure | None:
    """Draw the statistics of a sweep over its first key, a column of panels for each target.

    If rows also differ in another key, in rules or in methods, each combination has a curve of its
    own, for at most two statistics. Of more than `MAX_LINES` combinations only the first are drawn,
    and the title says how many there are. Curves are lines if the first key's values are numbers,
    else points. Bars are intervals over prompts. None if there is nothing to draw.
    """
    if "draft_length" in table:  # 0 is the target alone
        table = table[table["draft_length"] > 0]
    statistics = [name for name in NAMES if name in table]
    if "target" not in table or not swept or not statistics or table.empty:
        return None
    targets = table["target"].unique()
    kinds = _kinds(table, swept)
    combinations = 1
    if kinds:
        parts = list(table.groupby(kinds, sort=False, dropna=False))
        combinations = len(parts)
        rows = [[name] for name in SELECTED if name in statistics][:2] or [statistics[:1]]
        groups = {", ".join(map(_value_text, kinds, key)): part for key, part in parts[:MAX_LINES]}
    else:
        rows = [[name for name in names if name in statistics] for names in PANELS.values()]
        rows = [names for names in rows if names]
        groups = {"": table}
    figure, axes = grid(len(rows), list(map(str, targets)))
    for line, names in zip(axes, rows, strict=True):
        curves: Curves = {
            group or NAMES[name]: (part, name) for group, part in groups.items() for name in names
        }
        for axis, target in zip(line, targets, strict=True):
            _panel(axis, curves, target, swept[0])
            axis.sharey(line[0])
        unit = next(label for label, known in PANELS.items() if names[0] in known)
        line[0].set_ylabel(NAMES[names[0]] if kinds or len(names) == 1 else unit)
    several = [axis for axis in axes.flat if len(axis.get_legend_handles_labels()[1]) > 1]
    labels = {text for axis in several for text in axis.get_legend_handles_labels()[1]}
    legend(figure, several, COLUMNS)
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW * -(-len(labels) // COLUMNS))
    if combinations > MAX_LINES:
        figure.suptitle(
            f"the first {MAX_LINES} of {combinations} combinations; the CSV file has all",
            fontsize="small",
        )
    return figure


def _in_words(key: str) -> str:
    last = key.rpartition(".")[2]
    return WORDS.get(last, symbol(last).replace("_", " "))


def _value_text(kind: str, value: Any) -> str:
    return str(value) if kind in ("method", "rule") else f"{_in_words(kind)} = {value}"


def _kinds(table: pd.DataFrame, swept: Sequence[str]) -> list[str]:
    """Return the keys by which rows with the same value of the first swept key differ."""
    points = table.groupby([*swept, "target"], dropna=False)
    several = [key for key in swept[1:] if len(table[key].unique()) > 1]
    keys = [key for key in KINDS if key in table and key not in swept]
    return several + [key for key in keys if points[key].nunique(dropna=False).max() > 1]


def _panel(axis: Axes, curves: Curves, target: Any, key: str) -> None:
    every = pd.concat([part[key] for part, _ in curves.values()])
    numeric = pd.api.types.is_numeric_dtype(every)
    names = list(every.unique())
    for number, (label, (part, statistic)) in enumerate(curves.items()):
        values = part[part["target"] == target]
        color, style = LINES[number % len(LINES)]
        if numeric:
            values = values.sort_values(key)
            x = values[key]
        else:
            x = values[key].map(names.index) + DODGE * ((number + 0.5) / len(curves) - 0.5)
        drawn: dict[str, Any] = {"color": color, "linestyle": style if numeric else "none"}
        bars = None
        if set(interval_columns(statistic)) <= set(values):
            bars = error_bars(*Estimate.read(values, statistic))
        y = values[statistic].astype(float)  # NaN where a point has no value
        axis.errorbar(x, y, bars, **drawn, **POINTS, label=label, elinewidth=0.7)
    axis.set_xlabel(_in_words(key))
    axis.grid(**GRID_LINES)
    if not numeric:
        axis.set_xlim(-0.5, len(names) - 0.5)
        axis.set_xticks(np.arange(len(names)), list(map(str, names)))
        axis.tick_params(axis="x", labelrotation=20 if sum(map(len, map(str, names))) > 32 else 0)

"""The plot of a sweep: statistics of the swept stage over one or two swept keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .style import LINES, POINTS, RULED, grid, legend, styled
from .text import limits, upper_end

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
    "tokens a call": {"tokens_per_call": "tokens a target call"},
    "speedup": {"speedup": "speedup over the target alone"},
}
NAMES = {key: name for names in AXES.values() for key, name in names.items()}
KINDS = ("rule", "eps", "method", "temperature", "draft_length")  # what rows of a point differ in
DODGE = 0.6  # of the distance between two categories, over which their points are spread
MAX_LINES = 10  # in a panel; more cannot be told apart
LEGEND_COLUMNS, LEGEND_ROW = 3, 0.14  # the height in inches


@styled
def sweep_figure(table: pd.DataFrame, swept: list[str]) -> Figure | None:
    """Draw one panel a target: the statistics over one key, or one of them by the rest.

    Where the rows of a point differ in more than the swept key (rules, methods, a second key),
    each kind has a curve of p5, or of tokens a call and, below, the speedup. A key with numbers is
    drawn as lines, one with names as points; bars are intervals over prompts. Of more than
    `MAX_LINES` rules, or other settings, the first are drawn and the title says so.

    Args:
        table: one row a point and target, with the swept keys, `target` and statistics in nats.
        swept: names of the swept columns, in the order they were given.

    Returns:
        The figure, or None when the table has nothing that can be drawn.
    """
    if "target" not in table or not swept:
        return None
    if "tokens_per_call" in table:  # the target alone, whatever is swept
        table = table[table["draft_length"] > 0]
    statistics = [name for name in NAMES if name in table]
    if not statistics or table.empty:
        return None
    kinds = [key for key in swept[1:] if _varies(table, key)]
    kinds += [key for key in KINDS if key in table and _free(table, [*swept, *kinds], key)]
    targets = [str(target) for target in table["target"].unique()]
    groups: Mapping[str, pd.DataFrame] = {"": table}
    if kinds:
        grouped = table.groupby(kinds, sort=False, dropna=False)
        groups = {_named(kinds, key): rows for key, rows in grouped}
        wanted = ("tokens_per_call", "speedup") if "speedup" in table else ("p5",)
        rows = [[name] for name in wanted if name in statistics] or [statistics[:1]]
    else:
        axes_of = [list(names) for names in AXES.values()]
        rows = [[name for name in names if name in statistics] for names in axes_of]
        rows = [names for names in rows if names]
    figure, axes = grid(len(rows), targets)
    if len(groups) > MAX_LINES:
        noun = "rules" if kinds == ["rule"] else "settings"
        figure.suptitle(f"{MAX_LINES} of {len(groups)} {noun} drawn", fontsize=8)
    for line, names in zip(axes, rows, strict=True):
        curves = {
            name or NAMES[statistic]: (part, statistic)
            for name, part in list(groups.items())[:MAX_LINES]
            for statistic in names
        }
        for axis, target in zip(line, table["target"].unique(), strict=True):
            _panel(axis, curves, target, swept[0], _places(table[swept[0]]))
            axis.sharey(line[0])
        label = _axis_name(names, bool(kinds))
        # of another divergence than KL not always in nats
        line[0].set_ylabel(label.replace(" (nats)", "") if "divergence" in table else label)
    shown = {text for axis in axes.flat for text in axis.get_legend_handles_labels()[1]}
    legend(figure, axes.flat, LEGEND_COLUMNS)
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW * -(-len(shown) // LEGEND_COLUMNS))
    return figure


def _axis_name(names: Sequence[str], single: bool) -> str:
    unit = next(axis for axis, known in AXES.items() if names[0] in known)
    if not single:
        return unit
    return NAMES[names[0]] + (" (nats)" if names[0] in AXES["certificate (nats)"] else "")


def _named(keys: list[str], values: Iterable[Any]) -> str:
    pairs = zip(keys, values, strict=True)
    return ", ".join(str(value) if key == "method" else f"{key}={value}" for key, value in pairs)


def _varies(table: pd.DataFrame, key: str) -> bool:
    return len(table[key].unique()) > 1


def _free(table: pd.DataFrame, swept: list[str], key: str) -> bool:
    """Whether the rows of a swept point differ in `key`, so that it says something new."""
    points = table.groupby([*swept, "target"], dropna=False)[key]
    return bool(points.nunique(dropna=False).max() > 1)


def _places(values: pd.Series) -> dict[Any, float] | None:
    """Return where names stand on an axis; None for numbers, which stand where they are."""
    if pd.api.types.is_numeric_dtype(values):
        return None
    return {name: float(at) for at, name in enumerate(values.unique())}


def _panel(
    axis: Axes,
    curves: Mapping[str, tuple[pd.DataFrame, str]],
    target: Any,
    x: str,
    places: dict[Any, float] | None,
) -> None:
    for at, (name, (part, statistic)) in enumerate(curves.items()):
        values = part[part["target"] == target]
        if places is None:
            values = values.sort_values(x)
            _curve(axis, values[x], values, statistic, name, at)
        else:
            aside = DODGE * ((at + 0.5) / len(curves) - 0.5)
            _curve(axis, values[x].map(places) + aside, values, statistic, name, at, "none")
    axis.set_xlabel(x)
    axis.grid(**RULED)
    if places is not None:
        axis.set_xticks(list(places.values()), [str(name) for name in places])
        axis.tick_params(axis="x", labelrotation=20 if max(map(len, map(str, places))) > 8 else 0)


def _curve(
    axis: Axes, x: pd.Series, values: pd.DataFrame, y: str, name: str, at: int, joined: Any = None
) -> None:
    """Draw the `at`-th curve; colours come again with another line style."""
    color, _ = LINES[at % len(LINES)]
    _, style = LINES[(at + at // len(LINES)) % len(LINES)]
    style = style if joined is None else joined
    axis.plot(x, values[y], color=color, linestyle=style, **POINTS, label=name)
    ends = values[upper_end(y)] if upper_end(y) in values else values[y]
    if joined is None and not ends.equals(values[y]):  # certificates known as intervals
        axis.fill_between(x, values[y], ends, color=color, alpha=0.25, linewidth=0)
    low, high = limits(y)
    if {low, high} <= set(values):
        reach = np.stack([values[y] - values[low], values[high] - values[y]]).clip(min=0)
        axis.errorbar(x, values[y], np.nan_to_num(reach), fmt="none", ecolor=color, elinewidth=0.7)

"""The plot of a sweep: statistics of the swept stage over one or two swept keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .style import LINES, POINTS, RULED, error_bars, grid, legend, rule_colour, styled
from .text import limits, symbol

AXES = {  # axis label: its statistics and their printed names
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
    "nats": {"nats_given_up": "nats given up a token"},
    "cost": {"cost": "cost of a drafted token, ρ"},
}
NAMES = {key: name for names in AXES.values() for key, name in names.items()}
KINDS = ("rule", "eps", "method", "temperature", "draft_length")  # keys of a point's rows
WORDS = {"draft_length": "γ", "temperature": "T", "eps": "ε", "drafter": "drafter"}
FROM_ZERO = {"accepted", "certified", "coverage", "cost"}  # small differences look small
DODGE = 0.6  # spread of a category's points, as a share of the distance between categories
MAX_LINES = 10  # in a panel; more lines look alike
LEGEND_COLUMNS, LEGEND_ROW = 3, 0.14  # height of a row in inches


@styled
def sweep_figure(table: pd.DataFrame, swept: list[str]) -> Figure | None:
    """Draw the statistics of a sweep over its first key, in one panel for each target.

    If the rows of a point differ in more than the swept key (rules, methods, a second key), each
    combination has a curve of p5, or of tokens a call and, below, the speedup. Numeric keys are
    drawn as lines, others as points; bars are intervals over prompts. Of more than `MAX_LINES`
    combinations the first are drawn, and the title gives their number. Two swept keys with one row
    for every pair of values are drawn as a map.

    Args:
        table: one row for each point and target, with the swept keys, `target` and statistics.
        swept: names of the swept columns, in the given order.

    Returns:
        The figure, or None if the table has no statistic to draw.
    """
    if "target" not in table or not swept:
        return None
    if "draft_length" in table:  # 0 is the target alone
        table = table[table["draft_length"] > 0]
    statistics = [name for name in NAMES if name in table]
    if not statistics or table.empty:
        return None
    kinds = [key for key in swept[1:] if _varies(table, key)]
    kinds += [key for key in KINDS if key in table and _free(table, [*swept, *kinds], key)]
    targets = [str(target) for target in table["target"].unique()]
    if len(swept) == 2 and kinds == swept[1:] and _is_grid(table, swept):
        return _maps(table, swept, [name for name in _wanted(table) if name in statistics][:2])
    groups: Mapping[str, pd.DataFrame] = {"": table}
    if kinds:
        grouped = table.groupby(kinds, sort=False, dropna=False)
        groups = {_named(kinds, key): rows for key, rows in grouped}
        rows = [[name] for name in _wanted(table) if name in statistics] or [statistics[:1]]
    else:
        axes_of = [list(names) for names in AXES.values()]
        rows = [[name for name in names if name in statistics] for names in axes_of]
        rows = [names for names in rows if names]
    figure, axes = grid(len(rows), targets)
    by_rule = kinds == ["rule"]
    if len(groups) > MAX_LINES:
        noun = "rules" if by_rule else "settings"
        figure.suptitle(f"{MAX_LINES} of {len(groups)} {noun} drawn", fontsize=8)
    for line, names in zip(axes, rows, strict=True):
        curves = {
            name or NAMES[statistic]: (part, statistic)
            for name, part in list(groups.items())[:MAX_LINES]
            for statistic in names
        }
        for axis, target in zip(line, table["target"].unique(), strict=True):
            if axis is not line[0]:
                axis.sharey(line[0])
            _panel(axis, curves, target, swept[0], _places(table[swept[0]]), by_rule)
        line[0].set_ylabel(_axis_name(names, bool(kinds) or len(names) == 1))
    several = [axis for axis in axes.flat if len(axis.get_legend_handles_labels()[1]) > 1]
    shown = {text for axis in several for text in axis.get_legend_handles_labels()[1]}
    legend(figure, several, LEGEND_COLUMNS)
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW * -(-len(shown) // LEGEND_COLUMNS))
    return figure


def _axis_name(names: Sequence[str], single: bool) -> str:
    unit = next(axis for axis, statistics in AXES.items() if names[0] in statistics)
    if not single:
        return unit
    return NAMES[names[0]] + (" (nats)" if names[0] in AXES["certificate (nats)"] else "")


def in_words(key: str) -> str:
    """Return the printed name of a swept key or a column.

    >>> in_words("criteria.t"), in_words("criteria.alpha"), in_words("decoding.draft_length")
    ('t', 'α', 'γ')
    >>> in_words("prompts.min_tokens")
    'min tokens'
    """
    last = key.rpartition(".")[2]
    return WORDS.get(last, symbol(last).replace("_", " "))


def _named(keys: list[str], values: Iterable[Any]) -> str:
    pairs = zip(keys, values, strict=True)
    return ", ".join(
        str(value) if key in ("method", "rule") else f"{in_words(key)} = {value}"
        for key, value in pairs
    )


def _wanted(table: pd.DataFrame) -> tuple[str, ...]:
    """Return the statistics drawn as several curves or as maps."""
    return ("tokens_per_call", "speedup") if "speedup" in table else ("p5",)


def _is_grid(table: pd.DataFrame, swept: list[str]) -> bool:
    """Whether every pair of values of two keys has one row for each target."""
    sizes = [table[key].nunique() for key in swept]
    pairs = table.groupby(["target", *swept], dropna=False).size()
    return bool(min(sizes) > 1 and (pairs == 1).all()) and (
        len(pairs) == sizes[0] * sizes[1] * table["target"].nunique()
    )


def _maps(table: pd.DataFrame, swept: list[str], statistics: Sequence[str]) -> Figure:
    """Draw maps over two keys: a row for each statistic, a column for each target."""
    targets = table["target"].unique()
    figure, axes = grid(len(statistics), list(map(str, targets)))
    for line, statistic in zip(axes, statistics, strict=True):
        ends = {"vmin": table[statistic].min(), "vmax": table[statistic].max()}
        for axis, target in zip(line, targets, strict=True):
            part = table[table["target"] == target]
            values = part.pivot(index=swept[1], columns=swept[0], values=statistic)
            image = axis.imshow(values, cmap="viridis", aspect="auto", origin="lower", **ends)
            axis.set_xticks(range(values.shape[1]), list(map(str, values.columns)))
            axis.set_yticks(range(values.shape[0]), list(map(str, values.index)))
            axis.set_xlabel(in_words(swept[0]))
            axis.set_ylabel(in_words(swept[1]))
            middle = (ends["vmin"] + ends["vmax"]) / 2
            for (row, column), value in np.ndenumerate(values.to_numpy()):
                text = {"color": "black" if value > middle else "white", "fontsize": 6}
                axis.text(column, row, f"{value:.3g}", ha="center", va="center", **text)
        figure.colorbar(image, ax=list(line), label=_axis_name([statistic], True))
    return figure


def _varies(table: pd.DataFrame, key: str) -> bool:
    return len(table[key].unique()) > 1


def _free(table: pd.DataFrame, swept: list[str], key: str) -> bool:
    """Whether the rows of a swept point differ in `key`."""
    points = table.groupby([*swept, "target"], dropna=False)[key]
    return bool(points.nunique(dropna=False).max() > 1)


def _places(values: pd.Series) -> dict[Any, float] | None:
    """Return the positions of names on an axis; None for numbers."""
    if pd.api.types.is_numeric_dtype(values):
        return None
    return {name: float(place) for place, name in enumerate(values.unique())}


def _panel(
    axis: Axes,
    curves: Mapping[str, tuple[pd.DataFrame, str]],
    target: Any,
    x: str,
    places: dict[Any, float] | None,
    by_rule: bool,
) -> None:
    for index, (name, (part, statistic)) in enumerate(curves.items()):
        values = part[part["target"] == target]
        color = rule_colour(name) if by_rule else LINES[index % len(LINES)][0]
        # a colour that comes again gets another style
        style = LINES[(index + index // len(LINES)) % len(LINES)][1]
        if places is None:
            values = values.sort_values(x)
            _curve(axis, values[x], values, statistic, name, color, style)
        else:
            aside = DODGE * ((index + 0.5) / len(curves) - 0.5)
            _curve(axis, values[x].map(places) + aside, values, statistic, name, color, None)
    axis.set_xlabel(in_words(x))
    axis.grid(**RULED)
    if places is not None:
        axis.set_xlim(-0.5, len(places) - 0.5)
        if {statistic for _, statistic in curves.values()} <= FROM_ZERO:
            axis.update_datalim([(0.0, 0.0)])
            axis.autoscale_view(scalex=False)
        axis.set_xticks(list(places.values()), [str(name) for name in places])
        axis.tick_params(axis="x", labelrotation=20 if sum(map(len, map(str, places))) > 32 else 0)


def _curve(
    axis: Axes, x: pd.Series, values: pd.DataFrame, y: str, name: str, color: str, style: Any
) -> None:
    """Draw a curve, or unconnected points if `style` is None."""
    joined = "none" if style is None else style
    axis.plot(x, values[y], color=color, linestyle=joined, **POINTS, label=name)
    low, high = limits(y)
    if {low, high} <= set(values):
        reaching = error_bars(values[y], values[low], values[high])
        axis.errorbar(x, values[y], reaching, fmt="none", ecolor=color, elinewidth=0.7)

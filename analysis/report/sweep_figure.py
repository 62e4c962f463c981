"""The plot of a sweep: statistics of the swept stage over one or two swept keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .style import LINES, POINTS, RULED, error_bars, grid, legend, rule_colour, styled
from .text import limits, symbol, upper_end

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
    "nats": {"nats_given_up": "nats given up a token"},
    "cost": {"cost": "cost of a drafted token, ρ"},
}
NAMES = {key: name for names in AXES.values() for key, name in names.items()}
KINDS = ("rule", "eps", "method", "temperature", "draft_length")  # what rows of a point differ in
WORDS = {"draft_length": "γ", "temperature": "T", "eps": "ε", "drafter": "drafter"}
FROM_ZERO = {"accepted", "certified", "coverage", "cost"}  # small differences look small
DODGE = 0.6  # of the distance between two categories, over which their points are spread
MAX_LINES = 10  # in a panel; more cannot be told apart
LEGEND_COLUMNS, LEGEND_ROW = 3, 0.14  # the height in inches


@styled
def sweep_figure(table: pd.DataFrame, swept: list[str]) -> Figure | None:
    """Draw one panel a target: the statistics over one key, or one of them by the rest.

    Where the rows of a point differ in more than the swept key (rules, methods, a second key),
    each kind has a curve of p5, or of tokens a call and, below, the speedup. A key with numbers is
    drawn as lines, one with names as points; bars are intervals over prompts. Of more than
    `MAX_LINES` rules, or other settings, the first are drawn and the title says so. Two swept keys
    of which every pair of values has one row are a map of the same statistics.

    Args:
        table: one row a point and target, with the swept keys, `target` and statistics in nats.
        swept: names of the swept columns, in the order they were given.

    Returns:
        The figure, or None when the table has nothing that can be drawn.
    """
    if "target" not in table or not swept:
        return None
    if "draft_length" in table:  # the target alone, whatever is swept
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
        label = _axis_name(names, bool(kinds) or len(names) == 1)
        # of another divergence than KL not always in nats
        line[0].set_ylabel(label.replace(" (nats)", "") if "divergence" in table else label)
    several = [axis for axis in axes.flat if len(axis.get_legend_handles_labels()[1]) > 1]
    shown = {text for axis in several for text in axis.get_legend_handles_labels()[1]}
    legend(figure, several, LEGEND_COLUMNS)
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW * -(-len(shown) // LEGEND_COLUMNS))
    return figure


def _axis_name(names: Sequence[str], single: bool) -> str:
    unit = next(axis for axis, known in AXES.items() if names[0] in known)
    if not single:
        return unit
    return NAMES[names[0]] + (" (nats)" if names[0] in AXES["certificate (nats)"] else "")


def in_words(key: str) -> str:
    """Return the name of a swept key, or of a column, as printed.

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
    """Return the statistics of which curves of several kinds, and maps, are drawn."""
    return ("tokens_per_call", "speedup") if "speedup" in table else ("p5",)


def _is_grid(table: pd.DataFrame, swept: list[str]) -> bool:
    """Whether every pair of the values of two keys has one row a target."""
    sizes = [table[key].nunique() for key in swept]
    pairs = table.groupby(["target", *swept], dropna=False).size()
    return bool(min(sizes) > 1 and (pairs == 1).all()) and (
        len(pairs) == sizes[0] * sizes[1] * table["target"].nunique()
    )


def _maps(table: pd.DataFrame, swept: list[str], statistics: Sequence[str]) -> Figure:
    """Draw a map over two keys: a row a statistic, a column a target."""
    targets = table["target"].unique()
    figure, axes = grid(len(statistics), list(map(str, targets)))
    for line, statistic in zip(axes, statistics, strict=True):
        ends = {"vmin": table[statistic].min(), "vmax": table[statistic].max()}
        for axis, target in zip(line, targets, strict=True):
            mine = table[table["target"] == target]
            values = mine.pivot(index=swept[1], columns=swept[0], values=statistic)
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
    by_rule: bool,
) -> None:
    for at, (name, (part, statistic)) in enumerate(curves.items()):
        values = part[part["target"] == target]
        color = rule_colour(name) if by_rule else LINES[at % len(LINES)][0]
        style = LINES[(at + at // len(LINES)) % len(LINES)][1]  # with a colour that comes again
        if places is None:
            values = values.sort_values(x)
            _curve(axis, values[x], values, statistic, name, color, style)
        else:
            aside = DODGE * ((at + 0.5) / len(curves) - 0.5)
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
    """Draw a curve; points that nothing joins where `style` is None."""
    joined = "none" if style is None else style
    axis.plot(x, values[y], color=color, linestyle=joined, **POINTS, label=name)
    ends = values[upper_end(y)] if upper_end(y) in values else values[y]
    if style is not None and not ends.equals(values[y]):  # certificates known as intervals
        axis.fill_between(x, values[y], ends, color=color, alpha=0.25, linewidth=0)
    low, high = limits(y)
    if {low, high} <= set(values):
        reaching = error_bars(values[y], values[low], values[high])
        axis.errorbar(x, values[y], reaching, fmt="none", ecolor=color, elinewidth=0.7)

"""Draft trees in the report: predicted, measured and bounded tokens of a call.

The figure is after Figures 3 and 4 of arXiv 2504.15475: one column a target; for each law and
temperature a row of tokens a call, and one of what a further drafted token adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ...decoding.metrics import Decoded
from ...decoding.trees import SHAPES, rates, tree_runs
from ...trees.bounds import least_residual_upper, residual_upper
from ...trees.optimal import best_trees
from ...trees.topology import Floats, batch, sequence, spec_infer, symmetric, tree_tokens_per_call
from ..records import Column, Figure, Table, by_method, worded
from ..style import BLACK, GREY, LINES, POINTS, grid, legend, reach, styled
from ..text import UNDEFINED, number_text, share_text

Statistics = tuple[int, float, int]  # resamples, confidence, seed
Curve = tuple[Floats, Floats]  # drafted tokens, tokens a call
COLOURS = {name: colour for name, (colour, _) in zip(SHAPES.values(), LINES, strict=True)}
FIXED, LEAST = "Lemma 4.3, m of the largest k", "Lemma 4.3, best m"
DASHES = {FIXED: (0, (1, 1)), LEAST: (0, ())}


def trees_table(decoded: Sequence[Decoded], statistics: Statistics) -> Table | None:
    """Tokens a call of every tree, measured and predicted; None where no method drafted trees."""
    data = of_targets(decoded, [_trees(one, statistics) for one in decoded])
    if data.empty:
        return None
    columns = [
        Column("T", "{:g}".format, "temperature"),
        Column("nodes", str, "nodes"),
        Column("levels", str, "levels"),
        Column("measured", _interval, ("tokens_per_call", "ci_low", "ci_high"), above="τ"),
        Column("predicted", number_text, "predicted", above="τ"),
        Column("bound", number_text, "bound", above="τ"),
        Column("first", share_text, "first_level", above="levels"),
        Column("later", share_text, "later_levels", above="levels"),
        Column("R", str, "acceptance"),
    ]
    return Table(**worded("decoding_trees"), **by_method(columns), data=data)


def of_targets(decoded: Sequence[Decoded], frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the frames of all targets as one, with the target's printed name."""
    return pd.concat(
        [frame.assign(target=one.target) for one, frame in zip(decoded, frames, strict=True)],
        ignore_index=True,
    )


def _interval(value: float, low: float, high: float) -> str:
    return UNDEFINED if math.isnan(value) else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _trees(one: Decoded, statistics: Statistics) -> pd.DataFrame:
    """Return a row for each run that drafted trees."""
    table = tree_runs(one, *statistics)
    found = {group: rates(one, table, group) for group in table["group"].unique()}
    table["bound"] = [
        math.nan
        if shape == SHAPES["dynamic"]
        else least_residual_upper(found[group], int(nodes), tight=True)[1]
        for group, nodes, shape in table[["group", "nodes", "shape"]].to_numpy()
    ]
    table["acceptance"] = [
        " ".join(f"{rate:.3g}" for rate in found[group]) for group in table["group"]
    ]
    return table[table["run"].map(one.of_trees).astype(bool)]


def predicted_curves(found: Floats, largest: int) -> dict[str, Curve]:
    """Return the zero-order tokens a call of every shape, of at most `largest` drafted tokens.

    Args:
        found: (J,) R over sibling indices.
        largest: drafted tokens.
    """
    makers: dict[str, Callable[[int], object]] = {
        "sequence": sequence,
        "batch": batch,
        "spec_infer": spec_infer,
        "symmetric": lambda depth: symmetric(2, depth),
    }
    curves = {}
    for name, make in makers.items():
        points = []
        for size in range(1, largest + 1):
            tree = make(size)
            if len(tree) > largest or max(tree.siblings) > len(found):  # type: ignore[arg-type, attr-defined]
                break
            points.append((len(tree), tree_tokens_per_call(tree, found)))  # type: ignore[arg-type]
        if points:
            curves[SHAPES[name]] = _curve(points)
    best = best_trees(found, largest)[0]
    possible = np.isfinite(best)
    curves[SHAPES["optimal"]] = (np.arange(largest + 1.0)[possible][1:], best[possible][1:])
    return curves


def bound_curves(found: Floats, largest: int) -> dict[str, Curve]:
    """Return the bounds of Lemma 4.3 on the zero-order tokens a call, over drafted tokens."""
    sizes = range(1, largest + 1)
    m = least_residual_upper(found, largest)[0]
    curves = {LEAST: [(k, least_residual_upper(found, k)[1]) for k in sizes]}
    if np.isfinite(m):
        curves[FIXED] = [(k, residual_upper(found, k, int(m))) for k in sizes]
    return {name: _curve(points) for name, points in curves.items()}


@styled
def trees_figure(decoded: Sequence[Decoded], statistics: Statistics) -> Figure | None:
    """Draw tokens a call over drafted tokens, and what one more drafted token adds.

    None where no method drafted trees.
    """
    tables = [tree_runs(one, *statistics) for one in decoded]
    groups = [
        group
        for group in dict.fromkeys(group for table in tables for group in table["group"])
        if any(
            one.of_trees[table[table["group"] == group]["run"]].any()
            for one, table in zip(decoded, tables, strict=True)
        )
    ]
    if not groups:
        return None
    drawing, axes = grid(2 * len(groups), [one.target for one in decoded])
    frames = []
    for column, (one, table) in enumerate(zip(decoded, tables, strict=True)):
        parts = [pd.DataFrame()]
        for row, group in enumerate(groups):
            pair, mine = axes[2 * row : 2 * row + 2, column], table[table["group"] == group]
            for axis in pair:
                axis.set_xlabel(f"drafted tokens, {group}")
                axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            found = rates(one, table, group)
            if len(found):
                largest = int(mine["nodes"].max())
                curves = predicted_curves(found, largest), bound_curves(found, largest)
                parts += [part.assign(quantity="tokens", group=group)
                          for part in _draw_tokens(pair[0], mine, *curves)]  # fmt: skip
                parts += [part.assign(quantity="added", group=group)
                          for part in _draw_added(pair[1], mine, *curves)]  # fmt: skip
        frames.append(pd.concat(parts, ignore_index=True))
    legend(drawing, axes.flat, columns=3)
    data = of_targets(decoded, frames)
    return Figure(**worded("decoding_trees_figure"), data=data, drawing=drawing)


def _draw_tokens(
    axis: Axes, mine: pd.DataFrame, predicted: Mapping[str, Curve], bounds: Mapping[str, Curve]
) -> list[pd.DataFrame]:
    """Draw tokens a call over drafted tokens; return the numbers drawn."""
    parts = []
    for name, (k, tokens) in bounds.items():
        axis.plot(k, tokens, color=GREY, linestyle=DASHES[name], label=name)
        parts.append(_part(name, "bound", k, tokens))
    for name, (k, tokens) in predicted.items():
        axis.plot(k, tokens, color=COLOURS[name], linestyle=":")
        parts.append(_part(name, "predicted", k, tokens))
    for shown, shape in mine.groupby("shape", sort=False):
        name, shape = str(shown), shape.sort_values("nodes")
        value, ends = shape["tokens_per_call"], shape[["ci_low", "ci_high"]]
        axis.errorbar(
            shape["nodes"],
            value,
            reach(value, ends["ci_low"], ends["ci_high"]),
            color=COLOURS[name],
            **POINTS,
            elinewidth=0.7,
            linewidth=0.6,
            label=name,
        )
        part = _part(name, "measured", shape["nodes"], value)
        parts.append(part.assign(ci_low=ends["ci_low"].array, ci_high=ends["ci_high"].array))
    top = np.nanmax([mine["ci_high"].max(), *bounds[LEAST][1]])
    axis.set_ylim(0.9, 1.15 * top)
    axis.set_ylabel("tokens a call")
    return parts


def _draw_added(
    axis: Axes, mine: pd.DataFrame, predicted: Mapping[str, Curve], bounds: Mapping[str, Curve]
) -> list[pd.DataFrame]:
    """Draw what one more drafted token adds; return the numbers drawn."""
    parts = []
    for name, (k, tokens) in predicted.items():
        at, gain = marginal(k, tokens, first=1.0)
        axis.plot(at, gain, color=COLOURS[name], linestyle=":")
        parts.append(_part(name, "predicted", at, gain))
    if FIXED in bounds:
        at, gain = marginal(*bounds[FIXED])
        axis.plot(at, gain, color=BLACK, linestyle=DASHES[FIXED], label=FIXED)
        parts.append(_part(FIXED, "bound", at, gain))
    for shown, shape in mine.groupby("shape", sort=False):
        name, shape = str(shown), shape.sort_values("nodes").drop_duplicates("nodes")
        tokens = shape["tokens_per_call"].to_numpy()
        at, gain = marginal(shape["nodes"].to_numpy(dtype=np.float64), tokens, first=1.0)
        axis.plot(at, gain, color=COLOURS[name], **POINTS, linewidth=0.6, label=name)
        parts.append(_part(name, "measured", at, gain))
    axis.set_yscale("log")
    axis.set_ylabel("added by a token (log scale)")
    return parts


def marginal(k: Floats, tokens: Floats, first: float | None = None) -> Curve:
    """Return what a drafted token adds up to each size, from the size before it.

    `first` is the tokens a call without a draft; None leaves the first size out.

    Example:
        >>> marginal(np.array([1.0, 3.0]), np.array([1.5, 1.9]), first=1.0)[1].round(6).tolist()
        [0.5, 0.2]
    """
    if first is not None:
        k, tokens = np.append(0.0, k), np.append(first, tokens)
    return k[1:], np.diff(tokens) / np.diff(k)


def _curve(points: Sequence[tuple[int, float]]) -> Curve:
    k, tokens = np.array(points, dtype=np.float64).T
    return k, tokens


def _part(name: str, of: str, k: object, values: object) -> pd.DataFrame:
    drawn = {"drafted": np.asarray(k), "value": np.asarray(values)}
    return pd.DataFrame({"curve": name, "of": of, **drawn})

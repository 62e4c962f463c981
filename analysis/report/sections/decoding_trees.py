"""Draft trees in the report: predicted, measured and bounded tokens of a call.

The figure is after Figures 3 and 4 of arXiv 2504.15475: one column a target; for each law and
temperature a row of tokens a call, and one of what a further drafted token adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ...decoding.metrics import Decoded
from ...decoding.trees import SHAPES, rates, tree_runs
from ...statistics.bootstrap import Resampling
from ...trees.acceptance import least_residual_upper, residual_upper
from ...trees.optimal import best_trees
from ...trees.topology import Floats, batch, sequence, spec_infer, symmetric, tree_tokens_per_call
from ..records import Figure, Table, worded
from ..style import GREY, LINES, POINTS, error_bars, grid, legend, logarithmic, styled

Curve = tuple[Floats, Floats]  # drafted tokens, tokens a call
COLOURS = {name: colour for name, (colour, _) in zip(SHAPES.values(), LINES, strict=False)}
FIXED, LEAST = "Lemma 4.3, m of the largest k", "Lemma 4.3, best m"
QUANTITIES = {"tokens": "tokens a call", "added": "added by a token (log scale)"}
COLUMNS = ["curve", "of", "drafted", "value", "ci_low", "ci_high"]
DASHES = {FIXED: (0, (1, 1)), LEAST: (0, ())}


def trees_table(decoded: Sequence[Decoded], statistics: Resampling) -> Table | None:
    """Tokens a call of every tree, measured and predicted; None where no method drafted trees."""
    data = concat_targets(decoded, [_trees(one, statistics) for one in decoded])
    if data.empty:
        return None
    return Table(**worded("decoding_trees"), data=data)


def concat_targets(decoded: Sequence[Decoded], frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the frames of all targets as one, with the target's printed name."""
    return pd.concat(
        [frame.assign(target=one.target) for one, frame in zip(decoded, frames, strict=True)],
        ignore_index=True,
    )


def _trees(one: Decoded, statistics: Resampling) -> pd.DataFrame:
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
def trees_figure(decoded: Sequence[Decoded], statistics: Resampling) -> Figure | None:
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
                drawn = _curves(mine, found)
                for axis, quantity in zip(pair, QUANTITIES, strict=True):
                    part = drawn[drawn["quantity"] == quantity]
                    _draw(axis, part)
                    axis.set_ylabel(QUANTITIES[quantity])
                    parts.append(part.assign(group=group))
                least = drawn.query("quantity == 'tokens' and curve == @LEAST")["value"]
                top = np.nanmax([mine["ci_high"].max(), *least])
                pair[0].set_ylim(0.9, 1.15 * top)
                logarithmic(pair[1], "y")
        frames.append(pd.concat(parts, ignore_index=True))
    legend(drawing, axes.flat, columns=3)
    data = concat_targets(decoded, frames)
    return Figure(**worded("decoding_trees_figure"), data=data, drawing=drawing)


def _curves(mine: pd.DataFrame, found: Floats) -> pd.DataFrame:
    """Return what is drawn of one law: quantity, curve, of, drafted, value, ci_low, ci_high."""
    largest = int(mine["nodes"].max())
    parts = [
        pd.DataFrame({"curve": name, "of": of, "drafted": k, "value": tokens})
        for of, curves in (("bound", bound_curves), ("predicted", predicted_curves))
        for name, (k, tokens) in curves(found, largest).items()
    ]
    columns = {"shape": "curve", "nodes": "drafted", "tokens_per_call": "value"}
    measured = mine.rename(columns=columns).assign(of="measured")[COLUMNS]
    parts += [one.sort_values("drafted") for _, one in measured.groupby("curve", sort=False)]
    added = []
    for part in parts:
        once = part.drop_duplicates("drafted")
        if once["curve"].iloc[0] != LEAST:
            first = None if once["curve"].iloc[0] == FIXED else 1.0
            k, tokens = once[["drafted", "value"]].to_numpy(np.float64).T
            k, gain = marginal(k, tokens, first)
            added.append(
                pd.DataFrame({**once.iloc[0][["curve", "of"]], "drafted": k, "value": gain})
            )
    return pd.concat([
        pd.concat(of).assign(quantity=name)
        for name, of in zip(QUANTITIES, (parts, added), strict=True)
    ])  # fmt: skip


def _draw(axis: Axes, drawn: pd.DataFrame) -> None:
    """Draw tokens a call, or what one more drafted token adds, over drafted tokens."""
    for (curve, of), part in drawn.groupby(["curve", "of"], sort=False):
        name = str(curve)
        if of == "measured":
            ends = error_bars(part["value"], part["ci_low"], part["ci_high"])
            style = {**POINTS, "color": COLOURS[name], "linewidth": 0.6, "label": name}
            axis.errorbar(part["drafted"], part["value"], ends, **style, elinewidth=0.7)
        elif of == "bound":
            style = {"color": GREY, "linestyle": DASHES[name], "label": name}
            axis.plot(part["drafted"], part["value"], **style)
        else:
            axis.plot(part["drafted"], part["value"], color=COLOURS[name], linestyle=":")


def marginal(k: Floats, tokens: Floats, first: float | None = None) -> Curve:
    """Return what a drafted token adds up to each size, from the size before it.

    `first` is the tokens a call without a draft; None leaves the first size out.

    Examples:
        >>> marginal(np.array([1.0, 3.0]), np.array([1.5, 1.9]), first=1.0)[1].round(6).tolist()
        [0.5, 0.2]
    """
    if first is not None:
        k, tokens = np.append(0.0, k), np.append(first, tokens)
    return k[1:], np.diff(tokens) / np.diff(k)


def _curve(points: Sequence[tuple[int, float]]) -> Curve:
    k, tokens = np.array(points, dtype=np.float64).T
    return k, tokens

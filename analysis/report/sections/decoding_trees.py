"""Draft trees in the report: predicted, measured and bounded tokens of a call.

The figure follows Figures 3 and 4 of arXiv 2504.15475, with a column for each target. Each
verification scheme and temperature has a row of tokens a call and a row of the gain of one more
drafted token.
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
COLUMNS = ["curve", "kind", "drafted", "value", "ci_low", "ci_high"]
DASHES = {FIXED: (0, (1, 1)), LEAST: (0, ())}


def trees_table(decoded: Sequence[Decoded], statistics: Resampling) -> Table | None:
    """Return the measured and predicted tokens a call of every tree; None without trees."""
    data = concat_targets(decoded, [_trees(pair, statistics) for pair in decoded])
    if data.empty:
        return None
    return Table(**worded("decoding_trees"), data=data)


def concat_targets(decoded: Sequence[Decoded], frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the frames of all targets as one frame, with the target's printed name."""
    return pd.concat(
        [frame.assign(target=pair.target) for pair, frame in zip(decoded, frames, strict=True)],
        ignore_index=True,
    )


def _trees(pair: Decoded, statistics: Resampling) -> pd.DataFrame:
    """Return a row for each run that drafted trees."""
    table = tree_runs(pair, *statistics)
    acceptance = {group: rates(pair, table, group) for group in table["group"].unique()}
    table["bound"] = [
        math.nan
        if shape == SHAPES["dynamic"]
        else least_residual_upper(acceptance[group], int(nodes), tight=True)[1]
        for group, nodes, shape in table[["group", "nodes", "shape"]].to_numpy()
    ]
    table["acceptance"] = [
        " ".join(f"{rate:.3g}" for rate in acceptance[group]) for group in table["group"]
    ]
    return table[table["run"].map(pair.of_trees).astype(bool)]


def predicted_curves(acceptance: Floats, largest: int) -> dict[str, Curve]:
    """Return the zero-order tokens a call of every shape, over drafted tokens.

    Args:
        acceptance: (J,) R over sibling indices.
        largest: largest number of drafted tokens.
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
            if len(tree) > largest or max(tree.siblings) > len(acceptance):  # type: ignore[arg-type, attr-defined]
                break
            points.append((len(tree), tree_tokens_per_call(tree, acceptance)))  # type: ignore[arg-type]
        if points:
            curves[SHAPES[name]] = _curve(points)
    best = best_trees(acceptance, largest)[0]
    possible = np.isfinite(best)
    curves[SHAPES["optimal"]] = (np.arange(largest + 1.0)[possible][1:], best[possible][1:])
    return curves


def bound_curves(acceptance: Floats, largest: int) -> dict[str, Curve]:
    """Return the bounds of Lemma 4.3 on the zero-order tokens a call, over drafted tokens."""
    sizes = range(1, largest + 1)
    m = least_residual_upper(acceptance, largest)[0]
    curves = {LEAST: [(k, least_residual_upper(acceptance, k)[1]) for k in sizes]}
    if np.isfinite(m):
        curves[FIXED] = [(k, residual_upper(acceptance, k, int(m))) for k in sizes]
    return {name: _curve(points) for name, points in curves.items()}


@styled
def trees_figure(decoded: Sequence[Decoded], statistics: Resampling) -> Figure | None:
    """Draw tokens a call, and the gain of one more drafted token, over drafted tokens.

    None if no method drafted trees.
    """
    tables = [tree_runs(pair, *statistics) for pair in decoded]
    groups = [
        group
        for group in dict.fromkeys(group for table in tables for group in table["group"])
        if any(
            pair.of_trees[table[table["group"] == group]["run"]].any()
            for pair, table in zip(decoded, tables, strict=True)
        )
    ]
    if not groups:
        return None
    drawing, axes = grid(2 * len(groups), [pair.target for pair in decoded])
    frames = []
    for column, (pair, table) in enumerate(zip(decoded, tables, strict=True)):
        parts = [pd.DataFrame()]
        for row, group in enumerate(groups):
            panels, members = axes[2 * row : 2 * row + 2, column], table[table["group"] == group]
            for axis in panels:
                axis.set_xlabel(f"drafted tokens, {group}")
                axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            acceptance = rates(pair, table, group)
            if len(acceptance):
                drawn = _curves(members, acceptance)
                for axis, quantity in zip(panels, QUANTITIES, strict=True):
                    part = drawn[drawn["quantity"] == quantity]
                    _draw(axis, part)
                    axis.set_ylabel(QUANTITIES[quantity])
                    parts.append(part.assign(group=group))
                least = drawn.query("quantity == 'tokens' and curve == @LEAST")["value"]
                top = np.nanmax([members["ci_high"].max(), *least])
                panels[0].set_ylim(0.9, 1.15 * top)
                logarithmic(panels[1], "y")
        frames.append(pd.concat(parts, ignore_index=True))
    legend(drawing, axes.flat, columns=3)
    data = concat_targets(decoded, frames)
    return Figure(**worded("decoding_trees_figure"), data=data, drawing=drawing)


def _curves(members: pd.DataFrame, acceptance: Floats) -> pd.DataFrame:
    """Return the curves of one group: quantity, curve, kind, drafted, value, ci_low, ci_high."""
    largest = int(members["nodes"].max())
    parts = [
        pd.DataFrame({"curve": name, "kind": kind, "drafted": k, "value": tokens})
        for kind, curves in (("bound", bound_curves), ("predicted", predicted_curves))
        for name, (k, tokens) in curves(acceptance, largest).items()
    ]
    columns = {"shape": "curve", "nodes": "drafted", "tokens_per_call": "value"}
    measured = members.rename(columns=columns).assign(kind="measured")[COLUMNS]
    parts += [
        shape_points.sort_values("drafted")
        for _, shape_points in measured.groupby("curve", sort=False)
    ]
    added = []
    for part in parts:
        once = part.drop_duplicates("drafted")
        if once["curve"].iloc[0] != LEAST:
            first = None if once["curve"].iloc[0] == FIXED else 1.0
            k, tokens = once[["drafted", "value"]].to_numpy(np.float64).T
            k, gain = marginal(k, tokens, first)
            added.append(
                pd.DataFrame({**once.iloc[0][["curve", "kind"]], "drafted": k, "value": gain})
            )
    return pd.concat([
        pd.concat(curves).assign(quantity=name)
        for name, curves in zip(QUANTITIES, (parts, added), strict=True)
    ])  # fmt: skip


def _draw(axis: Axes, drawn: pd.DataFrame) -> None:
    """Draw one quantity over drafted tokens."""
    for (curve, kind), part in drawn.groupby(["curve", "kind"], sort=False):
        name = str(curve)
        if kind == "measured":
            ends = error_bars(part["value"], part["ci_low"], part["ci_high"])
            style = {**POINTS, "color": COLOURS[name], "linewidth": 0.6, "label": name}
            axis.errorbar(part["drafted"], part["value"], ends, **style, elinewidth=0.7)
        elif kind == "bound":
            style = {"color": GREY, "linestyle": DASHES[name], "label": name}
            axis.plot(part["drafted"], part["value"], **style)
        else:
            axis.plot(part["drafted"], part["value"], color=COLOURS[name], linestyle=":")


def marginal(k: Floats, tokens: Floats, first: float | None = None) -> Curve:
    """Return the gain per drafted token from each size to the next.

    `first` is the tokens a call without a draft; with None the first size has no gain.

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

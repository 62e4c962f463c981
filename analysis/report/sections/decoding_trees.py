"""Draft trees in the report: predicted, measured and bounded tokens of a call.

Figures after Figures 3 and 4 of arXiv 2504.15475; one column a target, one row a law and
temperature.
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
from ...trees.bounds import least_residual_upper, residual_upper
from ...trees.optimal import best_trees
from ...trees.topology import Floats, batch, sequence, spec_infer, symmetric, tree_tokens_per_call
from ..records import Column, Figure, Table
from ..style import BLACK, GREY, LINES, POINTS, grid, legend, styled
from ..text import UNDEFINED, number_text, share_text

Statistics = tuple[int, float, int]  # resamples, confidence, seed
Curve = tuple[Floats, Floats]  # drafted tokens, tokens a call
COLOURS = {name: colour for name, (colour, _) in zip(SHAPES.values(), LINES, strict=True)}
TIGHT, FIXED, LEAST, LOOSE = (
    "(29), the rest one index",
    "Lemma 4.3, m of the largest k",
    "Lemma 4.3, best m",
    "Theorem 4.2, the rest one index",
)
DASHES = {LOOSE: (0, (1, 3)), TIGHT: (0, (4, 2)), FIXED: (0, (1, 1)), LEAST: (0, ())}


def trees_table(decoded: Sequence[Decoded], statistics: Statistics) -> Table | None:
    """Tokens a call of every tree, measured and predicted; None where no method drafted trees."""
    data = of_targets(decoded, [_trees(one, statistics) for one in decoded])
    if data.empty:
        return None
    return Table(
        name="decoding_trees",
        title="Trees",
        question="How many tokens does a call emit with a draft tree, and how many were predicted?",
        caption="Draft trees: nodes and levels of the whole tree; τ, tokens emitted by a target "
        "call, of the calls that drafted the whole tree (near the limit of an answer levels are "
        "cut), with its interval over prompts; predicted from R, if every level accepted child i "
        "with probability R(i) whatever came before; the bound of Lemma 4.3 (ends counted as in "
        "(29)) on this prediction, for any tree of so many nodes. Levels: share of those tested "
        "that accepted a child, of first levels and of later ones. R(i): share of levels that "
        "accepted their i-th child, estimated from all runs of one law and temperature with a "
        "fixed shape.",
        data=data,
        row="method",
        section="target",
        stub="Method",
        columns=[
            Column("T", "{:g}".format, "temperature"),
            Column("nodes", str, "nodes"),
            Column("levels", str, "levels"),
            Column("measured", _interval, ("tokens_per_call", "ci_low", "ci_high"), above="τ"),
            Column("predicted", number_text, "predicted", above="τ"),
            Column("bound", number_text, "bound", above="τ"),
            Column("first", share_text, "first_level", above="levels"),
            Column("later", share_text, "later_levels", above="levels"),
            Column("R", str, "acceptance"),
        ],
        notes=[
            "Why prediction and measurement differ: the prediction takes first and later levels to "
            "accept alike. Later levels are reached in stretches on which both models agree; where "
            "they accept more than first ones, τ is above the prediction, and can exceed the "
            "bound. An answer that ends inside a draft emits less.",
            "R is ready for `acceptance` of `tree: optimal`, which takes that of stage drafts "
            "where none is given.",
        ],
    )


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
    """Return the bounds on the zero-order tokens a call, over drafted tokens."""
    sizes = range(1, largest + 1)
    m = least_residual_upper(found, largest)[0]
    curves = {
        LOOSE: [(k, residual_upper(found, k, 1)) for k in sizes],
        TIGHT: [(k, residual_upper(found, k, 1, tight=True)) for k in sizes],
        LEAST: [(k, least_residual_upper(found, k)[1]) for k in sizes],
    }
    if np.isfinite(m):
        curves[FIXED] = [(k, residual_upper(found, k, int(m))) for k in sizes]
    return {name: _curve(points) for name, points in curves.items()}


@styled
def trees_figure(decoded: Sequence[Decoded], statistics: Statistics) -> Figure | None:
    """Draw tokens a call over drafted tokens; None where no method drafted trees."""

    def draw(axis: Axes, mine: pd.DataFrame, found: Floats, largest: int) -> list[pd.DataFrame]:
        parts = []
        for name, (k, tokens) in bound_curves(found, largest).items():
            axis.plot(k, tokens, color=GREY, linestyle=DASHES[name], label=name)
            parts.append(_part(name, "bound", k, tokens))
        for name, (k, tokens) in predicted_curves(found, largest).items():
            axis.plot(k, tokens, color=COLOURS[name], linestyle=":")
            parts.append(_part(name, "predicted", k, tokens))
        for shown, shape in mine.groupby("shape", sort=False):
            name, shape = str(shown), shape.sort_values("nodes")
            reach = np.stack([shape["tokens_per_call"] - shape["ci_low"],
                              shape["ci_high"] - shape["tokens_per_call"]]).clip(min=0)  # fmt: skip
            axis.errorbar(shape["nodes"], shape["tokens_per_call"], reach, color=COLOURS[name],
                          **POINTS, elinewidth=0.7, linewidth=0.6, label=name)  # fmt: skip
            parts.append(
                _part(name, "measured", shape["nodes"], shape["tokens_per_call"]).assign(
                    ci_low=shape["ci_low"].to_numpy(), ci_high=shape["ci_high"].to_numpy()
                )
            )
        top = np.nanmax([mine["ci_high"].max(), *bound_curves(found, largest)[LEAST][1]])
        axis.set_ylim(0.9, 1.15 * top)
        axis.set_ylabel("tokens a call")
        return parts

    return _figure(
        decoded,
        statistics,
        draw,
        "decoding_trees",
        "Tokens a call over drafted tokens",
        "What does a larger tree emit, and what could any tree?",
        "Tokens that a target call emits over the tokens it drafts. Points: measured, of calls "
        "that drafted the whole tree, with intervals over prompts. Dotted: predicted from R, as if "
        "each level accepted child i with probability R(i) whatever came before. Grey: bounds on "
        "this prediction, for any tree. Measured values lie above prediction and bound where "
        "acceptance comes in stretches (table Trees: later levels accept more than first ones).",
    )


@styled
def marginal_figure(decoded: Sequence[Decoded], statistics: Statistics) -> Figure | None:
    """Draw what one more drafted token adds; None where no method drafted trees."""

    def draw(axis: Axes, mine: pd.DataFrame, found: Floats, largest: int) -> list[pd.DataFrame]:
        parts = []
        for name, (k, tokens) in predicted_curves(found, largest).items():
            at, gain = marginal(k, tokens, first=1.0)
            axis.plot(at, gain, color=COLOURS[name], linestyle=":")
            parts.append(_part(name, "predicted", at, gain))
        bounds = bound_curves(found, largest)
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

    return _figure(
        decoded,
        statistics,
        draw,
        "decoding_trees_marginal",
        "What one more drafted token adds",
        "Is one more drafted token worth it?",
        "Tokens a call that each further drafted token adds: the difference between a shape and "
        "the next larger one that was decoded (the smallest is compared with no draft), over the "
        "drafted tokens between them. Dotted: predicted from R. The marginal values of the bound "
        "with a fixed m fall as those of tau* do.",
    )


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


def _figure(
    decoded: Sequence[Decoded],
    statistics: Statistics,
    draw: Callable[[Axes, pd.DataFrame, Floats, int], list[pd.DataFrame]],
    name: str,
    title: str,
    question: str,
    caption: str,
) -> Figure | None:
    """Draw a panel for each target and group of runs that holds a tree."""
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
    drawing, axes = grid(len(groups), [one.target for one in decoded])
    frames = []
    for column, (one, table) in enumerate(zip(decoded, tables, strict=True)):
        parts = []
        for row, group in enumerate(groups):
            axis, mine = axes[row, column], table[table["group"] == group]
            axis.set_xlabel(f"drafted tokens, {group}")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            found = rates(one, table, group)
            if len(found):
                parts += [
                    part.assign(group=group)
                    for part in draw(axis, mine, found, int(mine["nodes"].max()))
                ]
        frames.append(pd.concat(parts, ignore_index=True) if parts else pd.DataFrame())
    legend(drawing, axes.flat, columns=3)
    data = of_targets(decoded, frames)
    return Figure(name, title, question, caption, data, drawing)


def _curve(points: Sequence[tuple[int, float]]) -> Curve:
    k, tokens = np.array(points, dtype=np.float64).T
    return k, tokens


def _part(name: str, of: str, k: object, values: object) -> pd.DataFrame:
    drawn = {"drafted": np.asarray(k), "value": np.asarray(values)}
    return pd.DataFrame({"curve": name, "of": of, **drawn})

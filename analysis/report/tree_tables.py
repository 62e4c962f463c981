"""Draft trees: predicted, measured and bounded tokens per call.

The figure is after Figures 3 and 4 of arXiv 2504.15475: one row for each target and temperature,
with GSS and ERSS on one axis; left the tokens per call, right the gain of one more drafted token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import LogLocator, NullLocator

from ..decoding.decoded_trees import ERSS, GREEDY, GSS, SHAPES, entropies, rates, tree_runs
from ..decoding.metrics import Decoded
from ..statistics.bootstrap import Resampling
from ..topk import Floats
from ..trees.sibling_rates import least_residual_upper, residual_upper
from ..trees.topology import (
    batch,
    best_trees,
    sequence,
    spec_infer,
    symmetric,
    tree_tokens_per_call,
)
from .decoding_tables import intervals
from .style import GREY, LINES, error_bars, grid, legend, styled
from .table import Figure, Table, rows_by_method
from .text import number_text, percent_text

Curve = tuple[Floats, Floats]  # drafted tokens, tokens per call
COLOURS = {name: colour for name, (colour, _) in zip(SHAPES.values(), LINES, strict=False)}
FIXED, LEAST = "Lemma 4.3, m of the largest k", "Lemma 4.3, best m"
BOUNDS = {LEAST: 1.6, FIXED: 0.7}  # widths of lines
QUANTITIES = {"tokens": "tokens per call", "added": "added by a token"}
STYLES = {GSS: ("o", (0, ())), ERSS: ("^", (0, (4, 2))), GREEDY: ("s", (0, ()))}
APART = {GSS: 0.97, ERSS: 1.03, GREEDY: 1.0}  # points at equal sizes do not hide each other
ENTROPIES = {"kl": "KL", "entropy": "H[R]", "entropy_upper": "at most (8)", "theorem": "τ (5)"}


def trees(decoded: Sequence[Decoded], statistics: Resampling) -> tuple[Table | None, Figure | None]:
    """Return the table and the figure of the methods that drafted trees; None without any."""
    runs = [tree_runs(pair, *statistics) for pair in decoded]
    table = trees_table(decoded, runs)
    return table, trees_figure(decoded, runs)


def trees_table(decoded: Sequence[Decoded], runs: Sequence[pd.DataFrame]) -> Table | None:
    """Return the measured and predicted tokens per call of every tree; None without trees."""
    frames = []
    for pair, table in zip(decoded, runs, strict=True):
        frame = _trees(pair, table)
        if len(frame) and len(pair.contexts):
            found = entropies(pair, table)
            if len(found):
                frame = frame.join(found.set_index("group")[[*ENTROPIES]], on="group")
        frames.append(frame.assign(target=pair.target))
    data = pd.concat(frames, ignore_index=True)
    if data.empty:
        return None
    columns: dict[Any, Any] = {
        ("", "T"): [f"{temperature:g}" for temperature in data["temperature"]],
        ("", "nodes"): list(map(str, data["nodes"])),
        ("", "levels"): list(map(str, data["levels"])),
        ("τ", "measured"): intervals(data, ["tokens_per_call", "ci_low", "ci_high"]),
        ("τ", "predicted"): [number_text(value) for value in data["predicted"]],
        ("τ", "bound"): [number_text(value) for value in data["bound"]],
        ("levels", "first"): [percent_text(share) for share in data["first_level"]],
        ("levels", "later"): [percent_text(share) for share in data["later_levels"]],
        ("", "R"): data["acceptance"],
    }
    for name, head in ENTROPIES.items() if "kl" in data else ():
        digits = 2 if name == "theorem" else 3
        columns["nats", head] = [number_text(value, digits) for value in data[name]]
    return Table(
        "decoding_trees",
        "Trees",
        "Draft trees. τ: tokens per call that drafted the whole tree; predicted from R(i), the "
        "share of levels that accepted their child i; bounded by Lemma 4.3 of arXiv 2504.15475. "
        "Levels that accepted a child: first and later ones. KL ≤ H[R] ≤ (8), and the bound (5) on "
        "τ of the largest tree.",
        data,
        rows_by_method(data, columns),
    )


def _trees(pair: Decoded, table: pd.DataFrame) -> pd.DataFrame:
    acceptance = {group: rates(pair, table, group) for group in table["group"].unique()}
    bounds = [
        math.nan
        if shape == SHAPES["dynamic"]
        else least_residual_upper(acceptance[group], int(nodes), tight=True)[1]
        for group, nodes, shape in table[["group", "nodes", "shape"]].to_numpy()
    ]
    texts = [" ".join(f"{rate:.3g}" for rate in acceptance[group]) for group in table["group"]]
    drafted_trees = table["run"].map(pair.of_trees).astype(bool)
    return table.assign(bound=bounds, acceptance=texts)[drafted_trees]


def predicted_curves(acceptance: Floats, largest: int) -> dict[str, Curve]:
    """Return the zero-order tokens per call of every shape, up to `largest` drafted tokens.

    `acceptance` is (J,) R over sibling indices.
    """
    makers: dict[str, Callable[[int], Any]] = {
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
            if len(tree) > largest or max(tree.siblings) > len(acceptance):
                break
            points.append((len(tree), tree_tokens_per_call(tree, acceptance)))
        if points:
            curves[SHAPES[name]] = _curve(points)
    best = best_trees(acceptance, largest)[1]
    curves[SHAPES["optimal"]] = (np.arange(1.0, len(best)), best[1:])
    return curves


def bound_curves(acceptance: Floats, largest: int) -> dict[str, Curve]:
    """Return the bounds of Lemma 4.3 on the zero-order tokens per call, over drafted tokens."""
    sizes = range(1, largest + 1)
    m = least_residual_upper(acceptance, largest)[0]
    curves = {LEAST: [(k, least_residual_upper(acceptance, k)[1]) for k in sizes]}
    if np.isfinite(m):
        curves[FIXED] = [(k, residual_upper(acceptance, k, int(m))) for k in sizes]
    return {name: _curve(points) for name, points in curves.items()}


def trees_figure(decoded: Sequence[Decoded], runs: Sequence[pd.DataFrame]) -> Figure | None:
    """Draw tokens per call, and the gain of one more drafted token, over drafted tokens.

    None where no method drafted trees, or all drafts of a temperature have one size.
    """
    curves = tree_curves(decoded, runs)
    if curves.empty:
        return None

    @styled
    def draw() -> Drawing:
        groups = list(curves.groupby(["target", "setting"], sort=False))
        drawing, axes = grid(len(groups), list(QUANTITIES.values()))
        for row, (key, of_setting) in zip(axes, groups, strict=True):
            for axis, quantity in zip(row, QUANTITIES, strict=True):
                axis.set_title(f"{', '.join(map(str, key))}:\n{QUANTITIES[quantity]}")
                axis.set(xlabel="drafted tokens", ylabel=QUANTITIES[quantity], xscale="log")
                _draw(axis, of_setting[of_setting["quantity"] == quantity])
            row[1].set(yscale="log", xlim=row[0].get_xlim())
            for scale in (row[0].xaxis, row[1].xaxis, row[1].yaxis):
                scale.set_major_locator(LogLocator(subs=(1, 3)))
                scale.set_minor_locator(NullLocator())
                scale.set_major_formatter("{x:g}")  # powers of ten would need math text
        legend(drawing, axes.flat, 3)
        return drawing

    return Figure(
        "decoding_trees",
        "Tokens per call over drafted tokens, and what one more adds",
        "After Figures 3 and 4 of arXiv 2504.15475. Points: measured, with intervals over prompts. "
        "Lines: predicted from R, levels independent. Grey: the bounds of Lemma 4.3 on this "
        "prediction; measured values exceed it where acceptance comes in stretches. Gains of 0 or "
        "less lie at the lower edge.",
        draw,
    )


def tree_curves(decoded: Sequence[Decoded], runs: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return what `trees_figure` draws; empty if nothing.

    Columns: target, setting, quantity (of `QUANTITIES`), scheme, curve, kind (measured, predicted
    or bound), drafted, value, and of measured tokens ci_low and ci_high.

    Gains are means over the drafted tokens between two sizes. Predictions and bounds have the gaps
    between the sizes that were decoded, as the points beside them.
    """
    drawn = []
    for pair, table in zip(decoded, runs, strict=True):
        of_trees = table[table["run"].map(pair.of_trees).astype(bool)]
        for setting in of_trees["setting"].unique():
            members = table[table["setting"] == setting]
            if members["nodes"].min() < members["nodes"].max():
                curves = _curves(pair, table, members)
                drawn.append(curves.assign(target=pair.target, setting=setting))
    return pd.concat(drawn, ignore_index=True) if drawn else pd.DataFrame()


def _curves(pair: Decoded, table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    largest, frames = int(runs["nodes"].max()), []

    def add(quantity: str, scheme: str, curve: str, kind: str, points: pd.DataFrame) -> None:
        keys = {"quantity": quantity, "scheme": scheme, "curve": curve, "kind": kind}
        frames.append(points.assign(**keys))

    for key, members in runs.groupby(["scheme", "group"], sort=False):
        scheme, group = map(str, key)
        measured = members.rename(columns={"nodes": "drafted", "tokens_per_call": "value"})
        sizes = {}
        for name, part in measured.groupby(measured["shape"].astype(str)):
            sizes[name] = part["drafted"].unique()
            add("tokens", scheme, name, "measured", part[["drafted", "value", "ci_low", "ci_high"]])
            add("added", scheme, name, "measured", _gains(part))
        acceptance = rates(pair, table, group)
        if not len(acceptance):
            continue
        gaps = sizes.get(SHAPES["optimal"], measured["drafted"].unique())
        for kind, curves in (("predicted", predicted_curves), ("bound", bound_curves)):
            for name, (k, tokens) in curves(acceptance, largest).items():
                at = np.isin(k, gaps if kind == "bound" else sizes.get(name, ()))
                if not (kind == "bound" or at.any()):
                    continue
                curve = pd.DataFrame({"drafted": k, "value": tokens})
                add("tokens", scheme, name, kind, curve)
                if name != LEAST:
                    add("added", scheme, name, kind, _gains(curve[at], kind))
    return pd.concat(frames)


def _gains(curve: pd.DataFrame, kind: str = "measured") -> pd.DataFrame:
    """Return the gain of a drafted token at each size; a bound has no size of nothing drafted."""
    once = curve.drop_duplicates("drafted").sort_values("drafted")
    k, tokens = once[["drafted", "value"]].to_numpy(np.float64).T
    k, gain = marginal(k, tokens, None if kind == "bound" else 1.0)
    return pd.DataFrame({"drafted": k, "value": gain})


def _draw(axis: Axes, drawn: pd.DataFrame) -> None:
    added = drawn["quantity"].iloc[0] == "added"
    positive = drawn["value"][drawn["value"] > 0]
    least = 0.7 * positive.min() if added else -np.inf  # a gain of nothing has no logarithm
    for key, part in drawn.sort_values("drafted").groupby(["scheme", "curve", "kind"], sort=False):
        scheme, curve, kind = map(str, key)
        marker, dashes = STYLES[scheme]
        k, value = part["drafted"], part["value"].clip(lower=least)
        colour = GREY if kind == "bound" else COLOURS[curve]
        if kind == "measured":
            face = "white" if scheme == ERSS else colour
            ends = error_bars(value, part["ci_low"], part["ci_high"])
            axis.errorbar(k * APART[scheme], value, ends, fmt=marker, color=colour, markersize=3.5,
                          markerfacecolor=face, elinewidth=0.7,
                          label=f"{curve}, {scheme}")  # fmt: skip
        else:
            label, width = curve if kind == "bound" else None, BOUNDS.get(curve, 0.9)
            axis.plot(k, value, color=colour, linestyle=dashes, linewidth=width, label=label)


def marginal(k: Floats, tokens: Floats, first: float | None = None) -> Curve:
    """Return the gain per drafted token from each size to the next.

    `first` is the tokens per call without a draft; with None the first size has no gain.

    >>> marginal(np.array([1.0, 3.0]), np.array([1.5, 1.9]), first=1.0)[1].round(6).tolist()
    [0.5, 0.2]
    """
    if first is not None:
        k, tokens = np.append(0.0, k), np.append(first, tokens)
    return k[1:], np.diff(tokens) / np.diff(k)


def _curve(points: Sequence[tuple[int, float]]) -> Curve:
    k, tokens = np.array(points, dtype=np.float64).T
    return k, tokens

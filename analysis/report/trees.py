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
from matplotlib.lines import Line2D

from ..decoding.metrics import Decoded
from ..decoding.trees import ERSS, GREEDY, GSS, SHAPES, entropies, rates, tree_runs
from ..statistics.bootstrap import Resampling
from ..trees.acceptance import least_residual_upper, residual_upper
from ..trees.optimal import best_trees
from ..trees.topology import Floats, batch, sequence, spec_infer, symmetric, tree_tokens_per_call
from .style import BLACK, GREY, LINES, error_bars, grid, legend, logarithmic, styled
from .table import Figure, Table, indexed
from .text import interval_text, number_text, percent_text

Curve = tuple[Floats, Floats]  # drafted tokens, tokens per call
COLOURS = {name: colour for name, (colour, _) in zip(SHAPES.values(), LINES, strict=False)}
FIXED, LEAST = "Lemma 4.3, m of the largest k", "Lemma 4.3, best m"
BOUNDS = {LEAST: 1.6, FIXED: 0.7}  # widths of lines
QUANTITIES = {"tokens": "tokens per call", "added": "added by a token"}
COLUMNS = ["scheme", "curve", "kind", "drafted", "value", "ci_low", "ci_high"]
STYLES = {GSS: ("o", (0, ())), ERSS: ("^", (0, (4, 2))), GREEDY: ("s", (0, ()))}
APART = {GSS: 0.97, ERSS: 1.03, GREEDY: 1.0}  # points at equal sizes do not hide each other
ENTROPIES = ("kl", "entropy", "entropy_upper", "theorem")  # of a scheme


def trees(decoded: Sequence[Decoded], statistics: Resampling) -> tuple[Table | None, Figure | None]:
    """Return the table and the figure of the methods that drafted trees; None without any."""
    runs = [tree_runs(pair, *statistics) for pair in decoded]
    table = trees_table(decoded, runs)
    return table, trees_figure(decoded, runs)


def trees_table(decoded: Sequence[Decoded], runs: Sequence[pd.DataFrame]) -> Table | None:
    """Return the measured and predicted tokens per call of every tree; None without trees.

    Args:
        decoded: of every target.
        runs: their `analysis.decoding.trees.tree_runs`.
    """
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
    ends = data[["tokens_per_call", "ci_low", "ci_high"]].to_numpy().tolist()
    columns: dict[Any, Any] = {
        ("", "T"): [f"{temperature:g}" for temperature in data["temperature"]],
        ("", "nodes"): list(map(str, data["nodes"])),
        ("", "levels"): list(map(str, data["levels"])),
        ("τ", "measured"): [interval_text(*of) for of in ends],
        ("τ", "predicted"): [number_text(value) for value in data["predicted"]],
        ("τ", "bound"): [number_text(value) for value in data["bound"]],
        ("levels", "first"): [percent_text(share) for share in data["first_level"]],
        ("levels", "later"): [percent_text(share) for share in data["later_levels"]],
        ("", "R"): data["acceptance"],
    }
    if "kl" in data:
        heads = {"kl": "KL", "entropy": "H[R]", "entropy_upper": "at most (8)"}
        for name, head in heads.items():
            columns["nats", head] = [number_text(value, 3) for value in data[name]]
        columns["nats", "τ (5)"] = [number_text(value) for value in data["theorem"]]
    return Table(
        "decoding_trees",
        "Trees",
        "Draft trees. τ: tokens per call that drafted the whole tree; predicted from R(i), the "
        "share of levels that accepted their child i; bounded by Lemma 4.3 of arXiv 2504.15475. "
        "Levels that accepted a child: first and later ones. KL ≤ H[R] ≤ (8), and the bound (5) on "
        "τ of the largest tree.",
        data,
        indexed(data, columns),
    )


def _trees(pair: Decoded, table: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each run that drafted trees."""
    acceptance = {group: rates(pair, table, group) for group in table["group"].unique()}
    table = table.assign(
        bound=[
            math.nan
            if shape == SHAPES["dynamic"]
            else least_residual_upper(acceptance[group], int(nodes), tight=True)[1]
            for group, nodes, shape in table[["group", "nodes", "shape"]].to_numpy()
        ],
        acceptance=[
            " ".join(f"{rate:.3g}" for rate in acceptance[group]) for group in table["group"]
        ],
    )
    return table[table["run"].map(pair.of_trees).astype(bool)]


def predicted_curves(acceptance: Floats, largest: int) -> dict[str, Curve]:
    """Return the zero-order tokens per call of every shape, over drafted tokens.

    Args:
        acceptance: (J,) R over sibling indices.
        largest: largest number of drafted tokens.
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
                axis.set(xlabel="drafted tokens", ylabel=QUANTITIES[quantity])
                _draw(axis, of_setting[of_setting["quantity"] == quantity])
            for axis, name in ((row[0], "x"), (row[1], "x"), (row[1], "y")):
                logarithmic(axis, name)
            row[1].set_xlim(row[0].get_xlim())
        legend(drawing, [], columns=3, keys=_keys(curves))
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
    """Return what `trees_figure` draws: `COLUMNS`, quantity, target and setting; empty if nothing.

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
    largest, parts, added = int(runs["nodes"].max()), [], []
    for key, members in runs.groupby(["scheme", "group"], sort=False):
        scheme, group = map(str, key)
        columns = {"shape": "curve", "nodes": "drafted", "tokens_per_call": "value"}
        measured = members.rename(columns=columns).assign(kind="measured")[COLUMNS]
        sizes = {name: np.unique(part["drafted"]) for name, part in measured.groupby("curve")}
        parts += [measured]
        added += [
            (scheme, name, "measured", _gains(part)) for name, part in measured.groupby("curve")
        ]
        acceptance = rates(pair, table, group)
        if not len(acceptance):
            continue
        gaps = sizes.get(SHAPES["optimal"], np.unique(measured["drafted"]))
        for kind, curves in (("predicted", predicted_curves), ("bound", bound_curves)):
            for name, (k, tokens) in curves(acceptance, largest).items():
                at = np.isin(k, sizes.get(name, gaps if kind == "bound" else ()))
                if name in BOUNDS or at.any():
                    curve = pd.DataFrame({"drafted": k, "value": tokens})
                    parts.append(curve.assign(scheme=scheme, curve=name, kind=kind))
                    added += [(scheme, name, kind, _gains(curve[at], kind))] * (name != LEAST)
    gains = [
        part.assign(scheme=scheme, curve=name, kind=kind) for scheme, name, kind, part in added
    ]
    return pd.concat(
        [
            pd.concat(frames).assign(quantity=quantity)
            for quantity, frames in zip(QUANTITIES, (parts, gains), strict=True)
        ]
    )


def _gains(curve: pd.DataFrame, kind: str = "measured") -> pd.DataFrame:
    """Return the gain of a drafted token at each size; a bound has no size of nothing drafted."""
    once = curve.drop_duplicates("drafted").sort_values("drafted")
    k, tokens = once[["drafted", "value"]].to_numpy(np.float64).T
    k, gain = marginal(k, tokens, None if kind == "bound" else 1.0)
    return pd.DataFrame({"drafted": k, "value": gain})


def _draw(axis: Axes, drawn: pd.DataFrame) -> None:
    """Draw measured points, predicted lines and bounds over drafted tokens."""
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
                          markerfacecolor=face, elinewidth=0.7)  # fmt: skip
        else:
            width = BOUNDS.get(curve, 0.9)
            axis.plot(k, value, color=colour, linestyle=dashes, linewidth=width)


def _keys(drawn: pd.DataFrame) -> list[Line2D]:
    """Return the legend: a colour a shape, a marker and a dash a scheme, widths of bounds."""
    curves, schemes = set(drawn["curve"]), set(drawn["scheme"])
    plain: dict[str, Any] = {"color": BLACK, "linewidth": 0.9, "markersize": 3.5}
    return [
        *(Line2D([], [], color=c, label=name) for name, c in COLOURS.items() if name in curves),
        *(
            Line2D([], [], marker=marker, linestyle=dashes, **plain, label=scheme,
                   markerfacecolor="white" if scheme == ERSS else BLACK)
            for scheme, (marker, dashes) in STYLES.items() if scheme in schemes
        ),
        *(
            Line2D([], [], color=GREY, linewidth=width, label=name)
            for name, width in BOUNDS.items() if name in curves
        ),
    ]  # fmt: skip


def marginal(k: Floats, tokens: Floats, first: float | None = None) -> Curve:
    """Return the gain per drafted token from each size to the next.

    `first` is the tokens per call without a draft; with None the first size has no gain.

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

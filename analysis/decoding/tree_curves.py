"""Curves over the number of drafted tokens: tokens per call of draft trees, and their gains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..topk import Floats
from ..trees.token_bounds import least_residual_upper, residual_upper
from ..trees.topology import (
    batch,
    best_trees,
    sequence,
    spec_infer,
    symmetric,
    tree_tokens_per_call,
)
from .metrics import Decoded
from .tree_runs import SHAPES, group_rates

Curve = tuple[Floats, Floats]  # drafted tokens, tokens per call
FIXED_M_BOUND = "Lemma 4.3, m of the largest k"
BEST_M_BOUND = "Lemma 4.3, best m"
TOKENS = "tokens"  # quantity: tokens per call
ADDED = "added"  # quantity: the gain of one more drafted token


def tree_curves(decoded: Sequence[Decoded], runs: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return tokens per call, and the gain of one more drafted token, over drafted tokens.

    Empty where no method drafted trees, or all drafts of a temperature have one size. Columns:
    target, setting, quantity (`TOKENS` or `ADDED`), scheme, curve, kind (measured, predicted or
    bound), drafted, value, and of measured tokens ci_low and ci_high.

    A gain is the mean over the drafted tokens between two sizes. Gains of predictions and bounds
    use the sizes that were decoded, so that they compare with the measured ones.
    """
    drawn = []
    for pair, table in zip(decoded, runs, strict=True):
        tree_runs = table[table["run"].map(pair.drafts_trees).astype(bool)]
        for setting in tree_runs["setting"].unique():
            members = table[table["setting"] == setting]
            if members["nodes"].min() < members["nodes"].max():
                curves = _curves(pair, table, members)
                drawn.append(curves.assign(target=pair.target, setting=setting))
    return pd.concat(drawn, ignore_index=True) if drawn else pd.DataFrame()


def _curves(pair: Decoded, table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    largest = int(runs["nodes"].max())
    frames = []

    def add(quantity: str, scheme: str, curve: str, kind: str, points: pd.DataFrame) -> None:
        keys = {"quantity": quantity, "scheme": scheme, "curve": curve, "kind": kind}
        frames.append(points.assign(**keys))

    for key, members in runs.groupby(["scheme", "group"], sort=False):
        scheme, group = map(str, key)
        measured = members.rename(columns={"nodes": "drafted", "tokens_per_call": "value"})
        sizes = {}
        for name, part in measured.groupby(measured["shape"].astype(str)):
            sizes[name] = part["drafted"].unique()
            add(TOKENS, scheme, name, "measured", part[["drafted", "value", "ci_low", "ci_high"]])
            add(ADDED, scheme, name, "measured", _gains(part))
        acceptance = group_rates(pair, table, group)
        if not len(acceptance):
            continue
        gaps = sizes.get(SHAPES["optimal"], measured["drafted"].unique())
        for kind, curves in (("predicted", predicted_curves), ("bound", bound_curves)):
            for name, (k, tokens) in curves(acceptance, largest).items():
                is_plotted = np.isin(k, gaps if kind == "bound" else sizes.get(name, ()))
                if not (kind == "bound" or is_plotted.any()):
                    continue
                curve = pd.DataFrame({"drafted": k, "value": tokens})
                add(TOKENS, scheme, name, kind, curve)
                if name != BEST_M_BOUND:
                    add(ADDED, scheme, name, kind, _gains(curve[is_plotted], kind))
    return pd.concat(frames)


def _gains(curve: pd.DataFrame, kind: str = "measured") -> pd.DataFrame:
    """Return the gain of a drafted token at each size; a bound has no size of nothing drafted."""
    once = curve.drop_duplicates("drafted").sort_values("drafted")
    k, tokens = once[["drafted", "value"]].to_numpy(np.float64).T
    k, gain = marginal(k, tokens, None if kind == "bound" else 1.0)
    return pd.DataFrame({"drafted": k, "value": gain})


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
    m = least_residual_upper(acceptance, largest, tight=False)[0]
    curves = {
        BEST_M_BOUND: [(k, least_residual_upper(acceptance, k, tight=False)[1]) for k in sizes]
    }
    if np.isfinite(m):
        curves[FIXED_M_BOUND] = [
            (k, residual_upper(acceptance, k, int(m), tight=False)) for k in sizes
        ]
    return {name: _curve(points) for name, points in curves.items()}


def marginal(k: Floats, tokens: Floats, first: float | None = None) -> Curve:
    """Return the gain per drafted token from each size to the next.

    `first` is the tokens per call without a draft; with None the first size has no gain.

    >>> marginal(np.array([1.0, 3.0]), np.array([1.5, 1.9]), first=1.0)[1].round(6).tolist()
    [0.5, 0.2]
    """
    if first is not None:
        k = np.append(0.0, k)
        tokens = np.append(first, tokens)
    return k[1:], np.diff(tokens) / np.diff(k)


def _curve(points: Sequence[tuple[int, float]]) -> Curve:
    k, tokens = np.array(points, dtype=np.float64).T
    return k, tokens

"""Figures of the two largest logits of the target, whose ratio MARS tests, one column a target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..decoding.metrics import Decoded
from ..statistics.bootstrap import Floats
from .figure import Figure
from .style import BLUE, GREEN, GREY, VERMILION, grid, legend, percent, styled

THRESHOLD = 0.9  # of the logit ratio, the default of MARS
RATIO, PROBABILITY_RATIO = "logit ratio z₁/z₀", "probability ratio p₁/p₀"
BINS = np.linspace(0, 1, 11)  # of the logit ratio
ZONE = np.linspace(THRESHOLD, 1, 6)  # of the logit ratio where MARS relaxes
FEWEST = 5  # steps of a bin that is drawn
DRAFTED = {"argmax": BLUE, "second": GREEN, "another": GREY}  # what the drafter proposes


@styled
def ratios_figure(decoded: Sequence[Decoded]) -> Figure | None:
    """Draw one ratio against the other, and what the drafter proposes where MARS relaxes.

    After Figure 1 of MARS. None without the steps of greedy answers.
    """
    if not all(len(one.trajectory) for one in decoded):
        return None
    drawing, axes = grid(2, [one.target for one in decoded])
    frames = []
    for (above, below), one in zip(axes.T, decoded, strict=True):
        steps = _ratios(one.trajectory)
        frames += [
            frame.assign(target=one.target)
            for frame in (_quartiles(above, steps), _proposed(below, steps))
        ]
    axes[0, 0].set_ylabel(PROBABILITY_RATIO)
    axes[1, 0].set_ylabel("proposed by the drafter")
    legend(drawing, axes[:, 0], 3)
    return Figure(
        "decoding_ratios",
        "Logit ratio and probability ratio",
        "The two most probable tokens at every step of the greedy answers. Above: median and "
        "quartiles of the probability ratio, by the logit ratio; dashed: the threshold "
        f"{THRESHOLD:g}. Below: where the logit ratio exceeds it, MARS accepts the argmax and the "
        f"second token; what the drafter proposes there. Numbers: steps; bins of fewer than "
        f"{FEWEST} are left out.",
        drawing,
        pd.concat(frames, ignore_index=True)[
            ["target", "of", "from", "to", "steps", "q25", "median", "q75", *DRAFTED]
        ],
    )


def _quartiles(axis: Axes, steps: pd.DataFrame) -> pd.DataFrame:
    """Draw the quartiles of the probability ratio in bins of the logit ratio."""
    rows = []
    for low, high, mine in _binned(steps, BINS):
        q25, median, q75 = np.quantile(mine["probability_ratio"], (0.25, 0.5, 0.75))
        middle = (low + high) / 2
        axis.errorbar(
            middle, median, [[median - q25], [q75 - median]], fmt="o", color=BLUE, markersize=3
        )
        axis.annotate(
            str(len(mine)), (middle, q75), (0, 3), textcoords="offset points", ha="center",
            fontsize=5.5,
        )  # fmt: skip
        rows.append((low, high, len(mine), q25, median, q75))
    axis.axvline(THRESHOLD, color=VERMILION, linestyle="--", linewidth=0.9)
    axis.set_xlim(0, 1)
    axis.set_ylim(-0.03, 1.1)
    axis.set_xlabel(RATIO)
    columns = ["from", "to", "steps", "q25", "median", "q75"]
    return pd.DataFrame(rows, columns=columns).assign(of="probability_ratio")


def _proposed(axis: Axes, steps: pd.DataFrame) -> pd.DataFrame:
    """Draw what the drafter proposes in bins of the logit ratio above the threshold."""
    rows = []
    for low, high, mine in _binned(steps, ZONE):
        ranks = mine["draft_rank"]
        shares = [float((ranks == 1).mean()), float((ranks == 2).mean()), float((ranks > 2).mean())]
        below = 0.0
        for share, colour in zip(shares, DRAFTED.values(), strict=True):
            axis.bar((low + high) / 2, share, 0.9 * (high - low), below, color=colour)
            below += share
        axis.annotate(
            str(len(mine)), ((low + high) / 2, 1), (0, 2), textcoords="offset points", ha="center",
            fontsize=5.5,
        )  # fmt: skip
        rows.append((low, high, len(mine), *shares))
    for name, colour in DRAFTED.items():
        axis.bar(0, 0, color=colour, label=f"{name} drafted")
    axis.set_xlim(THRESHOLD, 1)
    axis.set_ylim(0, 1.1)
    percent(axis, "y")
    axis.set_xlabel(f"{RATIO}, above {THRESHOLD:g}")
    return pd.DataFrame(rows, columns=["from", "to", "steps", *DRAFTED]).assign(of="drafted")


def _binned(steps: pd.DataFrame, edges: Floats) -> Iterator[tuple[float, float, pd.DataFrame]]:
    """Yield the steps by their logit ratio, in bins (from, to] that have enough of them."""
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        mine = steps[(steps["ratio"] > low) & (steps["ratio"] <= high)]
        if len(mine) >= FEWEST:
            yield low, high, mine


def _ratios(trajectory: pd.DataFrame) -> pd.DataFrame:
    z1, z2 = (trajectory[name].to_numpy(np.float64) for name in ("z1", "z2"))
    ratio = np.divide(z2, z1, out=np.zeros_like(z1), where=z1 > 0)
    return trajectory.assign(ratio=ratio, probability_ratio=np.exp(z2 - z1))


@styled
def histograms_figure(decoded: Sequence[Decoded]) -> Figure | None:
    """Draw histograms of the largest logit and of both ratios (after Figure 5 of MARS)."""
    if not all(len(one.trajectory) for one in decoded):
        return None
    drawing, axes = grid(3, [one.target for one in decoded])
    frames = []
    for column, one in zip(axes.T, decoded, strict=True):
        steps = _ratios(one.trajectory)
        weights = np.full(len(steps), 1 / len(steps))
        negative = float((steps["z1"] <= 0).mean())
        for axis, (shown, extent, mark, name) in zip(
            column,
            (
                ("z1", None, 0.0, f"largest logit ({100 * negative:.1f} % not positive)"),
                ("ratio", (0, 1), THRESHOLD, RATIO),
                ("probability_ratio", (0, 1), THRESHOLD, PROBABILITY_RATIO),
            ),
            strict=True,
        ):
            share, edges, _ = axis.hist(
                steps[shown], bins=40, range=extent, weights=weights, color=BLUE
            )
            bars = {"from": edges[:-1], "to": edges[1:], "share": share}
            frames.append(pd.DataFrame(bars).assign(target=one.target, of=shown))
            axis.axvline(mark, color=VERMILION, linestyle="--", linewidth=0.9)
            axis.set_xlabel(name)
            percent(axis, "y")
    for axis in axes[:, 0]:
        axis.set_ylabel("steps")
    return Figure(
        "decoding_ratio_histograms",
        "The two ratios over all steps",
        f"The largest logit and both ratios; dashed: 0 and the threshold {THRESHOLD:g}. MARS "
        "accepts the argmax only where the largest logit is not positive.",
        drawing,
        pd.concat(frames, ignore_index=True)[["target", "of", "from", "to", "share"]],
    )

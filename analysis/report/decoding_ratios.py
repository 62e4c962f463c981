"""Figures of the two largest logits of the target, whose ratio MARS tests, one column a target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..decoding.metrics import Decoded
from .figure import Figure
from .style import BLUE, GREEN, GREY, PURPLE, VERMILION, grid, legend, styled

THRESHOLD = 0.9  # of the logit ratio, the default of MARS
RATIO, PROBABILITY_RATIO = "logit ratio z₂/z₁", "probability ratio p₂/p₁"
COMPARED = (  # columns of the steps, and their names on the axes
    ("z1", "z2", "largest logit", "second logit"),
    ("p1", "p2", "largest probability", "second probability"),
    ("ratio", "probability_ratio", RATIO, PROBABILITY_RATIO),
)


@styled
def ratios_figure(decoded: Sequence[Decoded]) -> Figure | None:
    """Draw the top two logits, the top two probabilities, and one ratio against the other.

    After Figure 1 of MARS: what the logit ratio calls a low margin, and what the drafter's token
    is there. The last row zooms into it. None without the steps of greedy answers.
    """
    if not all(len(one.trajectory) for one in decoded):
        return None
    drawing, axes = grid(len(COMPARED) + 1, [one.target for one in decoded])
    for (*panels, last), one in zip(axes.T, decoded, strict=True):
        steps = _ratios(one.trajectory)
        for axis, (x, y, across, up) in zip(panels, COMPARED, strict=True):
            for low, colour, name in (
                (False, GREY, f"logit ratio up to {THRESHOLD:g}"),
                (True, VERMILION, f"logit ratio above {THRESHOLD:g}"),
            ):
                mine = steps[steps["low"] == low]
                axis.scatter(
                    mine[x], mine[y], s=4, color=colour, linewidths=0, label=name, rasterized=True
                )
            axis.set_xlabel(across)
            axis.set_ylabel(up)
        _zone(last, steps)
    legend(drawing, axes[[0, -1]].flat, 3)
    return Figure(
        "decoding_ratios",
        "Logit ratio and probability ratio",
        "The two most probable tokens at every step of the greedy answers. Orange: "
        f"steps with a logit ratio above {THRESHOLD:g}, where MARS accepts either token. "
        "Last row: those steps, by what the drafter proposes.",
        drawing,
    )


def _ratios(trajectory: pd.DataFrame) -> pd.DataFrame:
    z1, z2 = (trajectory[name].to_numpy(np.float64) for name in ("z1", "z2"))
    p1 = np.exp(-trajectory["top_surprisal"].to_numpy())
    ratio = np.divide(z2, z1, out=np.zeros_like(z1), where=z1 > 0)
    return trajectory.assign(
        ratio=ratio,
        low=ratio > THRESHOLD,
        p1=p1,
        p2=p1 * np.exp(z2 - z1),
        probability_ratio=np.exp(z2 - z1),
    )


def _zone(axis: Axes, steps: pd.DataFrame) -> None:
    """Within the zone the rank of the drafted token decides: 1 exact, 2 relaxed, else rejected."""
    zone = steps[steps["low"]]
    for name, mine, colour in (
        ("argmax drafted", zone["draft_rank"] == 1, BLUE),
        ("second drafted: accepted by MARS", zone["draft_rank"] == 2, GREEN),
        ("another drafted: rejected", zone["draft_rank"] > 2, PURPLE),
    ):
        axis.scatter(
            zone.loc[mine, "ratio"],
            zone.loc[mine, "probability_ratio"],
            s=5,
            color=colour,
            linewidths=0,
            label=name,
            rasterized=True,
        )
    axis.set_xlabel(f"logit ratio above {THRESHOLD:g}")
    axis.set_ylabel(PROBABILITY_RATIO)


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
    for axis in axes[:, 0]:
        axis.set_ylabel("share of steps")
    return Figure(
        "decoding_ratio_histograms",
        "The two ratios over all steps",
        f"The largest logit and both ratios; dashed: 0 and the threshold {THRESHOLD:g}. MARS "
        "accepts the argmax only where the largest logit is not positive.",
        drawing,
        pd.concat(frames, ignore_index=True)[["target", "of", "from", "to", "share"]],
    )

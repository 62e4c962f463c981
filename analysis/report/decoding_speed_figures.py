"""Figures of the speed of decoding with a drafter, one panel a target.

`speeds` holds `analysis.decoding.speed.speed` of each target, with the threshold `theta` of MARS.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ..decoding.metrics import Decoded
from .decoding_tables import together
from .figure import Figure
from .style import BLUE, GREY, LINES, POINTS, PURPLE, grid, legend, styled


@styled
def thresholds_figure(decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame]) -> Figure | None:
    """Draw agreement and speedup of MARS over its threshold (after Figure 4 of MARS)."""
    sweeps = []
    for table in speeds:
        mars = table[table["theta"].notna() & (table["temperature"] == 0)]
        swept = mars.groupby("draft_length")["theta"].transform("nunique") > 1
        sweeps.append(mars[swept])
    if any(table["theta"].nunique() < 2 for table in sweeps):
        return None
    drawing, axes = grid(1, [one.target for one in decoded])
    for axis, table in zip(axes[0], sweeps, strict=True):
        other = axis.twinx()
        other.spines["right"].set_visible(True)
        groups = table.sort_values("theta").groupby("draft_length")
        for (_, style), (gamma, group) in zip(cycle(LINES), groups, strict=False):
            drawn = {**POINTS, "linestyle": style}
            axis.plot(group["theta"], group["agreement"], color=BLUE, **drawn, label=f"γ = {gamma}")
            drawn |= {"marker": "s", "elinewidth": 0.7}
            other.errorbar(group["theta"], group["speedup"], extent(group), color=PURPLE, **drawn)
        axis.set_ylim(table["agreement"].min() - 0.02, 1.01)
        axis.yaxis.set_major_formatter(PercentFormatter(1))
        axis.set_xlabel("threshold θ of the logit ratio")
        axis.set_ylabel("agreement with the baseline", color=BLUE)
        other.set_ylabel("speedup", color=PURPLE)
        axis.legend(loc="best")
    shown = ["target", "draft_length", "theta", "agreement", "speedup", "ci_low", "ci_high"]
    return Figure(
        "decoding_thresholds",
        "The threshold of MARS",
        "Agreement with the baseline's tokens (left) and speedup (right, with "
        "its interval over prompts) over the threshold: a smaller one accepts more.",
        drawing,
        together(decoded, sweeps)[shown],
    )


def extent(group: pd.DataFrame) -> np.ndarray:
    """Return how far the interval of a speedup reaches below and above it, (2, rows)."""
    ends = [group["speedup"] - group["ci_low"], group["ci_high"] - group["speedup"]]
    return np.stack(ends).clip(min=0)


@styled
def lengths_figure(decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame]) -> Figure | None:
    """Draw speedup over draft length, as measured and as predicted, where several were tried."""
    several = []
    for table in speeds:
        mine = table[table["drafter"] == "model"]
        counts = mine.groupby(["method", "temperature"])["draft_length"].transform("nunique")
        several.append(mine[counts > 2])
    if any(table.empty for table in several):
        return None
    drawing, axes = grid(1, [one.target for one in decoded])
    for axis, table in zip(axes[0], several, strict=True):
        groups = table.groupby(["method", "temperature"], sort=False)
        for (colour, _), ((method, t), group) in zip(cycle(LINES), groups, strict=False):
            group = group.sort_values("draft_length")
            lengths = group["draft_length"]
            axis.errorbar(
                lengths,
                group["speedup"],
                extent(group),
                color=colour,
                **POINTS,
                elinewidth=0.7,
                label=f"{method}, T = {t:g}",
            )
            axis.plot(lengths, group["predicted"], color=colour, linestyle=":")
            axis.plot(lengths, group["predicted_costs"], color=colour, linestyle="--")
        for style, name in ((":", "predicted, τ/(1 + dρ)"), ("--", "predicted from the costs")):
            axis.plot([], [], color=GREY, linestyle=style, label=name)
        axis.axhline(1, color=GREY, linewidth=0.8, zorder=0)
        axis.set_xlabel("draft length γ")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0, 0].set_ylabel("speedup")
    legend(drawing, axes[0])
    shown = ["target", "method", "temperature", "draft_length", "speedup", "ci_low", "ci_high"]
    return Figure(
        "decoding_lengths",
        "Speedup over draft length",
        "Measured with its interval over prompts; dotted: τ/(1 + dρ), d the "
        "tokens drafted a call; dashed: from the costs as measured.",
        drawing,
        together(decoded, several)[[*shown, "predicted", "predicted_costs"]],
    )

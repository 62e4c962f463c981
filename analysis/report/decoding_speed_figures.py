"""Figures of the speed of decoding with a drafter, one panel a target.

`speeds` holds `analysis.decoding.speed.speed` of each target, with the threshold `theta` of MARS.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from ..decoding.metrics import Decoded
from .decoding_tables import together
from .figure import Figure
from .style import GREY, LINES, POINTS, grid, legend, percent, styled


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
    drawing, axes = grid(2, [one.target for one in decoded])
    for (above, below), table in zip(axes.T, sweeps, strict=True):
        groups = table.sort_values("theta").groupby("draft_length")
        for (colour, style), (gamma, group) in zip(cycle(LINES), groups, strict=False):
            drawn = {**POINTS, "color": colour, "linestyle": style, "label": f"γ = {gamma}"}
            above.plot(group["theta"], group["agreement"], **drawn)
            below.errorbar(group["theta"], group["speedup"], extent(group), **drawn, elinewidth=0.7)
        percent(above, "y")
        below.axhline(1, color=GREY, linewidth=0.8, zorder=0)
        below.set_xlabel("threshold θ of the logit ratio")
    axes[0, 0].set_ylabel("agreement with the baseline")
    axes[1, 0].set_ylabel("speedup")
    legend(drawing, axes[0], 4)
    shown = ["target", "draft_length", "theta", "agreement", "speedup", "ci_low", "ci_high"]
    return Figure(
        "decoding_thresholds",
        "The threshold of MARS",
        "Agreement with the baseline's tokens (above) and speedup (below, with its interval over "
        "prompts) over the threshold: a smaller one accepts more.",
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

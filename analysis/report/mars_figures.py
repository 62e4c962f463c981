"""Figures after those of MARS (arXiv 2601.15498): ratios of logits, and the threshold θ."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from ..decoding.metrics import Decoded
from ..decoding.speed import SPEEDUP_ENDS
from ..decoding.top_two_logits import BELOW, FIRST, REJECTED, SECOND, THRESHOLD, top_two
from ..rules import Mars
from ..statistics.estimate import interval_columns
from . import style
from .table import Figure
from .text import percent_text

OUTCOME_POINTS = {  # colour, size and shape of a point, by outcome
    BELOW: (style.GREY, 3, "."),
    FIRST: (style.PURPLE, 5, "o"),
    REJECTED: (style.VERMILION, 7, "x"),
    SECOND: (style.GREEN, 9, "^"),
}
RATIO = "logit ratio z₂/z₁"
PROBABILITY_RATIO = "probability ratio p₁/p₀"
SCATTERS = (  # columns and names of x and y
    ("z1", "z2", "z₁", "z₂"),
    ("p0", "p1", "p₀", "p₁"),
    ("ratio", "probability_ratio", RATIO, PROBABILITY_RATIO),
)
# column: name, and the value at which a dashed line is drawn
HISTOGRAMS = {"z1": ("largest logit z₁", 0.0), "ratio": (RATIO, THRESHOLD),
              "probability_ratio": (PROBABILITY_RATIO, THRESHOLD)}  # fmt: skip
DASHED: dict[str, Any] = {"color": style.VERMILION, "linestyle": "--", "linewidth": 0.9}


def ratios_figure(decoded: Sequence[Decoded]) -> Figure | None:
    """Draw the two largest logits and probabilities and their ratios: Figures 1 and 5 of MARS.

    None if a target has no steps of greedy answers.
    """
    if not all(len(pair.trajectory) for pair in decoded):
        return None

    @style.styled
    def draw() -> Drawing:
        drawing, axes = style.grid(2 * len(decoded), [""] * len(SCATTERS))
        for above, below, pair in zip(axes[::2], axes[1::2], decoded, strict=True):
            steps = top_two(pair.trajectory)
            _scatter(above, steps, pair.target)
            for axis, (column, (name, mark)) in zip(below, HISTOGRAMS.items(), strict=True):
                edges = 40 if column == "z1" else np.linspace(0, 1, 41)
                axis.hist(steps[column], bins=edges, color=style.BLUE)
                axis.axvline(mark, **DASHED)
                share = percent_text(float((steps[column] > mark).mean()))
                axis.set(xlabel=name, title=f"{share} above {mark:g}")
            below[0].set_ylabel("steps")
        style.legend(drawing, axes.flat, 4)
        return drawing

    return Figure(
        "decoding_ratios",
        "The two largest logits, and what MARS accepts",
        "The two most probable tokens at every step of the greedy answers, after Figures 1 and 5 "
        f"of MARS. Coloured: steps whose logit ratio exceeds {THRESHOLD:g} (dashed), by the token "
        "drafted; MARS accepts ranks 1 and 2 there, strict greedy only rank 1. z₁ and z₂: the two "
        "largest logits, as MARS names them; MARS does not relax where z₁ is not positive.",
        draw,
    )


def _scatter(axes: Sequence[Axes], steps: pd.DataFrame, target: str) -> None:
    for axis, (x, y, x_name, y_name) in zip(axes, SCATTERS, strict=True):
        for outcome, part in steps.groupby("outcome", observed=True):
            colour, size, shape = OUTCOME_POINTS[str(outcome)]
            width = 0.7 if shape == "x" else 0
            axis.scatter(part[x], part[y], s=size, color=colour, marker=shape, linewidths=width,
                         label=outcome, rasterized=True)  # fmt: skip
        axis.set(xlabel=x_name, ylabel=y_name)
    axes[0].set_title(target)
    for axis in axes[:2]:
        axis.axline((0, 0), slope=1, **style.REFERENCE_LINE)
    axes[0].axline((0, 0), slope=THRESHOLD, **DASHED)
    axes[2].axvline(THRESHOLD, **DASHED)
    counts = steps["outcome"].value_counts()
    shown = [name for name in (FIRST, SECOND, REJECTED) if counts[name]]
    text = "\n".join(f"{name.removeprefix('above, ')}: {counts[name]}" for name in shown)
    behind = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5}
    axes[2].text(0.03, 0.97, f"Above {THRESHOLD:g}:\n{text}", va="top", fontsize=6,
                 transform=axes[2].transAxes, bbox=behind)  # fmt: skip


def thresholds_figure(
    targets: Sequence[str], frames: Sequence[pd.DataFrame], quality: str
) -> Figure | None:
    """Draw quality and speed over the threshold of MARS, as its Figure 4; None without a sweep.

    `quality` names the column to draw: "accuracy", or "agreement" (with the tokens of the target
    alone). Each target's frame has a row for each method: method, draft_length, temperature, theta
    (NaN for other rules), speedup and the quality, and their intervals if they have any.
    """
    keys = ["draft_length", "temperature", "scheme"]
    swept = []
    for frame in frames:
        mars = frame[frame["theta"].notna()]
        named = zip(mars["method"], mars["theta"], strict=True)
        schemes = [title.removeprefix(Mars(theta).title) for title, theta in named]
        mars = mars.assign(scheme=schemes)
        several = mars.groupby(keys)["theta"].transform("nunique") > 1
        swept.append(mars[several].sort_values("theta"))
    if any(table.empty for table in swept):
        return None
    words = {"accuracy": "right answers", "agreement": "agreement with the target alone"}[quality]

    @style.styled
    def draw() -> Drawing:
        drawing, axes = style.grid(2, targets)
        for panels, table in zip(axes.T, swept, strict=True):
            groups = zip(cycle(style.LINES), table.groupby(keys, sort=True), strict=False)
            for (colour, dashes), ((gamma, t, scheme), group) in groups:
                drawn = {**style.POINTS, "color": colour, "linestyle": dashes, "elinewidth": 0.7}
                drawn["label"] = f"γ = {gamma}, T = {t:g}{scheme}"
                for axis, column in zip(panels, (quality, "speedup"), strict=True):
                    ends = SPEEDUP_ENDS if column == "speedup" else interval_columns(column)
                    values = group.reindex(columns=[column, *ends]).to_numpy(float).T
                    axis.errorbar(group["theta"], values[0], style.error_bars(*values), **drawn)
            style.percent(panels[0], "y")
            panels[1].axhline(1, color=style.GREY, linewidth=0.8, zorder=0)
            panels[1].set_xlabel("threshold θ of the logit ratio")
        axes[0, 0].set_ylabel(words)
        axes[1, 0].set_ylabel("speedup")
        style.legend(drawing, axes.flat, 2)
        return drawing

    return Figure(
        f"{'accuracy' if quality == 'accuracy' else 'decoding'}_thresholds",
        "The threshold of MARS",
        f"{words.capitalize()} (above) and speedup (below), with intervals, over the "
        "threshold θ of MARS: a smaller one accepts more. After Figure 4 of MARS, at the "
        "temperatures and draft lengths that were run.",
        draw,
    )

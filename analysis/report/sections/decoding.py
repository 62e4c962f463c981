"""Decoding with a drafter in the report: acceptance, first differences, logit ratios.

Tables that depend on the clock are in `decoding_speed`. The figures of margins and ratios are after
Figures 1 and 5 of MARS (arXiv 2601.15498).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...decoding import metrics as decoding
from ...decoding.metrics import Decoded, position_rates
from ...statistics.bootstrap import Resampling
from ..measured import Results
from ..records import Column, Figure, Section, Table, worded
from ..style import BLUE, GREEN, GREY, LEVEL, PURPLE, VERMILION, grid, legend, styled
from ..text import share_text
from .decoding_trees import concat_targets, entropies_table, races_table, trees_figure, trees_table

THRESHOLD = 0.9  # of the logit ratio, the default of MARS
OTHER, FIRST = "ratio below the threshold", "above, accepted at rank 1"
SECOND, REJECTED = "above, accepted at rank 2 (relaxed)", "above, rejected"
OUTCOMES = {OTHER: (GREY, 3), FIRST: (PURPLE, 5), REJECTED: (VERMILION, 5), SECOND: (GREEN, 7)}
RATIO, PROBABILITY_RATIO = "logit ratio z₂/z₁", "probability ratio p₂/p₁"
PANELS = (  # title, columns and names of x and y, as in Figure 1 of MARS
    ("top-2 logits", "z1", "z2", "z₁", "z₂"),
    ("top-2 probabilities", "p1", "p2", "p₁", "p₂"),
    ("ratios", "ratio", "probability_ratio", RATIO, PROBABILITY_RATIO),
    ("relaxation zone", "ratio", "probability_ratio", RATIO, PROBABILITY_RATIO),
)
HISTOGRAMS = {  # as in Figure 5: column, and what is marked
    "largest logit z₁": ("z1", 0.0),
    RATIO: ("ratio", THRESHOLD),
    PROBABILITY_RATIO: ("probability_ratio", THRESHOLD),
}
SHARES = np.linspace(0, 1, 41)  # bins of ratios
DASHED: dict[str, Any] = {"color": VERMILION, "linestyle": "--", "linewidth": 0.9}


def decoding_section(
    title: str,
    decoded: Sequence[Decoded],
    statistics: Resampling,
    results: Results,
    paragraphs: Sequence[str],
) -> Section:
    """Return the section on acceptance in decoding."""
    shown = [
        decoding_table(decoded, statistics),
        first_differences_table(decoded),
        rates_table(decoded),
        trees_table(decoded, statistics),
        trees_figure(decoded, statistics),
        entropies_table(decoded, statistics),
        races_table(decoded, results),
        margins_figure(decoded),
        ratios_figure(decoded),
    ]
    return Section(title, shown, paragraphs)


def decoding_table(decoded: Sequence[Decoded], statistics: Resampling) -> Table:
    """Return the table of acceptance, tokens a call and the cost of lossy rules, by method."""
    frames = [
        decoding.acceptance(pair, *statistics).assign(prompts=pair.prompts) for pair in decoded
    ]
    data = concat_targets(decoded, frames)
    return Table(
        **worded("decoding_acceptance", confidence=f"{100 * statistics[1]:g} %"),
        data=data,
        shown=data.assign(closed_form=data["closed_form"].where(data["draft_length"] > 0)),
    )


def first_differences_table(decoded: Sequence[Decoded]) -> Table | None:
    """Return the first differences of strict methods' answers from the target's own.

    None if no method verifies strictly.
    """
    frames, counts = [decoding.first_differences(pair) for pair in decoded], []
    for pair, frame in zip(decoded, frames, strict=True):
        gaps = frame.groupby("run")["gap"].agg(["size", "max"])
        strict = pair.runs.loc[decoding.greedy_runs(pair), ["method", "draft_length"]].join(gaps)
        counts.append(strict.fillna({"size": 0}).assign(answers=pair.prompts))
    shown = concat_targets(decoded, counts)
    if shown.empty:
        return None
    data = concat_targets(decoded, frames)
    return Table(**worded("decoding_first_differences"), data=data, shown=shown)


def rates_table(decoded: Sequence[Decoded]) -> Table:
    """Return the acceptance rate at each place of a draft, by method."""
    settings = ["method", "draft_length", "temperature"]
    frames = [position_rates(pair.calls).join(pair.runs[settings], on="run") for pair in decoded]
    data = concat_targets(decoded, [frame.query("draft_length > 0") for frame in frames])
    places = [
        Column(str(place), share_text, "rate", {"place": place}, above="place in the draft")
        for place in sorted(data["place"].unique())
    ]
    return Table(**worded("decoding_rates", more=places), data=data)


@styled
def margins_figure(decoded: Sequence[Decoded]) -> Figure | None:
    """Draw the two largest logits and probabilities, with the drafts that MARS accepts.

    None without the steps of greedy answers.
    """
    if not all(len(pair.trajectory) for pair in decoded):
        return None
    drawing, axes = grid(2 * len(decoded), ["", ""])
    frames = [_margins(pair.trajectory).assign(target=pair.target) for pair in decoded]
    for above, below, steps in zip(axes[::2], axes[1::2], frames, strict=True):
        panels = [*above, *below]
        for axis, (title, x, y, x_name, y_name) in zip(panels, PANELS, strict=True):
            shown = steps[steps["outcome"] != OTHER] if axis is panels[3] else steps
            for outcome, part in shown.groupby("outcome", observed=True):
                colour, size = OUTCOMES[str(outcome)]
                axis.scatter(part[x], part[y], s=size, color=colour, linewidths=0, label=outcome,
                             rasterized=True)  # fmt: skip
            axis.set(xlabel=x_name, ylabel=y_name)
            axis.set_title(f"{steps['target'].iloc[0]}: {title}")
        for axis in panels[:2]:
            axis.axline((0, 0), slope=1, **LEVEL)
        panels[0].axline((0, 0), slope=THRESHOLD, **DASHED)
        panels[2].axvline(THRESHOLD, **DASHED)
        panels[3].set_xlim(THRESHOLD, 1)
        counts = shown["outcome"].value_counts()
        text = "\n".join(f"{name}: {counts[name]}" for name in OUTCOMES if counts[name])
        ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
        panels[3].text(0, 1, text, va="top", fontsize=6, bbox=ground,
                       transform=panels[3].transAxes)  # fmt: skip
    legend(drawing, axes.flat, 4)
    data = pd.concat(frames, ignore_index=True)
    return Figure(**worded("decoding_margins", threshold=THRESHOLD), data=data, drawing=drawing)


@styled
def ratios_figure(decoded: Sequence[Decoded]) -> Figure | None:
    """Draw the largest logit and both ratios as histograms: Figure 5 of MARS.

    None without the steps of greedy answers.
    """
    if not all(len(pair.trajectory) for pair in decoded):
        return None
    drawing, axes = grid(len(decoded), list(HISTOGRAMS))
    frames = []
    for row, pair in zip(axes, decoded, strict=True):
        steps = _margins(pair.trajectory)
        for axis, (name, (column, mark)) in zip(row, HISTOGRAMS.items(), strict=True):
            counts, edges = np.histogram(steps[column], 40 if column == "z1" else SHARES)
            axis.stairs(counts, edges, fill=True, color=BLUE)
            axis.axvline(mark, **DASHED)
            above = share_text(float((steps[column] > mark).mean()))
            axis.set(xlabel=name, title=f"{pair.target}\n{above} above {mark:g}")
            frames.append(pd.DataFrame({"target": pair.target, "of": column, "from": edges[:-1],
                                        "to": edges[1:], "steps": counts}))  # fmt: skip
        row[0].set_ylabel("steps")
    data = pd.concat(frames, ignore_index=True)
    return Figure(**worded("decoding_ratios", threshold=THRESHOLD), data=data, drawing=drawing)


def _margins(trajectory: pd.DataFrame) -> pd.DataFrame:
    """Return the two largest logits and probabilities of steps, their ratios, and the outcome."""
    z1, z2 = (trajectory[name].to_numpy(np.float64) for name in ("z1", "z2"))
    p1 = np.exp(-trajectory["top_surprisal"].to_numpy(np.float64))
    ratio = np.divide(z2, z1, out=np.zeros_like(z1), where=z1 > 0)
    rank, low = trajectory["draft_rank"].to_numpy(), ratio > THRESHOLD
    outcome = np.select([~low, rank == 1, rank == 2], [OTHER, FIRST, SECOND], REJECTED)
    return pd.DataFrame({
        "z1": z1, "z2": z2, "p1": p1, "p2": p1 * np.exp(z2 - z1), "ratio": ratio,
        "probability_ratio": np.exp(z2 - z1), "draft_rank": rank,
        "outcome": pd.Categorical(outcome, list(OUTCOMES)),
    })  # fmt: skip

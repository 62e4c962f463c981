"""Figures of decoding with a drafter that do not depend on the clock, one column a target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ..decoding import metrics as decoding
from ..decoding.metrics import Decoded
from .style import BLUE, GREEN, GREY, LINES, POINTS, PURPLE, VERMILION, grid, legend, styled

THRESHOLD = 0.9  # of the logit ratio, the default of MARS
SHOWN = len(LINES)  # methods in a panel
TESTED = 5  # tests that a place needs for its rate to be drawn
RATIO, PROBABILITY_RATIO = "logit ratio z₂/z₁", "probability ratio p₂/p₁"
COMPARED = (  # columns of the steps, and their names on the axes
    ("z1", "z2", "largest logit", "second logit"),
    ("p1", "p2", "largest probability", "second probability"),
    ("ratio", "probability_ratio", RATIO, PROBABILITY_RATIO),
)


def content_figures(decoded: Sequence[Decoded]) -> dict[str, Figure]:
    """Return the figures that do not depend on the clock, by file name without suffix."""
    figures = {"decoding_places": places_figure(decoded)}
    if all(len(one.trajectory) for one in decoded):
        figures |= {
            "decoding_ratios": ratios_figure(decoded),
            "decoding_ratio_histograms": histograms_figure(decoded),
        }
    return figures


@styled
def places_figure(decoded: Sequence[Decoded]) -> Figure:
    """Draw acceptance by place in the draft, and the histogram of accepted lengths.

    Places tested fewer than `TESTED` times are left out.
    """
    figure, axes = grid(2, [one.target for one in decoded])
    for (above, below), one in zip(axes.T, decoded, strict=True):
        rates = decoding.position_rates(one.calls)
        rates = rates[rates["tested"] >= TESTED]
        lengths = decoding.length_histogram(one.calls)
        for (colour, style), (run, name) in zip(LINES, _longest(one), strict=False):
            for axis, table, x, y in (
                (above, rates, "place", "rate"),
                (below, lengths, "accepted", "share"),
            ):
                mine = table[table["run"] == run]
                axis.plot(mine[x], mine[y], color=colour, linestyle=style, **POINTS, label=name)
        above.set_xlabel("place in the draft")
        below.set_xlabel("accepted tokens of a call")
        above.set_ylim(-0.03, 1.03)
        for axis in (above, below):
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            axis.yaxis.set_major_formatter(PercentFormatter(1))
    axes[0, 0].set_ylabel("accepted, of tested")
    axes[1, 0].set_ylabel("share of calls")
    legend(figure, axes[0])
    return figure


def _longest(one: Decoded) -> list[tuple[int, str]]:
    """Return one run a kind of method: the lowest temperature at its longest draft.

    Thresholds of MARS are one kind, shown by `THRESHOLD` where it was decoded.
    """
    runs = one.runs[one.runs["draft_length"] > 0]
    kind = runs["method"].str.split(" (θ", regex=False).str[0]
    other = ~runs["method"].str.contains(f"θ = {THRESHOLD:g})", regex=False)
    ordered = runs.assign(kind=kind, other=other).sort_values(
        ["other", "temperature", "draft_length"], ascending=[True, True, False], kind="stable"
    )
    chosen = ordered.drop_duplicates("kind").sort_index()[:SHOWN]
    names = (f"{method}, T = {t:g}" for method, t in chosen[["method", "temperature"]].to_numpy())
    return list(zip(chosen.index.tolist(), names, strict=True))


@styled
def ratios_figure(decoded: Sequence[Decoded]) -> Figure:
    """Draw the top two logits, the top two probabilities, and one ratio against the other.

    After Figure 1 of MARS: what the logit ratio calls a low margin, and what the drafter's token
    is there. The last row zooms into it.
    """
    figure, axes = grid(len(COMPARED) + 1, [one.target for one in decoded])
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
    legend(figure, axes[[0, -1]].flat, 3)
    return figure


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
def histograms_figure(decoded: Sequence[Decoded]) -> Figure:
    """Draw histograms of the largest logit and of both ratios (after Figure 5 of MARS)."""
    figure, axes = grid(3, [one.target for one in decoded])
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
            axis.hist(steps[shown], bins=40, range=extent, weights=weights, color=BLUE)
            axis.axvline(mark, color=VERMILION, linestyle="--", linewidth=0.9)
            axis.set_xlabel(name)
    for axis in axes[:, 0]:
        axis.set_ylabel("share of steps")
    return figure

"""The figure of speed over draft length: timed, predicted, and if longer passes cost nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from ..decoding.metrics import Decoded
from ..decoding.predicted_speed import GREEDY, Outlook
from ..decoding.speed import TPOT_ENDS
from ..statistics.estimate import Estimate
from .style import LINES, REFERENCE_LINE, error_bars, grid, legend, styled
from .table import Figure

NAME = "speed_by_length"


def speed_by_length_figure(
    decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame], predicted: Sequence[pd.DataFrame]
) -> Figure | None:
    """Draw the speed of every drafter's chains under strict greedy by draft length.

    `speeds` (with a column `drafter_title`) and `predicted` have a frame for each of `decoded`.
    None if nothing was predicted.
    """
    drawn = [parts for parts in zip(decoded, speeds, predicted, strict=True) if len(parts[2])]
    if not drawn:
        return None

    @styled
    def draw() -> Drawing:
        drawing, axes = grid(1, [pair.target for pair, _, _ in drawn], height=2.6)
        for axis, (pair, timed, table) in zip(axes[0], drawn, strict=True):
            chains = timed[_is_strict_greedy(timed) & ~pair.drafts_trees]
            axis.axhline(1, **REFERENCE_LINE)
            axis.set(xlabel="drafted tokens per call", ylabel="times as fast as the target alone")
            titles = timed.set_index("drafter")["drafter_title"].to_dict()
            by_drafter = table[table["rule"] == GREEDY].groupby("drafter", sort=False)
            for (name, rows), (colour, _) in zip(by_drafter, LINES, strict=False):
                points = chains[chains["drafter"] == name]
                _draw(axis, rows, points, titles[str(name)], colour)
        legend(drawing, axes.flat, 3)
        return drawing

    return Figure(
        NAME,
        "Speed by draft length",
        "Under strict greedy, after an answer's first token. Lines: predicted from the tokens "
        "per call, counted along the study's answers, and the cost of a call, each measured by "
        "itself; bands: intervals. "
        "Points: timed methods, here without the time to the first token. Dashed: if a pass took "
        "as long over several tokens as over one.",
        draw,
    )


def _is_strict_greedy(timed: pd.DataFrame) -> pd.Series:
    return (timed["rule"] == GREEDY) & (timed["temperature"] == 0) & timed["lossless"].astype(bool)


def _draw(axis: Axes, rows: pd.DataFrame, timed: pd.DataFrame, title: str, colour: str) -> None:
    lengths = rows["draft_length"].astype(int)
    speed = Estimate.read(rows, "speed")
    axis.plot(lengths, speed.value, color=colour, label=f"{title}: predicted")
    axis.fill_between(lengths, speed.low, speed.high, color=colour, alpha=0.15, linewidth=0)
    label = f"{title}: if longer passes cost nothing"
    axis.plot(lengths, rows["memory_bound"], color=colour, linestyle=(0, (4, 2)), label=label)
    if len(timed):
        times = Estimate.read(timed, "tpot_speedup", TPOT_ENDS)
        axis.errorbar(
            timed["draft_length"], times.value, error_bars(*times),
            fmt="o", markersize=3.5, color=colour, label=f"{title}: timed",
        )  # fmt: skip


def missed_predictions(chains: pd.DataFrame, predicted: pd.DataFrame) -> list[str]:
    """Return a sentence for each timed chain whose interval excludes the predicted speed.

    `chains` are rows of `analysis.decoding.speed.speed` with `of_timed_calls`, the speed that
    `analysis.decoding.predicted_speed.speeds_of_timed_calls` predicts. It tells an error of the
    costs from answers that give other tokens per call than those counted.
    """
    sentences = []
    drafting = chains[_is_strict_greedy(chains) & (chains["drafter"] != "none")]
    for run in drafting.to_dict("records"):
        outlook = Outlook.of(predicted, run["drafter"], run["rule"])
        if outlook is None:
            continue
        wanted = outlook.estimate("speed", run["draft_length"])
        timed = Estimate.read(run, "tpot_speedup", TPOT_ENDS)
        if wanted.value < timed.low or wanted.value > timed.high:  # NaN compares as false
            sentences.append(
                f"{run['drafter_title']}, drafts of {run['draft_length']}, was timed at "
                f"{timed.value:.2f} [{timed.low:.2f}, {timed.high:.2f}] after the first token, "
                f"where {wanted.value:.2f} is predicted.{_by_own_calls(run, outlook)}"
            )
    return sentences


def _by_own_calls(run: Mapping[Any, Any], predicted: Outlook) -> str:
    """Return a sentence with what is predicted for the calls of a timed run, if that is known."""
    speed = run["of_timed_calls"]
    if math.isnan(speed):
        return ""
    counted = predicted.estimate("tokens_per_call", run["draft_length"])
    return (
        f" Its answers gave {run['tokens_per_call']:.2f} tokens per call, those that were counted "
        f"{counted.value:.2f}; for the calls that it made, {speed:.2f} is predicted."
    )

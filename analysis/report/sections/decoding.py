"""Decoding with a drafter in the report: acceptance, first differences, logit ratios.

Tables that depend on the clock are in `decoding_speed`. The figure of ratios follows Figure 1 of
MARS (arXiv 2601.15498).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ...decoding import metrics as decoding
from ...decoding.finished import CLOCKED_ANSWERS
from ...decoding.metrics import Decoded
from ...decoding.places import position_rates
from ...statistics.bootstrap import Floats, Resampling, prompt_counts
from ..records import Column, Figure, Section, Table, sentence, worded
from ..style import BLUE, GREEN, GREY, VERMILION, grid, legend, percent, styled
from ..text import FORMATS, few_notes, limits, share_text
from .decoding_trees import concat_targets, trees_figure, trees_table

THRESHOLD = 0.9  # of the logit ratio, the default of MARS
RATIO, PROBABILITY_RATIO = "logit ratio z₁/z₀", "probability ratio p₁/p₀"
BINS = np.linspace(0, 1, 11)  # of the logit ratio
ZONE = np.linspace(THRESHOLD, 1, 6)  # of the logit ratio where MARS relaxes
FEWEST = 5  # least number of steps of a bin that is drawn
DRAFTED = {"argmax": BLUE, "second": GREEN, "another": GREY}  # the drafted token, by target rank


def decoding_section(
    title: str, decoded: Sequence[Decoded], statistics: Resampling, paragraphs: Sequence[str]
) -> Section:
    """Return the section on acceptance in decoding."""
    shown = [
        decoding_table(decoded, statistics),
        first_differences_table(decoded),
        rates_table(decoded),
        trees_table(decoded, statistics),
        trees_figure(decoded, statistics),
        ratios_figure(decoded),
    ]
    return Section(title, shown, paragraphs)


def decoding_table(decoded: Sequence[Decoded], statistics: Resampling) -> Table:
    """Return the table of acceptance, tokens a call and the cost of lossy rules, by method."""
    frames = [
        decoding.acceptance(pair, *statistics)
        .join(decoding.finished_runs(pair, *statistics).drop(columns=CLOCKED_ANSWERS))
        .join(decoding.of_thresholds(pair, *statistics))
        .assign(**prompt_counts(pair.prompts))
        for pair in decoded
    ]
    data, name = concat_targets(decoded, frames), "over_thresholds"
    over, more = (name, *limits(name)), list[Column]()
    notes = few_notes(pair.prompts for pair in decoded)
    if data[name].isna().all():  # no multiplicative rule was decoded
        data = data.drop(columns=[*over])
    else:
        more = [Column("over thresholds", FORMATS["interval"], over)]
        notes = [*notes, sentence(name)]
    return Table(
        **worded("decoding_acceptance", more=more, confidence=f"{100 * statistics[1]:g} %"),
        data=data,
        shown=data.assign(closed_form=data["closed_form"].where(data["draft_length"] > 0)),
        notes=notes,
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
def ratios_figure(decoded: Sequence[Decoded]) -> Figure | None:
    """Draw probability ratio over logit ratio, and the drafted token where MARS relaxes.

    After Figure 1 of MARS. None without greedy answers.
    """
    if not all(len(pair.trajectory) for pair in decoded):
        return None
    drawing, axes = grid(2, [pair.target for pair in decoded])
    frames = []
    for (above, below), pair in zip(axes.T, decoded, strict=True):
        steps = _ratios(pair.trajectory)
        frames += [
            frame.assign(target=pair.target)
            for frame in (_quartiles(above, steps), _proposed(below, steps))
        ]
    axes[0, 0].set_ylabel(PROBABILITY_RATIO)
    axes[1, 0].set_ylabel("proposed by the drafter")
    legend(drawing, axes[:, 0], 3)
    columns = ["target", "kind", "from", "to", "steps", "q25", "median", "q75", *DRAFTED]
    return Figure(
        **worded("decoding_ratios", threshold=THRESHOLD, fewest=FEWEST),
        data=pd.concat(frames, ignore_index=True)[columns],
        drawing=drawing,
    )


def _quartiles(axis: Axes, steps: pd.DataFrame) -> pd.DataFrame:
    """Draw the quartiles of the probability ratio in bins of the logit ratio."""
    rows = []
    for low, high, members in _binned(steps, BINS):
        q25, median, q75 = np.quantile(members["probability_ratio"], (0.25, 0.5, 0.75))
        middle = (low + high) / 2
        axis.errorbar(
            middle, median, [[median - q25], [q75 - median]], fmt="o", color=BLUE, markersize=3
        )
        axis.annotate(
            str(len(members)), (middle, q75), (0, 3), textcoords="offset points", ha="center",
            fontsize=5.5,
        )  # fmt: skip
        rows.append((low, high, len(members), q25, median, q75))
    axis.axvline(THRESHOLD, color=VERMILION, linestyle="--", linewidth=0.9)
    axis.set_xlim(0, 1)
    axis.set_ylim(-0.03, 1.1)
    axis.set_xlabel(RATIO)
    columns = ["from", "to", "steps", "q25", "median", "q75"]
    return pd.DataFrame(rows, columns=columns).assign(kind="probability_ratio")


def _proposed(axis: Axes, steps: pd.DataFrame) -> pd.DataFrame:
    """Draw shares of drafted tokens in bins of the logit ratio above the threshold."""
    rows = []
    for low, high, members in _binned(steps, ZONE):
        ranks = members["draft_rank"]
        shares = [float((ranks == 1).mean()), float((ranks == 2).mean()), float((ranks > 2).mean())]
        below = 0.0
        for share, colour in zip(shares, DRAFTED.values(), strict=True):
            axis.bar((low + high) / 2, share, 0.9 * (high - low), below, color=colour)
            below += share
        axis.annotate(
            str(len(members)), ((low + high) / 2, 1), (0, 2), textcoords="offset points",
            ha="center", fontsize=5.5,
        )  # fmt: skip
        rows.append((low, high, len(members), *shares))
    for name, colour in DRAFTED.items():
        axis.bar(0, 0, color=colour, label=f"{name} drafted")
    axis.set_xlim(THRESHOLD, 1)
    axis.set_ylim(0, 1.1)
    percent(axis, "y")
    axis.set_xlabel(f"{RATIO}, above {THRESHOLD:g}")
    return pd.DataFrame(rows, columns=["from", "to", "steps", *DRAFTED]).assign(kind="drafted")


def _binned(steps: pd.DataFrame, edges: Floats) -> Iterator[tuple[float, float, pd.DataFrame]]:
    """Yield the steps in bins (from, to] of the logit ratio that have enough steps."""
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        members = steps[(steps["ratio"] > low) & (steps["ratio"] <= high)]
        if len(members) >= FEWEST:
            yield low, high, members


def _ratios(trajectory: pd.DataFrame) -> pd.DataFrame:
    z1, z2 = (trajectory[name].to_numpy(np.float64) for name in ("z1", "z2"))
    ratio = np.divide(z2, z1, out=np.zeros_like(z1), where=z1 > 0)
    return trajectory.assign(ratio=ratio, probability_ratio=np.exp(z2 - z1))

"""Figures of a drafter's acceptance: rule by rule, and over R - KL."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ..acceptance.usual_drafter import LAWS
from ..rules import Mars
from ..statistics.estimate import Estimate
from . import style
from .acceptance_tables import COLUMNS, judged_rules
from .published import TABLE2
from .results import Results
from .table import Figure

ROW = 0.3  # inches for a rule
APART = 0.16  # inches between the two points of a rule
MAX_RULES = 10  # rows of a panel


def rules_figure(results: Results) -> Figure:
    """Draw the certified and accepted shares of each rule with their intervals."""
    judged = judged_rules(results)
    rules = [rule for rule in judged if rule in (*TABLE2, Mars(0.9)) or rule.is_custom]
    if len(rules) < 2:
        rules = judged
    rules = rules[:MAX_RULES]

    @style.styled
    def draw() -> Drawing:
        size = (style.TEXT, 1.0 + ROW * len(rules))
        drawing = Drawing(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.1))
        axes = drawing.subplots(1, len(results.targets), sharex=True, sharey=True, squeeze=False)
        heights = np.arange(len(rules))
        labels = [rule.label for rule in rules]
        for axis, target in zip(axes[0], results.targets, strict=True):
            for side, kind, marker, colour in (
                (-0.5, "certified", "D", style.CERTIFIED),
                (0.5, "acceptance", "o", style.ACCEPTED),
            ):
                rows = results.select("acceptance", target=target, statistic=kind)
                rows = rows.set_index("rule").loc[labels]
                axis.errorbar(
                    rows["value"],
                    heights + APART * side,
                    xerr=style.error_bars(*Estimate.read(rows)),
                    fmt=marker,
                    color=colour,
                    markersize=3,
                    elinewidth=0.7,
                    label=COLUMNS[kind],
                )
            axis.set_title(target)
            axis.grid(axis="x", **style.GRID_LINES)
            axis.set_axisbelow(True)
            axis.set_xlabel("share of steps")
            style.percent(axis, "x")
        axes[0, 0].set_yticks(heights, [rule.title for rule in rules], fontsize=6.5)
        axes[0, 0].set_ylim(len(rules) - 0.4, -0.6)
        axes[0, 0].set_xlim(-0.02, 1.02)
        style.legend(drawing, axes[0, :1])
        return drawing

    return Figure(
        "acceptance_rules",
        "Certified and accepted, rule by rule",
        "Share of steps that each rule accepts, and share that its certificate guarantees. The gap "
        "is acceptance that no certificate guarantees: a certificate covers every drafter at this "
        "KL, not only this one. Bars: intervals over prompts.",
        draw,
    )


def margin_figure(by_target: Mapping[str, pd.DataFrame], rule: str) -> Figure:
    """Draw the accepted share of steps by R - KL, from frames of `acceptance.drafter.margins`.

    If the frames also have predictions for the `LAWS` of `acceptance.usual_drafter`, a line shows
    the usual drafter, and a band its range from heavier to lighter tails.
    """
    note = ""
    if any(set(LAWS) <= set(frame) for frame in by_target.values()):
        note = (
            " Line: predicted for a usual drafter, off in a random direction at these KLs; "
            "it is a model, and the band shows heavier tails (Laplace) to lighter ones (uniform)."
        )

    @style.styled
    def draw() -> Drawing:
        drawing = Drawing((style.COLUMN, 0.8 + 1.2 * len(by_target)), layout="constrained")
        axes = drawing.subplots(len(by_target), sharex=True, squeeze=False)[:, 0]
        for axis, (name, frame) in zip(axes, by_target.items(), strict=True):
            shares = (frame["accepted"] / frame["steps"]).fillna(0.0)
            colours = [style.CERTIFIED if low >= 0 else style.ACCEPTED for low in frame["low"]]
            axis.bar(range(len(frame)), shares, color=colours)
            for place, steps in enumerate(frame["steps"]):
                axis.text(place, 1.06, f"{steps:.0f}" if steps else "", ha="center", fontsize=5)
            if set(LAWS) <= set(frame):
                _draw_usual(axis, frame)
            axis.axvline(
                (frame["low"] < 0).sum() - 0.5, color=style.BLACK, linewidth=0.8, linestyle=":"
            )
            names = [slack_text(*ends) for ends in frame[["low", "high"]].to_numpy()]
            axis.set_xticks(range(len(frame)), names, rotation=45, ha="right", fontsize=6)
            axis.set(title=name, ylabel="accepted", ylim=(0, 1.2))
            style.percent(axis, "y")
        axes[-1].set_xlabel("R − KL, nats")
        return drawing

    return Figure(
        "margins",
        "Acceptance over R − KL",
        "Share of steps whose draft is accepted, by the certificate R minus the drafter's KL(p‖q). "
        f"Rule: {rule}. Right of zero the step is certified (green), and every draft is accepted; "
        "left of it (orange) nothing is guaranteed. Numbers above: steps." + note,
        draw,
    )


def _draw_usual(axis: Axes, frame: pd.DataFrame) -> None:
    """Draw the predicted acceptance of usual drafters over the bars."""
    bins = np.arange(len(frame))
    usual, heavy, light = (frame[law] / frame["steps"] for law in ("normal", "laplace", "uniform"))
    axis.fill_between(bins, heavy, light, color=style.BLACK, alpha=0.2, linewidth=0, zorder=3)
    axis.plot(bins, usual, color=style.BLACK, linewidth=1, markersize=2, marker="o", zorder=4)


def slack_text(low: float, high: float) -> str:
    """Return the name of a bin of R - KL.

    >>> slack_text(-0.1, 0.0), slack_text(0.5, float("inf")), slack_text(-float("inf"), -2.0)
    ('−0.1 to 0', 'above 0.5', 'below −2')
    """
    names = [f"{end:g}".replace("-", "−") for end in (low, high)]
    if not np.isfinite(low):
        return f"below {names[1]}"
    return " to ".join(names) if np.isfinite(high) else f"above {names[0]}"

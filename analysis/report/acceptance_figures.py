"""Figures of a drafter's acceptance, one panel a target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from .figure import Figure
from .pairs import Pairs
from .style import BLUE, GREEN, GREY, LINES, RULED, TEXT, legend, styled

ROW = 0.135  # inches of a rule in a list of rules


@styled
def rules_figure(pairs: Pairs) -> Figure:
    """Draw certified and accepted shares side by side, a line for each rule."""
    rules = pairs.labels("baseline", "criteria")
    at = np.arange(len(rules))
    drawing = Drawing(figsize=(TEXT, 1.0 + ROW * len(rules)), layout="constrained")
    axes = drawing.subplots(1, len(pairs.targets), sharey=True, squeeze=False)[0]
    frames = []
    for axis, target in zip(axes, pairs.targets, strict=True):
        shares = {
            name: [pairs.value(target, rule, name) for rule in rules]
            for name in ("certified", "acceptance")
        }
        frames.append(pd.DataFrame({"target": target, "rule": rules, **shares}))
        axis.hlines(
            at, shares["certified"], shares["acceptance"], color="#C8C8C8", linewidth=2.4, zorder=1
        )
        axis.scatter(shares["acceptance"], at, s=14, color=BLUE, label="accepted")
        axis.scatter(shares["certified"], at, s=14, color=GREEN, marker="D", label="certified")
        axis.set_title(target)
        axis.set_xlim(-0.02, 1.02)
        axis.xaxis.set_major_formatter(PercentFormatter(1))
        axis.set_xlabel("steps")
        axis.grid(axis="x", **RULED)
        axis.set_axisbelow(True)
    axes[0].set_yticks(at, [pairs.names[rule] for rule in rules], fontsize=6.5)
    axes[0].set_ylim(len(rules) - 0.4, -0.6)
    legend(drawing, axes[:1])
    return Figure(
        "acceptance_rules",
        "Certified and accepted, rule by rule",
        "Share of steps that each rule accepts, and that its certificate promised "
        "to accept for certain, by the lower ends where certificates are intervals. The distance "
        "between them is what the certificate, which holds for every drafter of this KL, cannot "
        "know of this one.",
        drawing,
        pd.concat(frames, ignore_index=True),
    )


@styled
def profile_figure(pairs: Pairs, profile: pd.DataFrame, rules: Sequence[str]) -> Figure:
    """Draw accepted and certified shares by position and by margin decile.

    Args:
        pairs: the targets and the names of the rules.
        profile: target and the columns of analysis.acceptance.realised.profile.
        rules: labels of the rules drawn.
    """
    targets = pairs.targets
    drawing = Drawing(figsize=(TEXT, 0.5 + 1.9 * len(targets)), layout="constrained")
    axes = drawing.subplots(len(targets), 2, sharey=True, squeeze=False)
    for row, target in zip(axes, targets, strict=True):
        for axis, by in zip(row, ("position", "margin"), strict=True):
            part = profile[(profile["target"] == target) & (profile["by"] == by)]
            _profile(axis, part, rules, by)
            axis.set_title(target)
            axis.yaxis.set_major_formatter(PercentFormatter(1))
        row[0].set_ylabel("steps")
    for axis, name in zip(
        axes[-1], ("position in the answer", "decile of the target's margin p₀ − p₁"), strict=True
    ):
        axis.set_xlabel(name)
    kinds = [
        Line2D([], [], color=GREY, linestyle="-", label="accepted"),
        Line2D([], [], color=GREY, linestyle=":", label="certified"),
    ]
    colors = [
        Line2D([], [], color=color, label=pairs.names[rule])
        for (color, _), rule in zip(LINES, rules, strict=False)
    ]
    drawing.legend(handles=[*kinds, *colors], loc="outside lower center", ncols=4)
    return Figure(
        "acceptance_profile",
        "Where in an answer, and at which margin",
        "Accepted and certified steps by position in the answer, and by the "
        "target's margin p₀ − p₁ in deciles.",
        drawing,
        profile[profile["rule"].isin(rules)],
    )


def _profile(axis: Axes, part: pd.DataFrame, rules: Sequence[str], by: str) -> None:
    for (color, _), rule in zip(LINES, rules, strict=False):
        lines = part[(part["rule"] == rule) & (part["steps"] > 0)]
        x = (lines["begin"] + lines["end"]) / 2 if by == "position" else lines["bin"] + 1
        for name, style in (("accepted", "-"), ("certified", ":")):
            axis.plot(x, lines[name], linestyle=style, color=color, marker=".", markersize=3)
    axis.set_ylim(-0.03, 1.03)
    axis.grid(axis="y", **RULED)

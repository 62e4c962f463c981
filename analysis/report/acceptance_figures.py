"""Figures of a drafter's acceptance, one panel a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter, StrMethodFormatter
from numpy.typing import NDArray

from ..statistics.run_lengths import censored_ends
from .measured import Pairs
from .style import BLUE, GREEN, GREY, LINES, POINTS, RULED, TEXT, VERMILION, YELLOW, legend, styled
from .text import symbol

ROW = 0.135  # inches of a rule in a list of rules
VERDICTS = {"certified": GREEN, "accepted, not certified": YELLOW, "rejected": VERMILION}
WIDTH = 92  # characters of a line of text
MONOSPACED = "DejaVu Sans Mono"  # comes with matplotlib


@styled
def rules_figure(pairs: Pairs) -> Figure:
    """Draw certified and accepted shares side by side, a line for each rule."""
    rules = pairs.rules("baseline", "criteria")
    at = np.arange(len(rules))
    figure = Figure(figsize=(TEXT, 1.0 + ROW * len(rules)), layout="constrained")
    axes = figure.subplots(1, len(pairs.targets), sharey=True, squeeze=False)[0]
    for axis, target in zip(axes, pairs.targets, strict=True):
        shares = {
            name: [pairs.value(target, rule, name) for rule in rules]
            for name in ("certified", "acceptance")
        }
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
    legend(figure, axes[:1])
    return figure


@styled
def profile_figure(
    profile: pd.DataFrame, rules: Mapping[str, str], targets: Sequence[str]
) -> Figure:
    """Draw accepted and certified shares by position and by margin decile.

    Args:
        profile: target and the columns of analysis.acceptance.realised.profile.
        rules: printed name of the rules drawn, by label.
        targets: printed names.
    """
    figure = Figure(figsize=(TEXT, 0.5 + 1.9 * len(targets)), layout="constrained")
    axes = figure.subplots(len(targets), 2, sharey=True, squeeze=False)
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
        Line2D([], [], color=color, label=name)
        for (color, _), name in zip(LINES, rules.values(), strict=False)
    ]
    figure.legend(handles=[*kinds, *colors], loc="outside lower center", ncols=4)
    return figure


def _profile(axis: Axes, part: pd.DataFrame, rules: Mapping[str, str], by: str) -> None:
    for (color, _), rule in zip(LINES, rules, strict=False):
        lines = part[(part["rule"] == rule) & (part["steps"] > 0)]
        x = (lines["low"] + lines["high"]) / 2 if by == "position" else lines["bin"] + 1
        for name, style in (("accepted", "-"), ("certified", ":")):
            axis.plot(x, lines[name], linestyle=style, color=color, marker=".", markersize=3)
    axis.set_ylim(-0.03, 1.03)
    axis.grid(axis="y", **RULED)


@styled
def dial_figure(pairs: Pairs) -> Figure | None:
    """Draw what every dial gains, in fact and as certified, against what it costs."""
    listing = pairs.listing[pairs.listing["group"] == "dial"]
    listing = listing[~listing["rule"].str.startswith("tree ")]
    if listing.empty:
        return None
    costs = {"departure": "steps that depart from greedy", "given_up": "probability given up"}
    figure = Figure(figsize=(TEXT, 0.4 + 2.0 * len(pairs.targets)), layout="constrained")
    axes = figure.subplots(len(pairs.targets), 2, sharey="row", squeeze=False)
    for row, target in zip(axes, pairs.targets, strict=True):
        for axis, cost in zip(row, costs, strict=True):
            for (color, _), (name, part) in zip(
                cycle(LINES), listing.groupby("name", sort=False), strict=False
            ):
                _dial(axis, pairs, target, part, cost, color, str(name))
            axis.set_title(target)
            axis.xaxis.set_major_formatter(PercentFormatter(1))
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.yaxis.set_minor_formatter(NullFormatter())
            axis.grid(**RULED)
        row[0].set_ylabel("tokens per call")
    for axis, name in zip(axes[-1], costs.values(), strict=True):
        axis.set_xlabel(name)
    legend(figure, axes[0, :1], 4)
    return figure


def _dial(
    axis: Axes, pairs: Pairs, target: str, part: pd.DataFrame, cost: str, color: str, name: str
) -> None:
    x = [pairs.value(target, rule, cost) for rule in part["rule"]]
    for kind, style in (("realised", "-"), ("certified", ":")):
        y = [pairs.value(target, rule, f"{kind}_per_call") for rule in part["rule"]]
        shown = "in fact" if kind == "realised" else kind
        axis.plot(x, y, linestyle=style, color=color, **POINTS, label=f"{name}, {shown}")
        rows = [pairs.row(target, rule, f"{kind}_per_call") for rule in part["rule"]]
        bounds = [at for at, row in enumerate(rows) if censored_ends(row)[0]]
        axis.plot(
            [x[at] for at in bounds],
            [y[at] for at in bounds],
            linestyle="none",
            marker="^",  # at least
            markersize=5,
            markerfacecolor="white",
            color=color,
        )
        axis.annotate(
            f"{symbol(part['parameter'].iloc[0])}={part['setting'].iloc[-1]:g}",
            (x[-1], y[-1]),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=6,
            color=color,
        )


@styled
def along_figure(
    verdicts: Mapping[str, NDArray[np.int_]], tokens: Sequence[str], title: str
) -> Figure:
    """Draw where along one answer steps are certified, accepted only, or rejected.

    Args:
        verdicts: by printed name of a rule, (n,) 0 certified, 1 accepted only, 2 rejected; the
            text is coloured by the first.
        tokens: (n,) the emitted tokens.
        title: what is shown.
    """
    colors = list(VERDICTS.values())
    lines = _wrap(tokens, WIDTH)
    rules = list(verdicts)
    height = 0.9 + 0.16 * len(rules) + 0.155 * len(lines)
    figure = Figure(figsize=(TEXT, height), layout="constrained")
    strips, text = figure.subplots(
        2, 1, height_ratios=[0.16 * len(rules) + 0.25, 0.155 * len(lines)]
    )
    strips.imshow(
        np.array(list(verdicts.values())),
        aspect="auto",
        vmin=0,
        vmax=2,
        cmap=ListedColormap(colors),
        interpolation="nearest",
        extent=(-0.5, len(tokens) - 0.5, len(rules) - 0.5, -0.5),
    )
    strips.set_yticks(range(len(rules)), rules)
    strips.hlines(
        np.arange(1, len(rules)) - 0.5, -0.5, len(tokens) - 0.5, color="white", linewidth=1
    )
    strips.set_xlabel("position in the answer")
    strips.set_title(title)
    _text(text, lines, verdicts[rules[0]], colors)
    figure.legend(
        handles=[Patch(color=color, label=name) for name, color in VERDICTS.items()],
        loc="outside lower center",
        ncols=3,
    )
    return figure


def _wrap(tokens: Sequence[str], width: int) -> list[list[tuple[int, str]]]:
    """Break tokens into lines of at most `width` characters; a newline is shown and breaks.

    Characters that the font lacks are shown as a box.
    """
    font = get_font(findfont(MONOSPACED))
    lines: list[list[tuple[int, str]]] = [[]]
    used = 0
    for at, token in enumerate(tokens):
        shown = "".join(
            c if font.get_char_index(ord(c)) else "□"
            for c in token.replace("\n", "⏎").replace("\t", " ")
        )[:width]
        if used + len(shown) > width:
            lines.append([])
            used = 0
        lines[-1].append((at, shown))
        used += len(shown)
        if "\n" in token:
            lines.append([])
            used = 0
    return [line for line in lines if line]


def _text(
    axis: Axes,
    lines: Sequence[Sequence[tuple[int, str]]],
    verdict: NDArray[np.int_],
    colors: Sequence[str],
) -> None:
    axis.set_axis_off()
    axis.set_xlim(0, WIDTH)
    axis.set_ylim(len(lines), 0)
    for row, line in enumerate(lines):
        x = 0
        for at, shown in line:
            axis.barh(
                row + 0.5,
                len(shown),
                left=x,
                height=0.86,
                color=colors[verdict[at]],
                alpha=0.45,
                linewidth=0,
            )
            for offset, character in enumerate(shown):
                axis.text(
                    x + offset + 0.5,
                    row + 0.5,
                    character,
                    family=MONOSPACED,
                    fontsize=6.2,
                    ha="center",
                    va="center",
                )
            x += len(shown)

"""Table and figure frontier: every rule on one plane of gain and cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from ..acceptance.frontier import COSTS
from ..statistics.trajectories import CENSORED
from .acceptance_tables import PER_CALL
from .figure import Figure
from .notes import few_notes
from .pairs import Pairs, rows_by
from .style import BLACK, GREY, LINES, RULED, grid, legend, logarithmic, percent, styled
from .table import Cell, Section, Table
from .text import number_text, share_text

PRINTED: dict[str, tuple[str, Callable[[float], str]]] = {
    "departure": ("departs", share_text),
    "nats": ("nats given up", partial(number_text, digits=3)),
}
AXES = {
    "departure": "steps that depart from greedy",
    "nats": "log-likelihood given up, nats a token",
}
MARKERS = "osD^vP*Xh"


def frontier_table(pairs: Pairs) -> Table:
    """Gain and cost of the presets, and of every other rule on a frontier."""
    frame = pairs.frontier
    found = rows_by(frame, "target", "rule", "cost")
    listing = pairs.listing[pairs.listing["group"] == "preset"]
    presets = dict(zip(listing["rule"], listing["name"], strict=True))

    def cells(rule: str) -> list[Cell]:
        texts = []
        for target in pairs.targets:
            row = found[target, rule, COSTS[0]]
            texts.append(("≥ " if row["cut"] > CENSORED else "") + number_text(row["tokens"]))
            for cost, (_, text) in PRINTED.items():
                row = found[target, rule, cost]
                texts += [text(row["value"]), _verdict(row, pairs)]
        return [Cell(text) for text in texts]

    others = [rule for rule in _together(pairs) if rule not in presets]
    sections = {
        "Engine presets": {rule: f"{pairs.names[rule]}, {name}" for rule, name in presets.items()},
        "Other rules on a frontier": {rule: _shown(pairs, rule) for rule in others},
    }
    return Table.side_by_side(
        "frontier",
        "Gain and cost: who is on the frontier",
        f"What every rule, preset and setting gains with {pairs.drafter}, against what it costs. "
        f"{PER_CALL} Departs: steps at which a token other than the target's argmax is emitted; "
        "nats given up: log p(x₀) − log p(y) of the emitted y, mean over steps. After each cost: "
        "yes where no rule is better, one that emits as many tokens for as little of this cost "
        "with as few nodes a level, and more, less or fewer of one; in brackets in how many of the "
        "resamples of the prompts. Elsewhere the better rule that emits most. Rules at the same "
        "point are listed once. Every rule accepts what strict greedy does, so its departures are "
        "its acceptance less that of strict greedy, and chains lie on nearly one curve there: the "
        "nats tell them apart.",
        "Rule",
        pairs.targets,
        ["tokens", *(text for name, _ in PRINTED.values() for text in (name, "frontier"))],
        [
            Section(heading, [(name, cells(rule)) for rule, name in rows.items()])
            for heading, rows in sections.items()
            if rows
        ],
        frame,
        few_notes(frame["prompts"]),
    )


def _together(pairs: Pairs) -> list[str]:
    """Return the rules on a frontier of any target, by their tokens, each point once."""
    frame = pairs.frontier
    best = set(frame.loc[frame["better"] == "", "rule"])
    points: dict[tuple[Any, ...], str] = {}
    for rule in (rule for rule in pairs.names if rule in best):
        rows = frame[frame["rule"] == rule]
        points.setdefault((*rows["tokens"], *rows["value"], *rows["nodes"]), rule)
    tokens = {rule: sum(point[: len(point) // 3]) for point, rule in points.items()}
    return sorted(tokens, key=lambda rule: tokens[rule])


def _shown(pairs: Pairs, rule: str) -> str:
    nodes = int(pairs.frontier.loc[pairs.frontier["rule"] == rule, "nodes"].iloc[0])
    return pairs.names[rule] + (f" ({nodes} nodes a level)" if nodes > 1 else "")


def _verdict(row: Mapping[Any, Any], pairs: Pairs) -> str:
    if row["better"]:
        return f"no: {pairs.names[row['better']]}"
    return f"yes ({share_text(row['frontier'])})"


@styled
def frontier_figure(pairs: Pairs) -> Figure:
    """Draw every rule on both planes: dials as curves, presets by name, the frontier below."""
    frame = pairs.frontier
    drawing, axes = grid(len(COSTS), pairs.targets)
    drawing.set_figheight(5.6)
    for row, cost in zip(axes, COSTS, strict=True):
        for axis, target in zip(row, pairs.targets, strict=True):
            part = frame[(frame["target"] == target) & (frame["cost"] == cost)]
            _plane(axis, part.set_index("rule"), pairs)
            axis.set_xlabel(AXES[cost])
            if cost == "departure":
                percent(axis, "x")
        row[0].set_ylabel("tokens a call (log scale)")
    legend(drawing, axes[0, :1], 3)
    return Figure(
        "frontier",
        "Gain and cost, drawn",
        "Tokens a call against what they cost, every rule that was measured. Grey line: the "
        "frontier of the rules that draft one token a level. Trees depart nowhere and pay in nodes "
        "a level, the numbers beside them. Bars: intervals over prompts, of presets.",
        drawing,
        frame,
    )


def _plane(axis: Axes, part: pd.DataFrame, pairs: Pairs) -> None:
    finite = part[np.isfinite(part["value"])]
    chains = finite[finite["nodes"] == 1].sort_values(["value", "tokens"])
    best = np.maximum.accumulate(chains["tokens"])
    axis.step(chains["value"], best, where="post", color=GREY, linewidth=3, zorder=0)
    axis.plot(chains["value"], chains["tokens"], ".", color=GREY, markersize=3, zorder=1)
    listing = pairs.listing
    dials = listing[(listing["group"] == "dial") & listing["rule"].isin(chains.index)]
    for (color, style), (name, rows) in zip(
        cycle(LINES), dials.groupby("name", sort=False), strict=False
    ):
        line = chains.loc[rows["rule"]]
        axis.plot(line["value"], line["tokens"], color=color, linestyle=style, label=str(name))
    trees = finite[finite["nodes"] > 1]
    axis.plot(trees["value"], trees["tokens"], "_", color=BLACK, label="tree", clip_on=False)
    for _, tree in trees.iterrows():
        at = (tree["value"], tree["tokens"])
        axis.annotate(str(tree["nodes"]), at, (4, -2), textcoords="offset points", fontsize=5.5)
    presets = listing[listing["group"] == "preset"]
    for marker, name, rule in zip(cycle(MARKERS), presets["name"], presets["rule"], strict=False):
        if rule in finite.index:
            one = finite.loc[rule]
            axis.errorbar(
                one["value"],
                one["tokens"],
                xerr=[[one["value"] - one["ci_low"]], [one["ci_high"] - one["value"]]],
                yerr=[[one["tokens"] - one["tokens_low"]], [one["tokens_high"] - one["tokens"]]],
                fmt=marker,
                color=BLACK,
                markersize=4,
                elinewidth=0.6,
                label=f"{name}: {pairs.names[rule]}",
            )
    logarithmic(axis, "y")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axis.grid(**RULED)

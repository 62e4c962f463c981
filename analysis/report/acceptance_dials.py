"""Turning a rule's parameter from strict to relaxed: what it gains and costs, drawn and listed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from ..statistics.run_lengths import censored_ends
from ..statistics.trajectories import CENSORED
from .acceptance_tables import LENGTH, PER_CALL, pair_table
from .figure import Figure
from .pairs import Pairs
from .style import LINES, POINTS, RULED, TEXT, legend, percent, styled
from .table import Cell, Section, Table
from .text import UNDEFINED, share_text, symbol

KINDS = {"realised": "in fact", "certified": "certified"}  # of lengths
COSTS = {"departure": "steps that depart from greedy", "given_up": "probability given up"}


@styled
def dial_figure(pairs: Pairs) -> Figure | None:
    """Draw what every dial gains, in fact and as certified, against what it costs."""
    judged = [label for label, rule in pairs.rules.items() if rule.judges_tokens]
    listing = pairs.listing[pairs.listing["group"] == "dial"]
    listing = listing[listing["rule"].isin(judged)]
    if listing.empty:
        return None
    lines = [(target, kind) for target in pairs.targets for kind in KINDS]
    drawing = Drawing(figsize=(TEXT, 0.4 + 1.8 * len(lines)), layout="constrained")
    axes = drawing.subplots(len(lines), 2, sharey="row", squeeze=False)
    for row, (target, kind) in zip(axes, lines, strict=True):
        for axis, cost in zip(row, COSTS, strict=True):
            for (color, style), (name, part) in zip(
                cycle(LINES), listing.groupby("name", sort=False), strict=False
            ):
                curve = {"color": color, "linestyle": style, "label": str(name)}
                _dial(axis, pairs, target, part, cost, kind, curve)
            axis.set_title(f"{target}, {KINDS[kind]}")
            percent(axis, "x")
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.yaxis.set_minor_formatter(NullFormatter())
            axis.grid(**RULED)
        row[0].set_ylabel("tokens a call (log scale)")
    for axis, name in zip(axes[-1], COSTS.values(), strict=True):
        axis.set_xlabel(name)
    legend(drawing, axes[0, :1], 4)
    return Figure(
        "acceptance_dial",
        "The dial",
        "What relaxing a rule gains, in fact and as certified, against how often "
        "the output departs from the target's argmax and the target probability "
        "this gives up. Each curve begins at strict greedy. Bars: intervals over prompts. "
        "Triangles: lower bounds, as ends of "
        f"trajectories cut more than {100 * CENSORED:g} % of the calls there.",
        drawing,
        _drawn(pairs, listing),
    )


def _drawn(pairs: Pairs, listing: pd.DataFrame) -> pd.DataFrame:
    """Return costs and lengths of every setting; `_censored` where a length is a lower bound."""
    rows = []
    for target in pairs.targets:
        for setting in listing.drop(columns="group").to_dict("records"):
            found: dict[Any, Any] = {"target": target, "dial": setting.pop("name"), **setting}
            for name in COSTS:
                found[name] = pairs.value(target, setting["rule"], name)
            for name in (f"{kind}_per_call" for kind in KINDS):
                row = pairs.row(target, setting["rule"], name)
                found |= {name: row["value"], f"{name}_censored": censored_ends(row)[0]}
            rows.append(found)
    return pd.DataFrame(rows)


def _dial(
    axis: Axes,
    pairs: Pairs,
    target: str,
    part: pd.DataFrame,
    cost: str,
    kind: str,
    curve: Mapping[str, Any],
) -> None:
    x = [pairs.value(target, rule, cost) for rule in part["rule"]]
    rows = [pairs.row(target, rule, f"{kind}_per_call") for rule in part["rule"]]
    y = [row["value"] for row in rows]
    reach = [[row["value"] - row["ci_low"], row["ci_high"] - row["value"]] for row in rows]
    reach_of = np.nan_to_num(np.array(reach).T.clip(min=0), posinf=0.0)
    axis.errorbar(x, y, reach_of, **POINTS, **curve, elinewidth=0.7)
    bounds = [at for at, row in enumerate(rows) if censored_ends(row)[0]]
    axis.plot(
        [x[at] for at in bounds],
        [y[at] for at in bounds],
        linestyle="none",
        marker="^",  # at least
        markersize=5,
        markerfacecolor="white",
        color=curve["color"],
    )
    axis.annotate(
        f"{symbol(part['parameter'].iloc[0])} = {part['setting'].iloc[-1]:g}",
        (x[-1], y[-1]),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=6,
        color=curve["color"],
    )


def dials(pairs: Pairs) -> Table | None:
    """What each setting of a dial accepts, gains and gives up."""
    listing = pairs.listing[pairs.listing["group"] == "dial"]
    if listing.empty:
        return None
    sections = {
        f"{name}, {symbol(part['parameter'].iloc[0])}": [
            (f"{setting:g}", str(rule))
            for setting, rule in zip(part["setting"], part["rule"], strict=True)
        ]
        for name, part in listing.groupby("name", sort=False)
    }
    return pair_table(
        pairs,
        "dial",
        "Turning the dial",
        f"Turning one parameter from strict to relaxed. {PER_CALL} Trees: accepted "
        "is the share of steps whose target argmax is among the drafter's top m.",
        sections,
        ("acceptance", LENGTH, "certified_per_call", "departure", "given_up"),
    )


def reached(pairs: Pairs) -> Table | None:
    """The smallest relaxation that reaches a wanted length."""
    frame = pairs.reached
    if frame.empty:
        return None
    rows = []
    for (dial, parameter), part in frame.groupby(["dial", "parameter"], sort=False):
        found = {(row["target"], row["kind"]): row for row in part.to_dict("records")}
        rows.append(
            (
                f"{dial}, {symbol(str(parameter))}",
                [Cell(_reached(found[target, kind])) for target in pairs.targets for kind in KINDS],
            )
        )
    wanted = float(frame["wanted"].iloc[0])
    return Table.side_by_side(
        "reached",
        "The smallest relaxation that reaches a wanted length",
        f"The smallest relaxation with an acceptance length of {wanted:g} tokens per call "
        "(long_run), in fact and as certified; in brackets, the most that the dial reaches. Two "
        "values: from the lower and from the upper ends of certificates known as intervals.",
        "Dial",
        pairs.targets,
        list(KINDS.values()),
        [Section("", rows)],
        frame,
        _reached_notes(pairs),
    )


def _reached_notes(pairs: Pairs) -> list[str]:
    """Say at which share of steps the settings found reject nothing."""
    empty = pairs.reached.set_index(["dial", "kind", "target"])["empty"]
    parts = []
    for dial in pairs.reached["dial"].unique():
        for kind, name in KINDS.items():
            shares = [float(empty[dial, kind, target]) for target in pairs.targets]
            if any(shares):
                parts.append(f"{dial}, {name} " + " / ".join(map(share_text, shares)))
    if not parts:
        return ["No rejection region is empty at these settings."]
    return [
        "Steps with an empty rejection region at the setting found, or at the most relaxed one "
        f"where none reaches: {', '.join(parts)}"
        + (f" ({' / '.join(pairs.targets)})." if len(pairs.targets) > 1 else ".")
    ]


def _reached(row: Mapping[Any, Any]) -> str:
    def end(value: float, length: float) -> str:
        return f"{UNDEFINED} ({length:.2f})" if math.isnan(value) else f"{value:.3g}"

    texts = [end(row["value"], row["length"]), end(row["optimistic"], row["optimistic_length"])]
    return " to ".join(dict.fromkeys(texts))

"""Figures of decoding with a drafter that do not depend on the clock, one column a target."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ..decoding import metrics as decoding
from ..decoding.metrics import Decoded
from ..rules import Mars
from .figure import Figure
from .style import LINES, POINTS, grid, legend, styled

THRESHOLD = 0.9  # of MARS, its default
SHOWN = len(LINES)  # methods in a panel
TESTED = 5  # tests that a place needs for its rate to be drawn


@styled
def places_figure(decoded: Sequence[Decoded]) -> Figure:
    """Draw acceptance by place in the draft, and the histogram of accepted lengths.

    Places tested fewer than `TESTED` times are left out.
    """
    drawing, axes = grid(2, [one.target for one in decoded])
    frames = []
    for (above, below), one in zip(axes.T, decoded, strict=True):
        rates = decoding.position_rates(one.calls)
        rates = rates[rates["tested"] >= TESTED]
        lengths = decoding.length_histogram(one.calls)
        for (colour, style), (run, name) in zip(LINES, longest(one), strict=False):
            for axis, table, x, y in (
                (above, rates, "place", "rate"),
                (below, lengths, "accepted", "share"),
            ):
                mine = table[table["run"] == run]
                drawn = {"target": one.target, "method": name, "number": mine[x], "share": mine[y]}
                frames.append(pd.DataFrame(drawn).assign(of=x))
                axis.plot(mine[x], mine[y], color=colour, linestyle=style, **POINTS, label=name)
        above.set_xlabel("place in the draft")
        below.set_xlabel("accepted tokens of a call")
        above.set_ylim(-0.03, 1.03)
        for axis in (above, below):
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            axis.yaxis.set_major_formatter(PercentFormatter(1))
    axes[0, 0].set_ylabel("accepted, of tested")
    axes[1, 0].set_ylabel("share of calls")
    legend(drawing, axes[0])
    return Figure(
        "decoding_places",
        "Acceptance along a draft",
        "Above: how often the token at each place of a draft is accepted, of those "
        f"tested there; places tested fewer than {TESTED} times are left out. Below: how many "
        "tokens calls accept.",
        drawing,
        pd.concat(frames, ignore_index=True) if frames else None,
    )


def longest(one: Decoded) -> list[tuple[int, str]]:
    """Return one run a kind of method: the lowest temperature at its longest draft.

    Thresholds of MARS are one kind, shown by `THRESHOLD` where it was decoded.
    """
    runs = one.runs[one.runs["draft_length"] > 0]
    rules = [one.rules.get(label) for label in runs["rule"]]
    kinds = [
        f"{Mars.name}, {drafter}" if isinstance(rule, Mars) else method
        for rule, method, drafter in zip(rules, runs["method"], runs["drafter"], strict=True)
    ]
    other = [rule != Mars(THRESHOLD) for rule in rules]
    ordered = runs.assign(kind=kinds, other=other).sort_values(
        ["other", "temperature", "draft_length"], ascending=[True, True, False], kind="stable"
    )
    chosen = ordered.drop_duplicates("kind").sort_index()[:SHOWN]
    names = (f"{method}, T = {t:g}" for method, t in chosen[["method", "temperature"]].to_numpy())
    return list(zip(chosen.index.tolist(), names, strict=True))

"""Figures of decoding with a drafter that do not depend on the clock, one column a target."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from ..decoding import metrics as decoding
from ..decoding.metrics import Decoded
from ..rules import Mars
from ..statistics.bootstrap import Floats
from .dots import MARKERS
from .figure import Figure
from .style import LINES, RULED, grid, legend, percent, styled

THRESHOLD = 0.9  # of MARS, its default
SHOWN = len(LINES)  # methods in a panel
APART = 0.6  # of the distance between two numbers, over which the methods are spread
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
        calls = lengths.groupby("run")["calls"].transform("sum")
        shown = {
            "place": rates.rename(columns={"place": "number", "tested": "of_all"}).assign(
                share=rates["rate"], count=rates["accepted"]
            ),
            "accepted": lengths.rename(columns={"accepted": "number"}).assign(
                of_all=calls, count=lengths["calls"]
            ),
        }
        runs = longest(one)
        for at, ((colour, _), (run, name)) in enumerate(zip(LINES, runs, strict=False)):
            aside = APART * ((at + 0.5) / len(runs) - 0.5)
            for axis, (of, table) in zip((above, below), shown.items(), strict=True):
                mine = table[table["run"] == run]
                low, high = wilson(mine["count"].to_numpy(), mine["of_all"].to_numpy())
                axis.errorbar(
                    mine["number"] + aside,
                    mine["share"],
                    np.stack([mine["share"] - low, high - mine["share"]]).clip(min=0),
                    fmt=MARKERS[at % len(MARKERS)],
                    color=colour,
                    markersize=3,
                    elinewidth=0.7,
                    label=name,
                )
                drawn = mine[["number", "share", "count", "of_all"]]
                frames.append(
                    drawn.assign(target=one.target, method=name, of=of, ci_low=low, ci_high=high)
                )
        above.set_xlabel("place in the draft")
        below.set_xlabel("accepted tokens of a call")
        for axis in (above, below):
            axis.set_ylim(-0.03, 1.03)
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            axis.grid(axis="y", **RULED)
            percent(axis, "y")
    axes[0, 0].set_ylabel("accepted, of tested")
    axes[1, 0].set_ylabel("calls")
    legend(drawing, axes[0])
    columns = ["target", "method", "of", "number", "share", "ci_low", "ci_high", "count", "of_all"]
    data = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)
    return Figure(
        "decoding_places",
        "Acceptance along a draft",
        "Above: how often the token at each place of a draft is accepted, of those "
        f"tested there; places tested fewer than {TESTED} times are left out. Below: how many "
        "tokens calls accept. Bars: 95 % intervals (Wilson) of these counts, taken as independent; "
        "the CSV file has the counts.",
        drawing,
        data[columns],
    )


def wilson(count: Floats, of_all: Floats) -> tuple[Floats, Floats]:
    """Return the ends of the 95 % Wilson intervals of (n,) shares count/of_all.

    >>> [float(end.round(4)[0]) for end in wilson(np.array([5]), np.array([10]))]
    [0.2366, 0.7634]
    """
    z2 = NormalDist().inv_cdf(0.975) ** 2
    centre = (count + z2 / 2) / (of_all + z2)
    reach = np.sqrt(z2 * (count * (of_all - count) / of_all + z2 / 4)) / (of_all + z2)
    return centre - reach, centre + reach


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

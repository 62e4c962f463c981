"""Certified and accepted steps by the target's margin, and by the position in its answer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from ..statistics.bootstrap import Flags
from .acceptance import selected
from .results import Results, Target
from .table import Table, pivoted
from .text import decimals, number_text, percent_text

EDGES = (0.5, 1.0, 2.0, 4.0)  # nats, of log p0 - log p1
BY = {"margin": "log p₀ − log p₁, nats", "position": "half of the answer"}
NAMES = {  # of statistics, in the order of the table's rows
    "share": "of all steps",
    "acceptance": "accepted",
    "certified": "certified",
    "median": "median R, nats",
}


def parts(target: Target) -> Iterator[tuple[str, str, Flags]]:
    """Yield the parts of a target's N steps: by, name, and the (N,) steps that belong to it."""
    bin_of, edges = np.digitize(target.margin, EDGES), [f"{edge:g}" for edge in (0, *EDGES)]
    names = [f"{low} to {high}" for low, high in pairwise(edges)]
    for at, name in enumerate([*names, f"above {edges[-1]}"]):
        yield "margin", name, bin_of == at
    of_answer, steps = target.trajectories, target.bootstrap.steps
    position = np.arange(len(target.margin)) - of_answer.starts[of_answer.prompts]
    late = 2 * position >= steps[of_answer.prompts]
    yield "position", "first", ~late
    yield "position", "second", late


def part_statistics(target: Target) -> pd.DataFrame:
    """Return a row for each part of a target's steps, rule and statistic.

    Returns:
        target, by, part, rule, statistic, value, ci_low, ci_high, steps, prompts. Of each part the
        share of all steps that it has, with an empty rule. Of each rule, with a drafter the shares
        of the part's steps that are accepted and certified; without one the median certificate,
        without an interval.
    """
    rows: list[dict[str, Any]] = []
    rules = selected(list(target.certificates))
    for by, name, flags in parts(target):
        found: list[tuple[str, str, Any]] = [("", "share", target.bootstrap.share(flags))]
        for rule in rules if flags.any() else ():
            if target.judged:
                judged = target.judged[rule.label]
                shares = {"acceptance": judged.accepted, "certified": judged.certified}
                found += [
                    (rule.label, statistic, target.bootstrap.share(kept & flags, flags))
                    for statistic, kept in shares.items()
                ]
            else:
                values = np.minimum(target.certificates[rule][0][flags], rule.ceiling)
                median = np.quantile(values, 0.5, method="inverted_cdf")
                found.append((rule.label, "median", (median, np.nan, np.nan)))
        for label, statistic, ends in found:
            keys = {"by": by, "part": name, "rule": label, "statistic": statistic}
            ends_named = zip(("value", "ci_low", "ci_high"), map(float, ends), strict=True)
            rows.append({"target": target.label, **keys, **dict(ends_named), "steps": flags.sum()})
    return pd.DataFrame(rows).assign(prompts=target.bootstrap.count)


def parts_table(results: Results) -> Table:
    """Return the shares of `part_statistics`; without a drafter the median certificates."""
    data = results["parts"]
    order = list(NAMES).index
    shown = data.sort_values("statistic", key=lambda of: of.map(order), kind="stable")
    digits = decimals(shown.loc[shown["statistic"] == "median", "value"])
    cells = [
        number_text(value, digits) if statistic == "median" else percent_text(value)
        for statistic, value in zip(shown["statistic"], shown["value"], strict=True)
    ]
    table = pivoted(shown, ["statistic", "rule"], ["target", "by", "part"], cells)
    drafted = f"accepted for {results.drafter} and certified at its KL(p‖q)"
    what = drafted if results.drafter else "median certificate R, the ceiling where nothing fails"
    return Table(
        "parts",
        "By margin and by position in the answer",
        f"Steps by the target's margin log p₀ − log p₁, and in the first and second half of its "
        f"answers: {what}. Strict greedy rejects and certifies least at low margins; a relaxed "
        "rule helps where its row exceeds that of strict greedy.",
        data,
        table.rename(index=NAMES, level=0)
        .rename(index={**results.names, "": ""}, level=1)
        .rename(columns=BY, level="by")
        .rename_axis(index=["", "Rule"]),
    )

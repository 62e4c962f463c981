"""Table and figure of the cheap numbers that foretell a loss in answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..decoding.answers import Answered
from ..decoding.prediction import NUMBERS, predict
from .accuracy_decisions import rows_of
from .figure import Figure
from .style import BLUE, LEVEL, TEXT, VERMILION, legend, styled
from .table import Cell, Section, Table
from .text import UNDEFINED, number_text

Found = Sequence[tuple[pd.DataFrame, pd.DataFrame]]


def predictions(
    answered: Sequence[Answered], resamples: int, confidence: float, seed: int
) -> Found:
    """Return what foretells a loss, target by target."""
    return [predict(one, resamples, confidence, seed) for one in answered]


def _interval(row: dict[str, Any], key: str) -> str:
    ends = [row[key], row[f"{key}_ci_low"], row[f"{key}_ci_high"]]
    if any(pd.isna(end) for end in ends):
        return UNDEFINED
    value, low, high = (number_text(float(end)) for end in ends)
    return f"{value} [{low}, {high}]"


def prediction_table(answered: Sequence[Answered], found: Found) -> Table | None:
    """How well each number foretells a loss; None where no rule is relaxed."""
    shown = [(one, table) for one, (table, _) in zip(answered, found, strict=True)]
    if all(table.empty for _, table in shown):
        return None
    sections = [
        Section(
            one.target if len(answered) > 1 else "",
            [
                (
                    NUMBERS[row["number"]][0],
                    [
                        Cell("yes" if row["before"] else "no"),
                        Cell(_interval(row, "area")),
                        Cell(_interval(row, "correlation")),
                    ],
                )
                for row in rows_of(table)
            ],
        )
        for one, table in shown
    ]
    counts = [
        f"{one.target}: {table['items'].iloc[0]} right answers of the target alone, over all "
        f"relaxed rules, of which {table['lost'].iloc[0]} turned wrong."
        for one, table in shown
        if not table.empty
    ]
    whole = all(one.account is not None for one in answered)
    return Table(
        "accuracy_prediction",
        "Which cheap number foretells a loss",
        "Area: how often, of two answers of one rule and threshold to questions that the target "
        "alone has right, the one that turned wrong has the larger number; ties half. 0.5 says "
        "nothing. Correlation: Spearman's, over rules and thresholds, of the mean number and the "
        "loss of accuracy. In brackets: intervals over items. Before: known from the target's own "
        "answer, before the rule decodes.",
        "Number",
        [("", 3)],
        ["before", "area", "correlation"],
        sections,
        pd.concat(
            [table.assign(target=one.target)[["target", *table.columns]] for one, table in shown],
            ignore_index=True,
        ),
        counts if whole else [*counts, "Departures and certificates: run stage=account first."],
    )


@styled
def prediction_figure(answered: Sequence[Answered], found: Found) -> Figure | None:
    """Draw the loss of every rule and threshold over each number; None where there is none."""
    from matplotlib.figure import Figure as Drawing

    runs = [by_run.assign(target=one.target) for one, (_, by_run) in
            zip(answered, found, strict=True) if not by_run.empty]  # fmt: skip
    if not runs:
        return None
    data = pd.concat(runs, ignore_index=True)
    names = [name for name in NUMBERS if name in data]
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    drawing = Drawing(figsize=(TEXT, 0.5 + 1.8 * rows), layout="constrained")
    axes = drawing.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for axis, name in zip(axes, names, strict=False):
        for (target, part), color in zip(
            data.groupby("target", sort=False), (BLUE, VERMILION), strict=False
        ):
            axis.plot(part[name], 100 * part["loss"], "o", color=color, markersize=3,
                      label=str(target))  # fmt: skip
            for _, row in part.iterrows():
                if np.isfinite(row[name]):
                    axis.annotate(row["method"], (row[name], 100 * row["loss"]), (3, 2),
                                  textcoords="offset points", fontsize=4.5)  # fmt: skip
        axis.axhline(0, **LEVEL)
        axis.set_xlabel(NUMBERS[name][0], fontsize=6)
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    axes[0].set_ylabel("accuracy lost, points")
    if len(answered) > 1:
        legend(drawing, axes[:1])
    return Figure(
        "accuracy_prediction",
        "The loss over cheap numbers",
        "Every rule and threshold: the accuracy that it loses over what it departs, gives up or "
        "leaves uncertified, means over items.",
        drawing,
        data[["target", *(name for name in data if name != "target")]],
    )

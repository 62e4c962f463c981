"""Table of how far each rule may be relaxed, and the same in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ..decoding.answers import Answered, decide, limits
from .table import Cell, Section, Table
from .text import number_text, symbol


def decisions_table(
    answered: Sequence[Answered], tables: Sequence[pd.DataFrame], margin: float, confidence: float
) -> Table | None:
    """Every threshold with its one-sided bounds; None where no rule is relaxed."""
    found = [
        decide(table, one.runs, margin, confidence)
        for one, table in zip(answered, tables, strict=True)
    ]
    if all(frame.empty for frame in found):
        return None
    sections = [
        Section(one.target if len(answered) > 1 else "", [_row(row) for row in rows_of(frame)])
        for one, frame in zip(answered, found, strict=True)
    ]
    data = [
        frame.assign(target=one.target)[["target", *frame.columns]]
        for one, frame in zip(answered, found, strict=True)
    ]
    level = f"{100 * confidence:g} %"
    return Table(
        "accuracy_decisions",
        "How far a rule may be relaxed",
        f"Difference of the accuracies of a method and of the target alone, in points, and its "
        f"one-sided {level} bounds (Agresti and Min, paired by item). Excluded: the lower bound "
        f"lies above minus {100 * margin:g} points, the margin fixed beforehand, here and at all "
        "stricter thresholds. Falls: the upper bound lies below 0, here and at all more relaxed "
        "thresholds. Tested in this order, each claim holds at the confidence of one test.",
        "Method",
        [("", 6)],
        ["γ", "lost and won", "difference", "bounds", "excluded", "falls"],
        sections,
        pd.concat(data, ignore_index=True),
        [
            line
            for one, frame in zip(answered, found, strict=True)
            for line in sentences(frame, margin, one.target if len(found) > 1 else "")
        ],
    )


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame as mappings."""
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]


def _row(row: dict[str, Any]) -> tuple[str, list[Cell]]:
    bounds = " to ".join(number_text(100 * row[end], 1) for end in ("worst", "best"))
    texts = [
        str(row["draft_length"]),
        f"{row['lost']} and {row['won']}",
        number_text(100 * row["difference"], 1),
        bounds,
        "yes" if row["up_to"] else "no",
        "yes" if row["down_to"] else "no",
    ]
    return row["method"], [Cell(text) for text in texts]


def sentences(decided: pd.DataFrame, margin: float, target: str = "") -> list[str]:
    """Return of each rule the largest threshold that is excluded, and the first that falls."""
    found = []
    points = f"{100 * margin:g} points"
    for row in rows_of(limits(decided)):
        name = f"{target}, {row['family']}" if target else row["family"]
        dial = symbol(row["parameter"]) if row["parameter"] else "the rule"
        if math.isnan(row["largest"]):
            first = f"at no threshold is a loss above {points} excluded"
        else:
            first = (
                f"a loss above {points} is excluded up to {dial} = {row['largest']:g} "
                f"(bound {number_text(100 * row['worst'], 1)} points)"
            )
        if math.isnan(row["first"]):
            second = "no threshold makes the accuracy fall measurably"
        else:
            second = (
                f"from {dial} = {row['first']:g} on the accuracy falls, "
                f"by at least {number_text(-100 * row['best'], 1)} points"
            )
        found.append(f"{name}, γ = {row['draft_length']}: {first}; {second}.")
    return found

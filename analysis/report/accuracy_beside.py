"""Table of the answers of all methods side by side, where they differ."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ..decoding.answers import Answered
from .table import Cell, Section, Table

SHOWN = 6  # items on the page; the CSV file has all
LETTERS = 110  # of an answer there


def beside(answered: Answered) -> pd.DataFrame:
    """Return the distinct answers at temperature 0 to every item that has more than one.

    Returns:
        One row a task, item_id and answer: methods (all that gave it), correct and verdicts (how
        many of the item's answers differ in their verdict from the first's). Items whose answers
        differ in their verdict come first.
    """
    data = answered.data[answered.data["temperature"] == 0]
    runs = answered.runs
    names = [
        method if drafter == "none" else f"{method}, γ = {length}"
        for method, drafter, length in zip(
            runs["method"], runs["drafter"], runs["draft_length"], strict=True
        )
    ]
    named = data.assign(methods=[names[run] for run in data["run"]])
    grouped = (
        named.groupby(["task", "item_id", "answer"], sort=False)
        .agg(methods=("methods", "; ".join), correct=("correct", "first"))
        .reset_index()
    )
    key = ["task", "item_id"]
    count = grouped.groupby(key)["answer"].transform("size")
    grouped = grouped[count > 1]
    verdicts = grouped.groupby(key)["correct"].transform(lambda one: (one != one.iloc[0]).sum())
    found = grouped.assign(verdicts=verdicts).sort_values(
        "verdicts", ascending=False, kind="stable"
    )
    return found[[*key, "methods", "correct", "verdicts", "answer"]].reset_index(drop=True)


def beside_table(answered: Sequence[Answered]) -> Table | None:
    """The answers side by side, item by item; None where all methods say the same."""
    frames = [beside(one) for one in answered]
    if not sum(map(len, frames)):
        return None
    sections = []
    for one, frame in zip(answered, frames, strict=True):
        for (task, item), part in list(frame.groupby(["task", "item_id"], sort=False))[:SHOWN]:
            title = f"{task}, {item}"
            rows = [
                (row["methods"], [Cell("right" if row["correct"] else "wrong"), Cell(_cut(row))])
                for _, row in part.iterrows()
            ]
            sections.append(Section(f"{one.target}: {title}" if len(answered) > 1 else title, rows))
    items = sum(len(frame[["task", "item_id"]].drop_duplicates()) for frame in frames)
    return Table(
        "accuracy_beside",
        "Answers side by side",
        "Every different answer to an item, with the methods that gave it; items first whose "
        "answers are not all right or all wrong.",
        "Methods",
        [("", 2)],
        ["verdict", "answer"],
        sections,
        pd.concat(
            [frame.assign(target=one.target)[["target", *frame.columns]]
             for one, frame in zip(answered, frames, strict=True)],
            ignore_index=True,
        ),
        [f"{items} items have more than one answer; the CSV file has all of them in full."],
    )  # fmt: skip


def _cut(row: pd.Series) -> str:
    line = " ".join(str(row["answer"]).split())
    return line if len(line) <= LETTERS else f"{line[:LETTERS].rstrip()} …"

"""Tables of answers to tasks: what every method has right, what it loses, which answers differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from ..decoding.answers import ALL, Answered, differing
from .table import Cell, Section, Table
from .text import UNDEFINED, digits_text, number_text, share_text

SHOWN = 12  # differing answers on the page; the CSV file has all
LETTERS = 90  # of each


def losses_table(
    answered: Sequence[Answered], tables: Sequence[pd.DataFrame], margin: float, confidence: float
) -> Table:
    """Accuracy over all tasks beside what the method gains, paired with the target alone."""

    def texts(row: pd.Series) -> list[str]:
        alone = row["drafter"] == "none"
        ends = (row["difference_ci_low"], row["difference_ci_high"])
        interval = " to ".join(number_text(100 * end, 1) for end in ends)
        return [
            *_setting(row),
            share_text(row["accuracy"]),
            UNDEFINED if alone else f"{row['lost']} and {row['won']}",
            UNDEFINED if alone else interval,
            UNDEFINED if alone else number_text(row["p_value"], 3),
            UNDEFINED if alone else ("yes" if row["within"] else "no"),
            number_text(row["recovery"], 3),
            share_text(row["changed"]),
            digits_text(row["given_up"]),
            number_text(row["tokens_per_call"]),
        ]

    totals = [table[table["task"] == ALL] for table in tables]
    return Table(
        "accuracy_losses",
        "What a method costs in right answers",
        "All tasks together. Lost and won: items that only the target alone, or only the method, "
        f"has right. Difference: of the accuracies, in points, its {100 * confidence:g} % interval "
        "paired by item (Agresti and Min). p: McNemar's exact test. Excluded: whether that "
        f"interval excludes a loss of {100 * margin:g} points, the margin fixed beforehand. "
        "Recovery: accuracy over that of the target alone. Changed: answers that differ in a "
        "token. Given up: log-likelihood of a token under the target that the answers lose, in "
        "nats. τ: tokens a target call emits.",
        "Method",
        [("", 11)],
        ["γ", "T", "accuracy", "lost and won", "difference", "p", "excluded", "recovery", "changed",
         "given up", "τ"],
        _sections(answered, totals, texts),
        _together(answered, [table.drop(columns="speedup") for table in tables]),
        ["The CSV file has every task apart, with intervals of accuracy (Wilson) and τ."],
    )  # fmt: skip


def accuracy_table(answered: Sequence[Answered], tables: Sequence[pd.DataFrame]) -> Table | None:
    """Accuracy by task; None where there is one task."""
    tasks = answered[0].tasks
    if len(tasks) < 2:
        return None
    frames = []
    for table in tables:
        wide = table.pivot(index="run", columns="task", values="accuracy")
        frames.append(table[table["task"] == ALL].set_index("run").join(wide[list(tasks)]))

    def texts(row: pd.Series) -> list[str]:
        return [*_setting(row), *(share_text(row[task]) for task in tasks)]

    counts = tables[0][tables[0]["run"] == 0].set_index("task")["items"]
    return Table(
        "accuracy_tasks",
        "Right answers by task",
        "Share of the items of each task that a method has right.",
        "Method",
        [("", 2 + len(tasks))],
        ["γ", "T", *(f"{task} ({counts[task]})" for task in tasks)],
        _sections(answered, frames, texts),
        _together(answered, [table[["method", "draft_length", "temperature", "task", "items",
                                    "right", "accuracy", "accuracy_ci_low", "accuracy_ci_high"]]
                             for table in tables]),
    )  # fmt: skip


def differing_table(answered: Sequence[Answered]) -> Table | None:
    """The answers that differ from the target's own; None where none does.

    Of temperature 0 only: drawn answers differ in any case.
    """
    frames = [
        found[found["temperature"] == 0].drop(columns="exact") for found in map(differing, answered)
    ]
    if not sum(map(len, frames)):
        return None

    def verdict(right: bool) -> str:
        return "right" if right else "wrong"

    sections = []
    for one, frame in zip(answered, frames, strict=True):
        order = (frame["alone_correct"] == frame["correct"]).sort_values(kind="stable").index
        rows = [
            (
                f"{row['task']}, {row['item_id']}",
                [
                    Cell(f"{row['method']}, γ = {row['draft_length']}"),
                    Cell(f"{verdict(row['alone_correct'])}, {verdict(row['correct'])}"),
                    Cell(number_text(row["gap"], 4)),
                    Cell(_cut(row["alone"])),
                    Cell(_cut(row["answer"])),
                ],
            )
            for row in frame.loc[order[:SHOWN]].to_dict("records")
        ]
        sections.append(Section(one.target if len(answered) > 1 else "", rows))
    return Table(
        "accuracy_differing",
        "Answers that differ",
        "Answers of methods at temperature 0 that differ from the target's own, those first of "
        "which one is right and the other wrong. Gap: between the target's two largest logits "
        "where they part.",
        "Item",
        [("", 5)],
        ["method", "alone, method", "gap", "the target alone", "the method"],
        sections,
        _together(answered, frames),
        [f"{sum(map(len, frames))} answers differ; the CSV file has all of them in full."],
    )


def _setting(row: pd.Series) -> list[str]:
    drafted = row["drafter"] != "none"
    return [str(row["draft_length"]) if drafted else UNDEFINED, f"{row['temperature']:g}"]


def _sections(
    answered: Sequence[Answered],
    frames: Sequence[pd.DataFrame],
    texts: Callable[[pd.Series], list[str]],
) -> list[Section]:
    return [
        Section(
            one.target if len(answered) > 1 else "",
            [(row["method"], [Cell(text) for text in texts(row)]) for _, row in frame.iterrows()],
        )
        for one, frame in zip(answered, frames, strict=True)
    ]


def _together(answered: Sequence[Answered], frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    named = [
        frame.assign(target=one.target)[["target", *frame.columns]]
        for one, frame in zip(answered, frames, strict=True)
    ]
    return pd.concat(named, ignore_index=True)


def _cut(text: str) -> str:
    """Return the beginning of an answer, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= LETTERS else f"{line[:LETTERS].rstrip()} …"

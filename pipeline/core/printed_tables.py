"""The tables that a command prints: a row for each target and rule, or method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.report.text import UNDEFINED, at_least, few_notes
from analysis.statistics.estimate import censored_column, interval_columns
from pipeline.core.files import write_whole
from pipeline.core.stage import Artifact, Json, Task
from pipeline.core.store import relative


def summary_rows(tasks: list[Task], artifacts: list[Artifact]) -> list[Json]:
    """Return the summary rows of artifacts, as their stages make them."""
    pairs = zip(tasks, artifacts, strict=True)
    return [row for task, artifact in pairs for row in task.stage.summary(task, artifact)]


def write_rows(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Write rows to a CSV file; print its name, or why it can't be written."""
    import pandas as pd

    from analysis.report.table import csv_text

    failure = ""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, csv_text(pd.DataFrame(rows), digits=None).encode())
    except OSError as error:
        failure = f" can't be written ({error.strerror})"
    print(f"all rows: {relative(file)}{failure}", flush=True)


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as a table without empty columns, and explain its columns.

    pandas is not used, because importing it is slow.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    if "method" in names:  # a method's name contains its rule
        names.pop("rule", None)
    # columns that are printed in the cells of another one
    merged = {end for name in names for end in (*interval_columns(name), censored_column(name))}
    columns = []
    for name in names:
        values = [row.get(name) for row in rows]
        if name not in merged and any(value is not None and value == value for value in values):
            columns.append([name, *(_cell(name, row) for row in rows)])
    widths = [max(map(len, column)) for column in columns]
    for line in zip(*columns, strict=True):
        print("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))
    shown = [column[0] for column in columns]
    if {"empty", "inexact"} <= set(shown):
        print(
            "mean, median, p25 and p5 of the certificates, in nats; empty: share of steps where "
            "nothing can be rejected (the ceiling stands for them), inexact: known as an interval, "
            "whose lower end counts"
        )
    if any(interval_columns(name)[0] in names for name in shown):
        print("In brackets: intervals over prompts (statistics.confidence).")
    for note in few_notes(row["prompts"] for row in rows if "prompts" in row):
        print(note)


def _cell(name: str, row: Mapping[str, Any]) -> str:
    """Return a value as text with its interval, marked if it is a lower bound."""
    value = row.get(name)
    if not isinstance(value, float):
        return UNDEFINED if value is None else str(value)
    text = UNDEFINED if math.isnan(value) else f"{value:.4g}"
    low, high = (row.get(end) for end in interval_columns(name))
    interval = f" [{low:.4g}, {high:.4g}]" if low is not None and low < high else ""
    return at_least(text, bool(row.get(censored_column(name)))) + interval

"""Multirun: each job leaves its rows or its reason; the sweep ends with one table and one plot.

Files of a sweep: ``<n>/point.json`` a job, ``sweep.csv``, ``sweep.parquet``, ``sweep.pdf`` and
``sweep.png`` for all of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from analysis.printing import length_text, mark_of, upper_end
from pipeline.artifacts import Artifact
from pipeline.runner import shown
from pipeline.stages import Node
from pipeline.summaries import COUNTED, summarise

POINT = "point.json"


def write_point(
    directory: Path, overrides: list[str], nodes: list[Node], artifacts: list[Artifact]
) -> None:
    """Write the rows of a finished job."""
    _write(directory, {"overrides": overrides, "rows": rows_of(nodes, artifacts)})


def rows_of(nodes: list[Node], artifacts: list[Artifact]) -> list[dict[str, Any]]:
    """Return the rows of a table that sums up artifacts."""
    pairs = zip(nodes, artifacts, strict=True)
    return [row for node, artifact in pairs for row in summarise(node, artifact)]


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print rows as a table, both ends of a statistic in one cell, without empty columns."""
    import pandas as pd

    from analysis.notes import few_notes

    table = in_ranges(pd.DataFrame(rows).dropna(axis="columns", how="all"))
    print(
        table.drop(columns=[*COUNTED], errors="ignore").to_string(index=False, float_format=_number)
    )
    if set(COUNTED) <= set(table):
        for note in few_notes(table["prompts"]):
            print(note)
    if {"empty", "inexact"} <= set(table):
        print(
            "mean, median, p25 and p5 of the certificates in nats; empty: share of steps where "
            "nothing can be rejected (the ceiling stands for them), inexact: known as an interval"
        )


def in_ranges(table: Any) -> Any:
    """Return a table without upper ends and marks of lower bounds: its cells say both."""
    shown = table.copy()
    for column in [name for name in table if {upper_end(name), mark_of(name)} & set(table)]:
        if column not in shown:  # a mark, which has an upper end as well
            continue
        ends = shown.pop(upper_end(column)) if upper_end(column) in shown else shown[column]
        marks = [mark_of(column), upper_end(mark_of(column))]
        censored = [shown.pop(mark) if mark in shown else [False] * len(shown) for mark in marks]
        if not shown[column].equals(ends) or any(map(any, censored)):
            cells = zip(shown[column], ends, zip(*censored, strict=True), strict=True)
            shown[column] = [
                length_text(_number(low), _number(high), marked) for low, high, marked in cells
            ]
    return shown


def _number(value: float) -> str:
    return f"{value:.4g}"


def write_failure(directory: Path, overrides: list[str], reason: str) -> None:
    """Write why a job failed."""
    _write(directory, {"overrides": overrides, "failed": reason})


def _write(directory: Path, point: dict[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    beside = directory / f"{POINT}.tmp"
    beside.write_text(json.dumps(point, indent=1) + "\n")
    beside.replace(directory / POINT)


def collect(directory: Path) -> int:
    """Print and write the table and the plot of a sweep; list and count its failed points."""
    points = sorted(directory.glob(f"*/{POINT}"), key=lambda path: int(path.parent.name))
    if not points:
        return 0  # Hydra refused the command line and said why
    read = [json.loads(path.read_text()) for path in points]
    swept = swept_keys([point["overrides"] for point in read])
    rows: list[dict[str, Any]] = []
    for point in read:
        values = dict(override.split("=", 1) for override in point["overrides"])
        at = {key: _parsed(values.get(key)) for key in swept}
        rows += [{**at, **row} for row in point.get("rows", [])]
        if "failed" in point:
            where = ", ".join(f"{key}={value}" for key, value in at.items())
            print(f"failed: {where}: {point['failed']}")
    if rows:
        _publish(directory, swept, rows)
    return sum("failed" in point for point in read)


def swept_keys(overrides: list[list[str]]) -> list[str]:
    """Return the keys whose values differ between the jobs, in the order they were given."""
    values: dict[str, set[str]] = {}
    for job in overrides:
        for override in job:
            key, _, value = override.partition("=")
            values.setdefault(key.lstrip("+"), set()).add(value)
    changed = [key for key, found in values.items() if len(found) > 1]
    return changed or list(values)[-1:]


def _parsed(text: str | None) -> Any:
    for kind in (int, float):
        try:
            return kind(text)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            continue
    return text


def _publish(directory: Path, swept: list[str], rows: list[dict[str, Any]]) -> None:
    import pandas as pd

    from analysis.style import render
    from analysis.sweep_figure import sweep_figure

    table = pd.DataFrame(rows)
    table.to_csv(directory / "sweep.csv", index=False)
    table.to_parquet(directory / "sweep.parquet", index=False)
    print_table(rows)
    figure = sweep_figure(table, swept)
    if figure is not None:
        for kind in ("pdf", "png"):
            (directory / f"sweep.{kind}").write_bytes(render(figure, kind))
    print(
        f"sweep: {shown(directory)}/sweep.csv, .parquet"
        + ("" if figure is None else ", .pdf, .png"),
        flush=True,
    )

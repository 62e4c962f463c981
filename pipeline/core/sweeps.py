"""Multirun: each job leaves its rows or its reason; the sweep ends with one table and one plot.

Files of a sweep: ``<n>/point.json`` a job; for all of them a table (.csv, .parquet) and a plot
(.pdf, .png), named after the stage and what was swept: ``certificates_by_criteria.t.csv``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from analysis.report.text import UNDEFINED, at_least, few_notes
from analysis.statistics.estimate import censored_column, interval_columns
from pipeline.core.errors import terminal
from pipeline.core.files import slug
from pipeline.core.stage import Artifact, Json, Task
from pipeline.core.store import relative

POINT = "point.json"
LONGEST = 100  # characters of a file's name that say what was swept


def write_point(directory: Path, overrides: list[str], **result: Any) -> None:
    """Write the result of a job: its stage and rows, or the reason why it failed."""
    directory.mkdir(parents=True, exist_ok=True)
    beside = directory / f"{POINT}.tmp"
    beside.write_text(json.dumps({"overrides": overrides, **result}, indent=1) + "\n")
    beside.replace(directory / POINT)


class Sweep(Callback):
    """What Hydra calls before and after a sweep: no point of an earlier one, and the table."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Remove the results of an earlier sweep in the same directory."""
        for point in _points(Path(config.hydra.sweep.dir)):
            point.unlink()

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Print and write the table and the plot; SystemExit with 1 where a point has failed."""
        with terminal():
            if collect(Path(config.hydra.sweep.dir)):
                raise SystemExit(1)


def _points(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"[0-9]*/{POINT}"), key=lambda path: int(path.parent.name))


def summary_rows(tasks: list[Task], artifacts: list[Artifact]) -> list[Json]:
    """Return the rows of a table that sums up artifacts."""
    pairs = zip(tasks, artifacts, strict=True)
    return [row for task, artifact in pairs for row in task.stage.summary(task, artifact)]


def write_rows(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Write all rows of a table to a CSV file, and print its name, or why it can't be written."""
    import pandas as pd

    from analysis.report.table import csv_text

    said = ""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(csv_text(pd.DataFrame(rows), digits=None))
    except OSError as error:
        said = f" can't be written ({error.strerror})"
    print(f"all rows: {relative(file)}{said}", flush=True)


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as a table, without empty columns, without pandas, which is slow to import."""
    names = dict.fromkeys(name for row in rows for name in row)
    if "method" in names:  # which names the rule as well
        names.pop("rule", None)
    beside = {end for name in names for end in (*interval_columns(name), censored_column(name))}
    columns = []
    for name in names:
        values = [row.get(name) for row in rows]
        if name not in beside and any(value is not None and value == value for value in values):
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
    """Return a value as text: marked where it is a lower bound, with its interval if it has one."""
    value = row.get(name)
    if not isinstance(value, float):
        return UNDEFINED if value is None else str(value)
    text = UNDEFINED if math.isnan(value) else f"{value:.4g}"
    low, high = (row.get(end) for end in interval_columns(name))
    interval = f" [{low:.4g}, {high:.4g}]" if low is not None and low < high else ""
    return at_least(text, bool(row.get(censored_column(name)))) + interval


def collect(directory: Path) -> int:
    """Print and write the table and the plot of a sweep; list and count its failed points."""
    import pandas as pd

    points = [json.loads(path.read_text()) for path in _points(directory)]
    jobs = pd.DataFrame([values_of(point["overrides"]) for point in points], dtype=str).fillna("")
    keys = list(map(str, jobs))
    swept = [key for key in keys if len(set(jobs[key])) > 1] or keys[-1:]
    failed = [at for at, point in enumerate(points) if "failed" in point]
    for at in failed:
        where = ", ".join(f"{key}={jobs[key][at]}" for key in swept)
        print(f"failed: {where}: {points[at]['failed']}")
    for key in swept:
        with suppress(ValueError):  # not all are numbers
            jobs[key] = pd.to_numeric(jobs[key])
    rows = [
        place | row | place
        for place, point in zip(jobs[swept].to_dict("records"), points, strict=True)
        for row in point.get("rows", [])
    ]
    if rows:
        stage = next(point["stage"] for point in points if "stage" in point)
        _publish(directory, slug(f"{stage}_by_{'_'.join(swept)}"[:LONGEST]), swept, rows)
    return len(failed)


def values_of(overrides: Sequence[str]) -> dict[str, str]:
    r"""Return the values of a job's overrides by key, as texts; a key taken away has none.

    >>> values_of(["+a.b='x y'", "c=C\\:1", "~d", "e=null"])
    {'a.b': 'x y', 'c': 'C:1', 'd': '', 'e': 'null'}
    """
    pairs = (override.partition("=") for override in overrides)
    # Hydra puts a backslash before a colon
    return {key.lstrip("+~"): value.strip("'\"").replace("\\:", ":") for key, _, value in pairs}


def _publish(directory: Path, name: str, swept: list[str], rows: list[Json]) -> None:
    import pandas as pd

    from analysis.report.style import render
    from analysis.report.sweep_figure import sweep_figure
    from analysis.report.table import csv_text

    print_table(rows)
    table, files = pd.DataFrame(rows), ".csv, .parquet"
    (directory / f"{name}.csv").write_text(csv_text(table, digits=None))
    table.to_parquet(directory / f"{name}.parquet", index=False)
    figure = sweep_figure(table, swept)
    if figure is not None:
        files += ", .pdf, .png"
        for kind in ("pdf", "png"):
            (directory / f"{name}.{kind}").write_bytes(render(figure, kind))
    print(f"sweep: {relative(directory)}/{name}{files}", flush=True)

"""Multirun: each job leaves its rows or its reason; the sweep ends with one table and one plot.

Files of a sweep: ``<n>/point.json`` a job; for all of them a table (.csv, .parquet) and a plot
(.pdf, .png), named after the stage and what was swept: ``certificates_by_criteria.t.csv``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from analysis.report.text import UNDEFINED, at_least, few_notes, limits, mark_of
from pipeline.errors import terminal
from pipeline.files import slug
from pipeline.stage import Json, Task
from pipeline.store import Artifact, relative

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
        """Print and write the table and the plot.

        Raises:
            SystemExit: with status 1 where a point has failed.
        """
        with terminal():
            if collect(Path(config.hydra.sweep.dir)):
                raise SystemExit(1)


def _points(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"[0-9]*/{POINT}"), key=lambda path: int(path.parent.name))


def summary_rows(tasks: list[Task], artifacts: list[Artifact]) -> list[Json]:
    """Return the rows of a table that sums up artifacts."""
    pairs = zip(tasks, artifacts, strict=True)
    return [row for task, artifact in pairs for row in task.stage.summary(task, artifact)]


def print_single(tasks: list[Task], artifacts: list[Artifact], place: Path) -> None:
    """Print the rows of a single run of a stage whose rows are printed.

    Where these are not all, all are written to a file, which is named.

    Args:
        tasks: of one stage.
        artifacts: of these tasks.
        place: the file, without suffix.
    """
    stage = tasks[0].stage
    if not stage.printed:
        return
    every = [
        summary_rows([task], [artifact]) for task, artifact in zip(tasks, artifacts, strict=True)
    ]
    rows = [row for part in every for row in part]
    chosen, which = rows, ""
    if stage.highlights is not None:
        chosen = []
        for task, part in zip(tasks, every, strict=True):
            highlighted, which = stage.highlights(task, part)
            chosen += highlighted
    print_table(chosen)
    if len(chosen) == len(rows):
        return
    print(f"{len(chosen)} of {len(rows)} rows: {which}.")
    write_rows(rows, place.with_name(f"{place.name}.csv"))


def write_rows(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Write all rows of a table to a CSV file, and print its name, or why it can't be written."""
    import pandas as pd

    from analysis.report.table import without_formulas

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        without_formulas(pd.DataFrame(rows)).to_csv(file, index=False)
        print(f"all rows: {relative(file)}", flush=True)
    except OSError as error:
        print(f"all rows: {relative(file)} can't be written ({error.strerror})", flush=True)


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as a table, without empty columns: a statistic with its ends in one cell.

    Without pandas, whose import takes longer than many a table is worth.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    if "method" in names:  # which names the rule as well
        names.pop("rule", None)
    columns = {name: [row.get(name) for row in rows] for name in names}
    shown = in_cells({
        name: values for name, values in columns.items() if not all(map(_missing, values))
    })  # fmt: skip
    texts = [[name, *map(_cell, values)] for name, values in shown.items()]
    widths = [max(map(len, column)) for column in texts]
    for line in zip(*texts, strict=True):
        print("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))
    if {"empty", "inexact"} <= set(shown):
        print(
            "mean, median, p25 and p5 of the certificates, in nats; empty: share of steps where "
            "nothing can be rejected (the ceiling stands for them), inexact: known as an interval, "
            "whose lower end counts"
        )
    if any(limits(name)[0] in names for name in names):
        print("In brackets: intervals over prompts.")
    for note in few_notes(row["prompts"] for row in rows if "prompts" in row):
        print(note)


def in_cells(columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Return columns with statistics as texts: marks of lower bounds, intervals.

    A column stays numbers where there are none.
    """
    shown = dict(columns)
    for column in list(shown):
        if column not in shown:  # a mark or a limit of one before
            continue
        texts, values = None, shown[column]
        censored = shown.pop(mark_of(column), [])
        if any(censored):
            cells = zip(values, censored, strict=True)
            texts = [at_least(_cell(value), bool(marked)) for value, marked in cells]
        low, high = limits(column)
        if {low, high} <= set(shown):
            texts = texts or [_cell(value) for value in values]
            sides = zip(texts, shown.pop(low), shown.pop(high), strict=True)
            texts = [
                f"{text} [{_number(a)}, {_number(b)}]" if not _missing(a) and a < b else text
                for text, a, b in sides
            ]
        if texts is not None:
            shown[column] = texts
    return shown


def _missing(value: Any) -> bool:
    return value is None or value != value


def _cell(value: Any) -> str:
    if value is None or isinstance(value, float):
        return UNDEFINED if value is None else _number(value)
    return str(value)


def _number(value: float) -> str:
    return UNDEFINED if math.isnan(value) else f"{value:.4g}"


def collect(directory: Path) -> int:
    """Print and write the table and the plot of a sweep; list and count its failed points."""
    points = [json.loads(path.read_text()) for path in _points(directory)]
    jobs = [values_of(point["overrides"]) for point in points]
    keys = list(dict.fromkeys(key for job in jobs for key in job))
    swept = [key for key in keys if len({job.get(key) for job in jobs}) > 1] or keys[-1:]
    columns = {key: _parsed([job.get(key, "") for job in jobs]) for key in swept}
    rows: list[Json] = []
    for at, point in enumerate(points):
        place = {key: values[at] for key, values in columns.items()}
        rows += [{**place, **row, **place} for row in point.get("rows", [])]
        if "failed" in point:
            where = ", ".join(f"{key}={jobs[at].get(key, '')}" for key in swept)
            print(f"failed: {where}: {point['failed']}")
    if rows:
        stage = next(point["stage"] for point in points if "stage" in point)
        _publish(directory, slug(f"{stage}_by_{'_'.join(swept)}"[:LONGEST]), swept, rows)
    return sum("failed" in point for point in points)


def values_of(overrides: Sequence[str]) -> dict[str, str]:
    r"""Return the values of a job's overrides by key, as texts; a key taken away has none.

    >>> values_of(["+a.b='x y'", "c=C\\:1", "~d", "e=null"])
    {'a.b': 'x y', 'c': 'C:1', 'd': '', 'e': 'null'}
    """
    pairs = (override.partition("=") for override in overrides)
    # Hydra puts a backslash before a colon
    return {key.lstrip("+~"): value.strip("'\"").replace("\\:", ":") for key, _, value in pairs}


def _parsed(texts: Sequence[str]) -> list[Any]:
    """Return the values of a key as numbers if all are, else as texts."""
    for kind in (int, float):
        try:
            return [kind(text) for text in texts]
        except ValueError:
            continue
    return list(texts)


def _publish(directory: Path, name: str, swept: list[str], rows: list[dict[str, Any]]) -> None:
    import pandas as pd

    from analysis.report.style import render
    from analysis.report.sweep_figure import sweep_figure
    from analysis.report.table import without_formulas

    table = pd.DataFrame(rows)
    without_formulas(table).to_csv(directory / f"{name}.csv", index=False)
    table.to_parquet(directory / f"{name}.parquet", index=False)
    print_table(rows)
    figure = sweep_figure(table, swept)
    if figure is not None:
        for kind in ("pdf", "png"):
            (directory / f"{name}.{kind}").write_bytes(render(figure, kind))
    print(
        f"sweep: {relative(directory)}/{name}.csv, .parquet"
        + ("" if figure is None else ", .pdf, .png"),
        flush=True,
    )

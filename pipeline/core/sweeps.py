"""Multirun: each job leaves its rows or its reason; the sweep ends with one table and one plot.

So does a single run of rules with a list of values, ``criteria.t=[0.01,0.1]``.

Files of a sweep: ``<n>/point.json`` a job; for all of them a table (.csv, .parquet) and a plot
(.pdf, .png), named after the stage and what was swept: ``certificates_by_criteria.t.csv``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from analysis.report.text import UNDEFINED, at_least, few_notes
from analysis.rule_base import Rule
from analysis.statistics.estimate import censored_column, interval_columns
from pipeline.core.errors import DamagedError, PipelineError
from pipeline.core.files import read_json, slug, write_json, write_whole
from pipeline.core.stage import Artifact, Json, Task
from pipeline.core.store import relative
from pipeline.core.terminal import terminal

POINT = "point.json"
LISTED = re.compile(r"\+{0,2}(criteria\.(?:\w+\.)*(\w+))=\[.+,.+\]")  # a key with several values


def write_point(directory: Path, overrides: list[str], **result: Any) -> None:
    """Write the result of a job: its stage and rows, or the reason why it failed."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / POINT, {"overrides": overrides, **result})


class Sweep(Callback):
    """What Hydra calls before and after a sweep: no point of an earlier one, and the table."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Remove the results of an earlier sweep in the same directory; nothing behind a link.

        Raises:
            SystemExit: the directory is not a whole path, or a folder that a job would write to is
                a link.
        """
        with terminal():
            place = str(config.hydra.sweep.dir)
            if place.startswith("~"):
                raise PipelineError(f"hydra.sweep.dir={place}: give the whole path, without ~")
            directory = Path(place)
            for folder in directory.glob("[0-9]*"):
                if folder.is_symlink():
                    raise PipelineError(
                        f"hydra.sweep.dir={directory}: {folder} is a link, and a job of the sweep "
                        "would write there: remove the link, or give another directory"
                    )
            for point in _points(directory):
                if _of_a_sweep(point):
                    point.unlink()

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Print and write the table and the plot; SystemExit with 1 where a point has failed."""
        with terminal():
            directory = Path(config.hydra.sweep.dir)
            if not _points(directory):
                words = " ".join(words_of(config.hydra.overrides.task))
                raise PipelineError(
                    f"{words}: the sweep has no point in {directory}: give every key a value, and "
                    "leave hydra.sweep.subdir as it is"
                )
            if collect(directory):
                raise SystemExit(1)


def _of_a_sweep(point: Path) -> bool:
    """Whether a file was written by `write_point`: another of this name is the user's."""
    try:
        return "overrides" in json.loads(point.read_bytes())
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def words_of(overrides: Any) -> list[str]:
    """Return overrides as they were given: OmegaConf resolves an interpolation in one."""
    words: Any = OmegaConf.to_container(overrides, resolve=False)
    return [str(word) for word in words]


def swept(overrides: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return the overrides of a point that were swept: the command line has them with all values.

    >>> swept(["~note=null", "criteria=additive", "criteria.t=0.1"],
    ...       ["-m", "~note", "criteria=additive", "criteria.t=0.1,0.2"])
    ['criteria.t=0.1']
    """
    given = {word.replace(" ", "") for word in words}
    given |= {f"{word}=null" for word in given if word.startswith("~")}  # as Hydra writes it
    return [override for override in overrides if override.replace(" ", "") not in given]


def _points(directory: Path) -> list[Path]:
    found = [path for path in directory.glob(f"*/{POINT}") if path.parent.name.isdecimal()]
    return sorted(found, key=lambda path: int(path.parent.name))


def _read_point(path: Path) -> Json:
    """Return the result of a job; a damaged file counts as a failed job."""
    try:
        return read_json(path)
    except DamagedError as damage:
        return {"overrides": [], "failed": f"{damage.reason}: run the sweep again"}


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
        write_whole(file, csv_text(pd.DataFrame(rows), digits=None).encode())
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
    points = [_read_point(path) for path in _points(directory)]
    jobs = [values_of(point["overrides"]) for point in points]
    keys = list(dict.fromkeys(key for job in jobs for key in job))
    varied = [key for key in keys if len({job.get(key, "") for job in jobs if job}) > 1]
    failed = [at for at, point in enumerate(points) if "failed" in point]
    for at in failed:
        job = jobs[at]
        reason = points[at]["failed"]
        where = ", ".join(f"{key}={job.get(key, '')}" for key in varied if job)
        print(f"failed: {where}: {reason}" if where else f"failed: {reason}")
    swept = varied or keys[-1:]
    good = [(job, point) for job, point in zip(jobs, points, strict=True) if "failed" not in point]
    places = _numbered([job for job, _ in good], swept)
    rows = [
        place | row | place
        for place, (_, point) in zip(places, good, strict=True)
        for row in point["rows"]
    ]
    if rows:
        print_table(rows)
        stage = good[0][1]["stage"]
        _publish(directory, slug(f"{stage}_by_{'_'.join(swept)}" if swept else stage), swept, rows)
    return len(failed)


def publish_listed(
    words: Sequence[str], stage: str, rules: Sequence[Rule], rows: Sequence[Json], outputs: Path
) -> None:
    """Write the table and the plot of a single run in which a rule's parameter has several values.

    `words` are the command line. The rows of rules without such a parameter are left out.
    """
    matches = [LISTED.fullmatch(word.replace(" ", "")) for word in words]
    keys = {match[1]: match[2] for match in matches if match is not None}
    settings = {rule.label: rule.parameters for rule in rules}
    swept = []
    for row in rows:
        given = settings.get(row.get("rule", ""), {})
        if keys and set(keys.values()) <= given.keys():
            swept.append({key: given[name] for key, name in keys.items()} | row)
    if swept:
        place = outputs / "sweeps" / f"{datetime.now():%Y-%m-%d_%H-%M-%S-%f}"
        _publish(place, slug(f"{stage}_by_{'_'.join(keys)}"), list(keys), swept)


def _numbered(jobs: Sequence[Mapping[str, str]], swept: Sequence[str]) -> list[Json]:
    """Return the values of the swept keys of each job: as numbers if all of a key's are."""
    import pandas as pd

    places: list[Json] = [{} for _ in jobs]
    for key in swept:
        values: Any = pd.Series([job.get(key, "") for job in jobs], dtype=str)
        with suppress(ValueError):  # not all are numbers
            values = pd.to_numeric(values)
        for place, value in zip(places, values.tolist(), strict=True):
            place[key] = value
    return places


def values_of(overrides: Sequence[str]) -> dict[str, str]:
    r"""Return the values of a job's overrides by key, as texts; that of a removed key is empty.

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

    table = pd.DataFrame(rows)
    files = ".csv, .parquet"
    directory.mkdir(parents=True, exist_ok=True)
    write_whole(directory / f"{name}.csv", csv_text(table, digits=None).encode())
    write_whole(directory / f"{name}.parquet", table.to_parquet(index=False))
    figure = sweep_figure(table, swept)
    if figure is not None:
        files += ", .pdf, .png"
        for kind in ("pdf", "png"):
            write_whole(directory / f"{name}.{kind}", render(figure, kind))
    print(f"sweep: {relative(directory)}/{name}{files}", flush=True)

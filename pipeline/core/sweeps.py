"""Sweeps: the results of a Hydra multirun as one table and one plot.

Each job of a multirun, a point, writes ``<n>/point.json``: the rows of its printed table, or why it
failed. After the last one they become a table (.csv, .parquet) and a plot (.pdf, .png), named after
the stage and the swept keys: ``certificates_by_criteria.t.csv``. A single run with a list of values
for a rule's parameter, ``criteria.t=[0.01,0.1]``, writes the same table and plot.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from analysis.rule_base import Rule
from pipeline.core.commands import run_as_command
from pipeline.core.errors import DamagedError, PipelineError
from pipeline.core.files import read_json, slug, write_json, write_whole
from pipeline.core.printed_tables import print_table
from pipeline.core.stage import Json
from pipeline.core.store import relative

POINT = "point.json"
# a rule's parameter with several values
LIST_VALUE = re.compile(r"\+{0,2}(criteria\.(?:\w+\.)*(\w+))=\[.+,.+\]")


def write_point(directory: Path, overrides: list[str], **result: Any) -> None:
    """Write the result of a job: its `stage` and `rows`, or why it `failed`."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / POINT, {"overrides": overrides, **result})


class Sweep(Callback):
    """Hydra's callback: removes earlier results before a sweep and writes its table after it."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Remove the points of an earlier sweep in the same directory.

        Raises:
            SystemExit: the directory begins with ~, or a folder that a job would write to is a
                symbolic link.
        """
        with run_as_command():
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
        """Print and write the table and the plot; SystemExit with 1 if a point has failed."""
        with run_as_command():
            directory = Path(config.hydra.sweep.dir)
            if not _points(directory):
                overrides = " ".join(raw_overrides(config.hydra.overrides.task))
                raise PipelineError(
                    f"{overrides}: the sweep has no point in {directory}: give every key a value, "
                    "and leave hydra.sweep.subdir as it is"
                )
            if collect(directory):
                raise SystemExit(1)


def _of_a_sweep(point: Path) -> bool:
    """Whether `write_point` wrote a file; any other file of this name is the user's."""
    try:
        return "overrides" in json.loads(point.read_bytes())
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def raw_overrides(overrides: Any) -> list[str]:
    """Return overrides as they were typed, with their interpolations unresolved."""
    raw: Any = OmegaConf.to_container(overrides, resolve=False)
    return [str(override) for override in raw]


def swept(overrides: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return the swept overrides of a point: those that `words`, the command line, does not have.

    There a swept key has several values.

    >>> swept(["~note=null", "criteria=additive", "criteria.t=0.1"],
    ...       ["-m", "~note", "criteria=additive", "criteria.t=0.1,0.2"])
    ['criteria.t=0.1']
    """
    typed = {word.replace(" ", "") for word in words}
    typed |= {f"{word}=null" for word in typed if word.startswith("~")}  # as Hydra writes them
    return [override for override in overrides if override.replace(" ", "") not in typed]


def _points(directory: Path) -> list[Path]:
    paths = [path for path in directory.glob(f"*/{POINT}") if path.parent.name.isdecimal()]
    return sorted(paths, key=lambda path: int(path.parent.name))


def _read_point(path: Path) -> Json:
    """Read the result of a job; a damaged file counts as a failed job."""
    try:
        return read_json(path)
    except DamagedError as damage:
        return {"overrides": [], "failed": f"{damage.reason}: run the sweep again"}


def collect(directory: Path) -> int:
    """Print and write the table and the plot of a sweep; print and count its failed points."""
    points = [_read_point(path) for path in _points(directory)]
    jobs = [values_of(point["overrides"]) for point in points]
    keys = list(dict.fromkeys(key for job in jobs for key in job))
    varied = [key for key in keys if len({job.get(key, "") for job in jobs if job}) > 1]
    swept_keys = varied or keys[-1:]
    good: list[tuple[dict[str, str], Json]] = []
    for job, point in zip(jobs, points, strict=True):
        if "failed" not in point:
            good.append((job, point))
            continue
        where = ", ".join(f"{key}={job.get(key, '')}" for key in varied if job)
        print(f"failed: {where}: {point['failed']}" if where else f"failed: {point['failed']}")
    rows: list[Json] = []
    swept_values = _swept_values([job for job, _ in good], swept_keys)
    for values, (_, point) in zip(swept_values, good, strict=True):
        # the swept keys are the first columns, and replace columns of the same name
        rows += [values | row | values for row in point["rows"]]
    if rows:
        print_table(rows)
        stage = good[0][1]["stage"]
        name = f"{stage}_by_{'_'.join(swept_keys)}" if swept_keys else stage
        _publish(directory, slug(name), swept_keys, rows)
    return len(points) - len(good)


def publish_list_values(
    words: Sequence[str], stage: str, rules: Sequence[Rule], rows: Sequence[Json], outputs: Path
) -> None:
    """Write the table and the plot of a single run with a list of values for a rule's parameter.

    `words` are the command line. Rows of rules without the parameter are left out.
    """
    matches = [LIST_VALUE.fullmatch(word.replace(" ", "")) for word in words]
    keys = {match[1]: match[2] for match in matches if match is not None}
    by_label = {rule.label: rule.parameters for rule in rules}
    swept_rows = []
    for row in rows:
        parameters = by_label.get(row.get("rule", ""), {})
        if keys and set(keys.values()) <= parameters.keys():
            swept_rows.append({key: parameters[name] for key, name in keys.items()} | row)
    if swept_rows:
        directory = outputs / "sweeps" / f"{datetime.now():%Y-%m-%d_%H-%M-%S-%f}"
        _publish(directory, slug(f"{stage}_by_{'_'.join(keys)}"), list(keys), swept_rows)


def _swept_values(jobs: Sequence[Mapping[str, str]], keys: Sequence[str]) -> list[Json]:
    """Return the values of swept keys in each job; numbers if all values of a key are numbers."""
    import pandas as pd

    by_job: list[Json] = [{} for _ in jobs]
    for key in keys:
        column: Any = pd.Series([job.get(key, "") for job in jobs], dtype=str)
        with suppress(ValueError):  # not all are numbers
            column = pd.to_numeric(column)
        for values, value in zip(by_job, column.tolist(), strict=True):
            values[key] = value
    return by_job


def values_of(overrides: Sequence[str]) -> dict[str, str]:
    r"""Return the values of a job's overrides by key, as text; a removed key has an empty value.

    >>> values_of(["+a.b='x y'", "c=C\\:1", "~d", "e=null"])
    {'a.b': 'x y', 'c': 'C:1', 'd': '', 'e': 'null'}
    """
    pairs = (override.partition("=") for override in overrides)
    # Hydra escapes colons
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

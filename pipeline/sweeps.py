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

from analysis.report.text import UNDEFINED, at_least, few_notes, limits, mark_of, share_text
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


def summary_rows(tasks: list[Task], artifacts: list[Artifact]) -> list[Json]:
    """Return the rows of a table that sums up artifacts."""
    pairs = zip(tasks, artifacts, strict=True)
    return [row for task, artifact in pairs for row in task.stage.summary(task, artifact)]


RULE_COLUMNS = (  # of a sweep over rules in stage decoding, by the stage that has them
    ("acceptance", ("accepted", "certified")),
    ("decoding", ("method", "draft_length", "temperature", "tokens_per_call", "speedup")),
    ("decoding", ("nats_given_up",)),
    ("accuracy", ("items", "accuracy", "difference")),
)


def rule_rows(rules: Sequence[str], summaries: Mapping[str, Sequence[Json]]) -> list[Json]:
    """Return one row for each target, rule and method: shares, speed, cost and right answers.

    Args:
        rules: labels of the rules that are swept.
        summaries: of the stages of RULE_COLUMNS, their summary rows; of accuracy maybe none.
    """
    rows = []
    for decoded in summaries["decoding"]:
        if decoded["rule"] not in rules:
            continue
        row = {key: decoded[key] for key in ("target", "rule", "prompts")}
        for stage, names in RULE_COLUMNS:
            for source in summaries[stage]:
                keys = {"target", "rule", "method", "draft_length", "temperature"} & source.keys()
                if all(source[key] == decoded[key] for key in keys):
                    row |= {
                        column: source[column]
                        for name in names
                        for column in (name, *limits(name))
                        if column in source
                    }
        rows.append(row)
    return rows


def print_single(tasks: list[Task], artifacts: list[Artifact], place: Path) -> None:
    """Print the rows of a single run; where these are not all, write all to a file and name it.

    Args:
        tasks: of one stage.
        artifacts: of these tasks.
        place: the file, without suffix.
    """
    highlights = tasks[0].stage.highlights
    every = [
        summary_rows([task], [artifact]) for task, artifact in zip(tasks, artifacts, strict=True)
    ]
    rows = [row for part in every for row in part]
    chosen, which = rows, ""
    if highlights is not None:
        chosen = []
        for task, part in zip(tasks, every, strict=True):
            highlighted, which = highlights(task, part)
            chosen += highlighted
    print_table(chosen)
    if len(chosen) == len(rows):
        return
    print(f"{len(chosen)} of {len(rows)} rows: {which}.")
    write_rows(rows, place.with_name(f"{place.name}.csv"))


def write_rows(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Write all rows of a table to a CSV file, and print its name, or why it can't be written."""
    import pandas as pd

    from analysis.report.escape import without_formulas

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        without_formulas(pd.DataFrame(rows)).to_csv(file, index=False)
        print(f"all rows: {relative(file)}", flush=True)
    except OSError as error:
        print(f"all rows: {relative(file)} can't be written ({error.strerror})", flush=True)


def pivot(rows: Sequence[Json], key: str, value: str, whose: Mapping[str, str]) -> list[Json]:
    """Return rows with the values of a key as columns, each a value with its interval as text.

    Args:
        rows: with target, rule and, most of them, kind.
        key: whose values become columns.
        value: what stands there.
        whose: printed text of each kind.
    """
    wide: dict[tuple[Any, ...], Json] = {}
    for row in rows:
        of = whose[row.get("kind", "needed")]
        named = {"target": row["target"], "rule": row["rule"], "of": of}
        low, high = (row[name] for name in limits(value))
        text = f"{row[value]:.4g}" + (f" [{low:.3g}, {high:.3g}]" if low < high else "")
        cell = UNDEFINED if math.isnan(row[value]) else text
        wide.setdefault(tuple(named.values()), named)[str(row[key])] = cell
    return list(wide.values())


def with_closed_forms(solved: Sequence[Json], closed: Sequence[Json], of: str) -> list[Json]:
    """Return solved rows, each with the closed form of its range; first those of no range.

    Args:
        solved: rows of `pivot`.
        closed: rows with target, rule, kind, "asks for" and "meets it".
        of: the printed kind of the rows that closed forms are about.
    """
    rows = [{**row, "closed form": UNDEFINED} for row in solved]
    first: list[Json] = []
    for form in closed:
        if form["kind"] == "sufficient":
            key = {"target": form["target"], "rule": form["rule"], "of": of}
            text = f"{form['asks for']}, met by {share_text(form['meets it'])}"
            places = [row for row in rows if key.items() <= row.items()]
            if not places:
                first.append({**key, "closed form": text})
            for row in places:
                row["closed form"] = text
    return [*first, *rows]


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
    points = sorted(directory.glob(f"*/{POINT}"), key=lambda path: int(path.parent.name))
    if not points:
        return 0  # Hydra refused the command line and said why
    read = [json.loads(path.read_text()) for path in points]
    jobs = [values_of(point["overrides"]) for point in read]
    swept = swept_keys(jobs)
    parsed = {key: _parsed([job.get(key) for job in jobs]) for key in swept}
    rows: list[dict[str, Any]] = []
    for at, point in enumerate(read):
        place = {key: values[at] for key, values in parsed.items()}
        rows += [{**place, **row, **place} for row in point.get("rows", [])]
        if "failed" in point:
            where = ", ".join(f"{key}={jobs[at].get(key, '')}" for key in swept)
            print(f"failed: {where}: {point['failed']}")
    if rows:
        stage = next(point["stage"] for point in read if "stage" in point)
        name = slug(f"{stage}_by_{'_'.join(swept)}"[:LONGEST])
        _publish(directory, name, swept, rows)
    return sum("failed" in point for point in read)


def values_of(overrides: list[str]) -> dict[str, str]:
    """Return the values of a job's overrides by key; a key that `~` takes away has none."""
    pairs = (override.partition("=") for override in overrides)
    # Hydra puts a backslash before a colon
    return {key.lstrip("+"): value.strip("'\"").replace("\\:", ":") for key, _, value in pairs}


def swept_keys(jobs: Sequence[dict[str, str]]) -> list[str]:
    """Return the keys whose values differ between the jobs, in the order they were given."""
    keys = list(dict.fromkeys(key for job in jobs for key in job))
    changed = [key for key in keys if len({job.get(key) for job in jobs}) > 1]
    return changed or keys[-1:]


def _parsed(texts: Sequence[str | None]) -> list[Any]:
    """Return the values of a key as numbers if all are, else as texts."""
    for kind in (int, float):
        try:
            return [kind(text) for text in texts]  # type: ignore[arg-type]
        except (TypeError, ValueError):
            continue
    return ["" if text is None else text for text in texts]


def _publish(directory: Path, name: str, swept: list[str], rows: list[dict[str, Any]]) -> None:
    import pandas as pd

    from analysis.report.escape import without_formulas
    from analysis.report.style import render
    from analysis.report.sweep_figure import sweep_figure

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

"""Writes tables, figures and numbers: as CSV and LaTeX, as PDF and PNG, as macros.

The pages lay out the same `lines` by their templates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import pandas as pd

from ..statistics.run_lengths import censored_ends
from . import style
from .escape import latex, macro, without_formulas
from .records import Column, Figure, Results, Row, Table, records_of
from .text import UNDEFINED, certificate_text, run_text, share_text

PUBLISHED = "as published"

Line = tuple[str, list[str], list[str]]  # a name, the cells, and the published ones or none


def files(item: Table | Figure, note: str = "") -> list[tuple[str, bytes]]:
    """Return path and content of the files of a table or figure; `note` ends a table's caption."""
    if isinstance(item, Table):
        contents = [csv_text(item.data).encode(), latex_table(item, note).encode()]
    else:
        drawings = [style.render(item.drawing, kind) for kind in ("pdf", "png")]
        contents = [*drawings, csv_text(item.data).encode()]
    return list(zip(names(item), contents, strict=True))


def names(item: Table | Figure) -> list[str]:
    """Return the paths of the files of a table or figure."""
    if isinstance(item, Table):
        return [f"tables/{item.name}.{kind}" for kind in ("csv", "tex")]
    return [f"figures/{item.name}.{kind}" for kind in ("pdf", "png", "csv")]


def csv_text(frame: pd.DataFrame) -> str:
    """Return a tidy frame as CSV; an empty cell is a value that does not exist."""
    escaped = without_formulas(frame)
    return str(escaped.to_csv(index=False, float_format="%.6g", lineterminator="\n"))


def lines(table: Table) -> list[tuple[str, list[Line]]]:
    """Lay a table out: headings, and below each its printed rows."""
    laid = [
        (heading, [_line(table, name, rows) for name, rows in printed])
        for heading, printed in _sections(table)
    ]
    return [(heading, printed) for heading, printed in laid if printed]


def _sections(table: Table) -> Iterator[tuple[str, list[tuple[str, list[Row]]]]]:
    """Yield headings, each with the printed rows below it: a name, and rows of the frame."""
    frame = table.data if table.shown is None else table.shown
    rows = records_of(frame)
    for heading, mine in _grouped(rows, table.section).items():
        printed = _printed_rows(table, mine)
        if isinstance(table.order, Mapping):
            for title, values in table.order.items():
                yield title, _ordered(printed, values)
        else:
            text = _text(table.names, heading) if table.section else ""
            every = [(name, found) for _, name, found in printed]
            yield text, every if table.order is None else _ordered(printed, table.order)


def _grouped(rows: Sequence[Row], key: str) -> dict[Any, list[Row]]:
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(row[key] if key else "", []).append(row)
    return found


def _printed_rows(table: Table, rows: Sequence[Row]) -> list[tuple[Any, str, list[Row]]]:
    """Return the value, the printed name and the frame's rows of each printed row."""
    keys = (table.row,) if isinstance(table.row, str) else table.row
    wide = not any(column.where for column in table.columns)
    found: dict[Any, list[Row]] = {}
    for at, row in enumerate(rows):
        found.setdefault(at if wide else tuple(row[key] for key in keys), []).append(row)
    return [(of[0][keys[0]], _text(table.names, of[0][keys[0]]), of) for of in found.values()]


def _ordered(
    printed: Sequence[tuple[Any, str, list[Row]]], values: Sequence[Any] | Mapping[Any, str]
) -> list[tuple[str, list[Row]]]:
    """Return name and rows of the values asked for; a mapping gives them other names."""
    renamed = values if isinstance(values, Mapping) else {}
    return [
        (renamed.get(value, name), rows)
        for value in values
        for known, name, rows in printed
        if known == value
    ]


def _text(names: Mapping[Any, str], value: Any) -> str:
    if value in names:
        return names[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _line(table: Table, name: str, rows: Sequence[Row]) -> Line:
    """Return a printed row."""
    texts, published = [], []
    for column in table.columns:
        row = next((row for row in rows if column.where.items() <= row.items()), None)
        texts.append(UNDEFINED if row is None else _cell(column, row))
        if row is None or column.published is None:
            published.append("")
        else:
            published.append(column.published(row["published"]))
    return name, texts, published if any(published) else []


def _cell(column: Column, row: Row) -> str:
    if not column.of:
        return column.text(row)
    keys = (column.of,) if isinstance(column.of, str) else column.of
    return column.text(*(row[key] for key in keys))


def spans(table: Table) -> list[tuple[str, int]]:
    """Return the headings over neighbouring columns, each with their number; none if all empty."""
    found = [
        (above, len(list(columns)))
        for above, columns in groupby(table.columns, key=lambda column: column.above)
    ]
    return found if any(above for above, _ in found) else []


def latex_table(table: Table, note: str = "") -> str:
    """Return a floating table; needs the package booktabs."""
    caption = " ".join(filter(None, [table.question, table.caption, note]))
    width = len(table.columns) + 1
    rows = [
        r"\begin{table}[t]",
        r"\centering\small",
        rf"\caption{{{latex(caption)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
    ]
    if above := spans(table):
        cells, rules, at = [""], [], 2
        for text, span in above:
            cells.append(rf"\multicolumn{{{span}}}{{c}}{{{latex(text)}}}")
            rules += [rf"\cmidrule(lr){{{at}-{at + span - 1}}}"] * bool(text)
            at += span
        rows += [" & ".join(cells) + r" \\", " ".join(rules)]
    headings = [table.stub, *(column.heading for column in table.columns)]
    rows.append(" & ".join(map(latex, headings)) + r" \\")
    for heading, printed in lines(table):
        rows.append(r"\midrule")
        if heading:
            rows.append(rf"\multicolumn{{{width}}}{{l}}{{\emph{{{latex(heading)}}}}} \\")
        for name, texts, published in printed:
            rows.append(" & ".join(map(latex, [name, *texts])) + r" \\")
            if published:
                first = rf"\quad\emph{{{PUBLISHED}}}"
                rows.append(" & ".join([first, *map(latex, published)]) + r" \\")
    rows += [r"\bottomrule", r"\end{tabular}"]
    rows += [rf"\par\smallskip{{\footnotesize {latex(said)}}}" for said in table.notes]
    return "\n".join([*rows, r"\end{table}", ""])


def macros(results: Results) -> str:
    r"""Return one \newcommand a number: \<Target><Rule><Statistic>, digits spelled out."""
    found = {
        (row["target"], f"top {row['k']}", row["statistic"]): f"{row['value']:.3f}"
        for row in records_of(results["top"])
    }
    for row in records_of(results["certificates"]):
        target, rule = row["target"], results.rules[row["rule"]]
        text = certificate_text(row["value"], row["optimistic"], rule.ceiling)
        found[target, rule.label, row["statistic"]] = text
        if row["statistic"] == "mean":
            for name in ("empty", "inexact"):
                found[target, rule.label, name] = share_text(row[name])
            if rule == results.certified[0]:
                found |= {(target, name): str(row[name]) for name in ("prompts", "steps")}
    for row in records_of(results.select("runs", estimator="per_call")):
        text = run_text(row["value"], row["optimistic"], censored_ends(row))
        found[row["target"], row["rule"], f"run {row['eps']:g}"] = text
    lines = [f"\\newcommand{{\\{macro(*name)}}}{{{latex(text)}}}" for name, text in found.items()]
    return "\n".join(["% names spell digits: p5 is PFive, 0.1 is ZeroPointOne", *lines, ""])

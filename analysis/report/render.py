"""Rendering of tables as CSV and LaTeX, and of figures as PDF and PNG.

The templates of the pages use the same `lines`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import pandas as pd

from . import style
from .escape import latex, without_formulas
from .records import Column, Figure, Row, Table, records_of
from .text import UNDEFINED

PUBLISHED = "as published"

TableLine = tuple[str, list[str], list[str]]  # a name, the cells, and the published ones or none


def files(item: Table | Figure, note: str = "") -> list[tuple[str, bytes]]:
    """Return the paths and contents of a table's or figure's files; `note` ends the caption."""
    if isinstance(item, Table):
        contents = [csv_text(item.data).encode(), latex_table(item, note).encode()]
    else:
        drawings = [style.render(item.drawing, kind) for kind in ("pdf", "png")]
        contents = [*drawings, csv_text(item.data).encode()]
    return list(zip(names(item), contents, strict=True))


def names(item: Table | Figure) -> list[str]:
    """Return the paths of a table's or figure's files."""
    if isinstance(item, Table):
        return [f"tables/{item.name}.{kind}" for kind in ("csv", "tex")]
    return [f"figures/{item.name}.{kind}" for kind in ("pdf", "png", "csv")]


def anchor(item: Table | Figure) -> str:
    """Return the place of a table or figure within `tables.html`."""
    return names(item)[0].rpartition(".")[0]


def caption(item: Table | Figure) -> str:
    """Return the question and the caption; of the paper's elements, only the caption."""
    if re.match(r"(Table|Figure) [1-6]:", item.title):
        return item.caption
    return " ".join(filter(None, (item.question, item.caption)))


def csv_text(frame: pd.DataFrame) -> str:
    """Return a tidy frame as CSV; a missing value is an empty cell."""
    escaped = without_formulas(frame)
    return str(escaped.to_csv(index=False, float_format="%.6g", lineterminator="\n"))


def lines(table: Table) -> list[tuple[str, list[TableLine]]]:
    """Return the printed rows of a table, grouped by heading."""
    keys, frame = table.row.split(), table.data if table.shown is None else table.shown
    wide = not any(column.where for column in table.columns)
    laid = []
    for heading, members in _grouped(
        records_of(frame), lambda _, row: row[table.section] if table.section else ""
    ):
        printed = [
            (rows[0][keys[0]], rows)
            for _, rows in _grouped(
                members, lambda index, row: index if wide else tuple(row[x] for x in keys)
            )
        ]
        parts: Mapping[Any, Any]
        if isinstance(table.order, Mapping):
            parts = table.order
        else:
            parts = {_text(table.names, heading) if table.section else "": table.order}
        for title, values in parts.items():
            names = {**table.names, **(values if isinstance(values, Mapping) else {})}
            chosen = printed if values is None else [
                entry for value in values for entry in printed if entry[0] == value
            ]  # fmt: skip
            if chosen:
                cells = [_line(table, _text(names, value), rows) for value, rows in chosen]
                laid.append((title, cells))
    return laid


def label_width(table: Table) -> int:
    """Return the width of a table's first column, in characters: labels on three lines at most."""
    labels = [name for _, rows in lines(table) for name, *_ in rows]
    words = [len(word) for label in labels for word in label.split()]
    return max([1 + max(map(len, labels), default=0) // 3 + max(words, default=0) // 2, *words, 1])


def _grouped(
    rows: Sequence[Row], key: Callable[[int, Row], Hashable]
) -> Iterable[tuple[Any, list[Row]]]:
    """Group rows by a key of index and row, in the order of first appearance."""
    groups: dict[Hashable, list[Row]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(key(index, row), []).append(row)
    return groups.items()


def _text(names: Mapping[Any, str], value: Any) -> str:
    if value in names:
        return names[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _line(table: Table, name: str, rows: Sequence[Row]) -> TableLine:
    """Return a printed row: its name, its cells, and the published cells."""
    picked = [
        next((row for row in rows if column.where.items() <= row.items()), None)
        for column in table.columns
    ]
    pairs = zip(table.columns, picked, strict=True)
    texts = [UNDEFINED if row is None else _cell(column, row) for column, row in pairs]
    published = ["" if row is None else _as_published(row.get("published", "")) for row in picked]
    return name, texts, published if any(published) else []


def _cell(column: Column, row: Row) -> str:
    if not column.values:
        return column.text(row)
    keys = [column.values] if isinstance(column.values, str) else column.values
    values = [row[key] for key in keys]
    return UNDEFINED if pd.isna(values[0]) else column.text(*values)


def _as_published(value: float | str) -> str:
    """Return a number of the paper as text, with three decimals."""
    return value if isinstance(value, str) else "" if math.isnan(value) else f"{value:.3f}"


def spans(table: Table) -> list[tuple[str, int]]:
    """Return the headings above adjacent columns with their widths; empty if there are none."""
    headings = [
        (above, len(list(columns)))
        for above, columns in groupby(table.columns, key=lambda column: column.above)
    ]
    return headings if any(above for above, _ in headings) else []


def latex_table(table: Table, note: str = "") -> str:
    """Return a table as a LaTeX float, which needs the package booktabs."""
    text = " ".join(filter(None, [caption(table), note]))
    width = len(table.columns) + 1
    rows = [
        r"\begin{table}[t]",
        r"\centering\small",
        rf"\caption{{{latex(text)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
    ]
    if above := spans(table):
        cells, rules, left = [""], [], 2
        for text, span in above:
            cells.append(rf"\multicolumn{{{span}}}{{c}}{{{latex(text)}}}")
            rules += [rf"\cmidrule(lr){{{left}-{left + span - 1}}}"] * bool(text)
            left += span
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
    rows += [rf"\par\smallskip{{\footnotesize {latex(note_text)}}}" for note_text in table.notes]
    return "\n".join([*rows, r"\end{table}", ""])

"""Writes tables and figures: as CSV, LaTeX, Markdown and HTML, as PDF and PNG."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import pandas as pd

from . import fold, style
from .escape import latex, markdown, without_formulas
from .records import Column, Figure, Row, Table, records_of
from .text import UNDEFINED

PUBLISHED = "as published"

Line = tuple[str, list[str], list[str]]  # a name, the cells, and the published ones or none


def files(item: Table | Figure) -> list[tuple[str, bytes]]:
    """Return path and content of the files of a table or figure."""
    if isinstance(item, Table):
        contents = [csv_text(item.data).encode(), latex_table(item).encode()]
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
        (heading, _folded([_line(table, name, rows) for name, rows in printed]))
        for heading, printed in _sections(table)
    ]
    return [(heading, printed) for heading, printed in laid if printed]


def notes(table: Any) -> list[str]:
    """Return the sentences below a table, of which some are about its layout."""
    if not isinstance(table, Table):
        return list(table.notes)
    printed = sum(len(rows) for _, rows in _sections(table))
    folded = sum(len(rows) for _, rows in lines(table)) < printed
    return [*table.notes, *[fold.NOTE] * folded]


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


def _folded(rows: list[Line]) -> list[Line]:
    """Return the rows with one for Top-m rules that print alike, unless some are published.

    >>> rows = [(f"Top-{m} + additive (t = 0.1)", [r], []) for m, r in ((4, "0.194"), (6, "0.195"))]
    >>> rows += [("Top-8 + additive (t = 0.1)", ["0.196"], []), ("Tree (m = 2)", ["0.194"], [])]
    >>> for name, cells, _ in _folded(rows):
    ...     print(name, cells)
    Top-4, 6 + additive (t = 0.1) ['0.194']
    Top-8 + additive (t = 0.1) ['0.196']
    Tree (m = 2) ['0.194']
    """
    if any(published for *_, published in rows):
        return rows
    found = fold.groups([(name, cells) for name, cells, _ in rows])
    return [(name, rows[at][1], []) for name, at in found]


def _spans(table: Table) -> list[tuple[str, int]]:
    """Return the headings over neighbouring columns, each with their number; none if all empty."""
    spans = [
        (above, len(list(columns)))
        for above, columns in groupby(table.columns, key=lambda column: column.above)
    ]
    return spans if any(above for above, _ in spans) else []


def latex_table(table: Table) -> str:
    """Return a floating table; needs the package booktabs."""
    width = len(table.columns) + 1
    rows = [
        r"\begin{table}[t]",
        r"\centering\small",
        rf"\caption{{{latex(f'{table.question} {table.caption}')}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
    ]
    if spans := _spans(table):
        cells, rules, at = [""], [], 2
        for above, span in spans:
            cells.append(rf"\multicolumn{{{span}}}{{c}}{{{latex(above)}}}")
            rules += [rf"\cmidrule(lr){{{at}-{at + span - 1}}}"] * bool(above)
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
    rows += [rf"\par\smallskip{{\footnotesize {latex(note)}}}" for note in notes(table)]
    return "\n".join([*rows, r"\end{table}", ""])


def markdown_table(table: Table) -> str:
    """Return a table of GitHub's Markdown with its notes."""
    headings = [
        markdown(column.above) + "<br>" * bool(column.above) + markdown(column.heading)
        for column in table.columns
    ]
    rows = [[markdown(table.stub), *headings]]
    for heading, printed in lines(table):
        if heading:
            rows.append([f"**{markdown(heading)}**", *[""] * len(headings)])
        for name, texts, published in printed:
            rows.append([markdown(text) for text in (name, *texts)])
            if published:
                shown = [f"*{markdown(text)}*" if text else "" for text in published]
                rows.append([f"*{PUBLISHED}*", *shown])
    text = ["| " + " | ".join(row) + " |" for row in rows]
    text.insert(1, "|---|" + "---:|" * len(headings))
    return "\n".join([*text, *(f"\n{markdown(note)}" for note in notes(table))])


def html_table(table: Table) -> str:
    """Return the element of a page, without title, caption and notes."""
    rows = []
    if spans := _spans(table):
        cells = [
            _element(
                "th" if above else "td",
                above,
                colspan=span,
                **{"scope": "colgroup"} if above else {},
            )
            for above, span in spans
        ]
        rows.append("<td></td>" + "".join(cells))
    stub = _element("th", table.stub, scope="col") if table.stub else "<td></td>"
    rows.append(stub + "".join(_element("th", of.heading, scope="col") for of in table.columns))
    head = "".join(f"<tr>{row}</tr>\n" for row in rows)
    body = []
    for heading, printed in lines(table):
        if heading:
            cell = _element("td", heading, colspan=len(table.columns) + 1)
            body.append(f'<tr class="heading">{cell}</tr>\n')
        for name, texts, published in printed:
            body.append(f"<tr>{''.join(_element('td', text) for text in (name, *texts))}</tr>\n")
            if published:
                cells = [_element("td", text) for text in (PUBLISHED, *published)]
                body.append(f'<tr class="published">{"".join(cells)}</tr>\n')
    label = html.escape(table.title)
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{label}">\n'
        f"<table>\n<thead>\n{head}</thead>\n<tbody>\n{''.join(body)}</tbody>\n</table>\n</div>"
    )


def _element(tag: str, text: str, **attributes: Any) -> str:
    given = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f"<{tag}{given}>{html.escape(text)}</{tag}>"

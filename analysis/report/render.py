"""Writes tables, figures and numbers: as CSV, LaTeX and HTML, as PDF and PNG, as macros."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import pandas as pd

from ..statistics.run_lengths import censored_ends
from . import style
from .escape import latex, macro, one_line, without_formulas
from .records import Column, Figure, Results, Row, Table, records_of
from .text import UNDEFINED, certificate_text, run_text, share_text

PUBLISHED = "as published"
NAMED = re.compile(r"Top-(\d+) (\+ .+)")
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")
FOLDED = (
    "Top-m rules that print alike, or differ by one in a last digit, share a row, which has the "
    "numbers of the smallest m. The CSV file has them all."
)

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


def notes(table: Table) -> list[str]:
    """Return the sentences below a table, of which some are about its layout."""
    printed = sum(len(rows) for _, rows in _sections(table))
    folded = sum(len(rows) for _, rows in lines(table)) < printed
    return [*table.notes, *[FOLDED] * folded]


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
    found: list[tuple[list[str], str, list[str]]] = []  # sizes m, the rest of the name, cells
    for name, cells, _ in rows:
        match = NAMED.fullmatch(one_line(name))
        same = [
            sizes
            for sizes, rest, first in found
            if match is not None and rest == match[2] and all(map(_near, first, cells))
        ]
        if match is not None and same:
            same[0].append(match[1])
        else:
            found.append(([match[1]], match[2], cells) if match else ([], name, cells))
    return [
        (f"Top-{', '.join(sizes)} {rest}" if sizes else rest, cells, [])
        for sizes, rest, cells in found
    ]


def _near(first: str, second: str) -> bool:
    """Whether two texts are equal but for numbers that differ by at most one in a last digit.

    >>> _near("77 %", "78 %"), _near("9.9 %", "10 %"), _near("77 %", "79 %"), _near("1.2", "–")
    (True, True, False, False)
    """
    if first == second:
        return True
    if NUMBER.sub("#", first) != NUMBER.sub("#", second):
        return False
    pairs = zip(NUMBER.findall(first), NUMBER.findall(second), strict=True)
    return all(abs(float(a) - float(b)) <= 1.0000001 * max(_unit(a), _unit(b)) for a, b in pairs)


def _unit(number: str) -> float:
    digits, _, power = number.partition("e")
    return float(10.0 ** (int(power or 0) - len(digits.partition(".")[2])))


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

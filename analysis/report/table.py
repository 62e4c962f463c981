"""A printed table: its cells, its tidy data, and its LaTeX and Markdown forms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from . import fold
from .escape import latex, markdown
from .render import csv_text

PUBLISHED = "as published"


class Cell(NamedTuple):
    """What we print and what the paper prints, or nothing."""

    text: str
    published: str = ""


@dataclass(frozen=True)
class Section:
    """Rows that belong together: a heading, or none, and a name and cells for each row."""

    title: str
    rows: Sequence[tuple[str, Sequence[Cell]]]

    def folded(self) -> Section:
        """Return the section with one row for rules that print alike; none is published."""
        if any(cell.published for _, cells in self.rows for cell in cells):
            return self
        printed = [(name, [cell.text for cell in cells]) for name, cells in self.rows]
        return Section(self.title, [(name, self.rows[at][1]) for name, at in fold.groups(printed)])


@dataclass(frozen=True)
class Table:
    """A table in the paper's layout.

    Rows of Top-m rules that print alike share a row: `analysis.report.fold`.

    Attributes:
        name: file name without suffix, for instance "table2".
        title: heading on the page.
        caption: one paragraph of plain text.
        stub: heading of the first column.
        groups: (heading, number of columns) over the other columns; an empty heading is none.
        columns: headings of the other columns.
        sections: the rows.
        data: the tidy data, one statistic a row, for the CSV file.
        notes: plain sentences printed below.
    """

    name: str
    title: str
    caption: str
    stub: str
    groups: Sequence[tuple[str, int]]
    columns: Sequence[str]
    sections: Sequence[Section]
    data: pd.DataFrame
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Fold the rows that say the same, and say so below."""
        folded = [section.folded() for section in self.sections]
        if [len(section.rows) for section in folded] != [len(s.rows) for s in self.sections]:
            object.__setattr__(self, "sections", folded)
            object.__setattr__(self, "notes", [*self.notes, fold.NOTE])

    @classmethod
    def side_by_side(
        cls,
        name: str,
        title: str,
        caption: str,
        stub: str,
        titles: Sequence[str],
        columns: Sequence[str],
        sections: Sequence[Section],
        data: pd.DataFrame,
        notes: Sequence[str] = (),
    ) -> Table:
        """Return a table with the same columns below each title, most often a target."""
        groups = [(above, len(columns)) for above in titles]
        repeated = [*columns] * len(titles)
        return cls(name, title, caption, stub, groups, repeated, sections, data, notes)

    def csv(self) -> str:
        """Return the tidy data as CSV; an empty cell is a value that does not exist."""
        return csv_text(self.data)

    def latex(self) -> str:
        """Return a floating table; needs the package booktabs."""
        width = len(self.columns) + 1
        lines = [
            r"\begin{table}[t]",
            r"\centering\small",
            rf"\caption{{{latex(self.caption)}}}",
            rf"\label{{tab:{self.name}}}",
            rf"\begin{{tabular}}{{l{'r' * len(self.columns)}}}",
            r"\toprule",
            *self._group_lines(),
            " & ".join(latex(text) for text in (self.stub, *self.columns)) + r" \\",
        ]
        for section in self.sections:
            lines.append(r"\midrule")
            if section.title:
                lines.append(rf"\multicolumn{{{width}}}{{l}}{{\emph{{{latex(section.title)}}}}} \\")
            for name, texts, published in _rows(section):
                cells = [latex(text) for text in (name, *texts)]
                if published:
                    cells = [r"\quad\emph{" + cells[0] + "}", *cells[1:]]
                lines.append(" & ".join(cells) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}"]
        lines += [rf"\par\smallskip{{\footnotesize {latex(note)}}}" for note in self.notes]
        return "\n".join([*lines, r"\end{table}", ""])

    def _group_lines(self) -> list[str]:
        if not any(title for title, _ in self.groups):
            return []
        cells, rules, at = [""], [], 2
        for title, span in self.groups:
            cells.append(rf"\multicolumn{{{span}}}{{c}}{{{latex(title)}}}")
            rules.append(rf"\cmidrule(lr){{{at}-{at + span - 1}}}")
            at += span
        return [" & ".join(cells) + r" \\", " ".join(rules)]

    def markdown(self) -> str:
        """Return a table of GitHub's Markdown with its notes."""
        spans = [markdown(title) for title, span in self.groups for _ in range(span)]
        names = [
            f"{span}<br>{name}" if span else name
            for span, name in zip(spans, map(markdown, self.columns), strict=True)
        ]
        lines = [
            "| " + " | ".join([markdown(self.stub), *names]) + " |",
            "|---|" + "---:|" * len(self.columns),
        ]
        for section in self.sections:
            if section.title:
                title = f"**{markdown(section.title)}**"
                lines.append(f"| {title} |" + " |" * len(self.columns))
            for name, texts, published in _rows(section):
                shown = [markdown(text) for text in (name, *texts)]
                shown = [f"*{text}*" if text and published else text for text in shown]
                lines.append("| " + " | ".join(shown) + " |")
        return "\n".join([*lines, "", *(f"{markdown(note)}\n" for note in self.notes)])


def _rows(section: Section) -> Iterator[tuple[str, list[str], bool]]:
    """Yield name, texts and whether published, the published row after ours."""
    for name, cells in section.rows:
        yield name, [cell.text for cell in cells], False
        if any(cell.published for cell in cells):
            yield PUBLISHED, [cell.published for cell in cells], True

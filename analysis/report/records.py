"""The data types of a report: tables, figures and sections.

A section of the report (`certificates`, `published`, `acceptance`, `decoding`, `accuracy`) takes
`Results` and returns a `Section`: paragraphs, tables and figures. A table names a tidy frame, the
statistics that become its columns and their formats; `analysis.report.render` writes it as CSV and
LaTeX. No section formats a cell itself. Titles, questions, captions and most columns are in
`texts.toml`.

Examples:
    >>> from analysis.report.render import lines
    >>> from analysis.report.text import share_text
    >>> frame = pd.DataFrame(
    ...     {
    ...         "target": ["A", "A", "B", "B"],
    ...         "rule": ["greedy"] * 4,
    ...         "statistic": ["acceptance", "certified"] * 2,
    ...         "value": [0.81, 0.23, 0.75, 0.2],
    ...     }
    ... )
    >>> table = Table(
    ...     name="acceptance",
    ...     title="Accepted and certified",
    ...     question="What does each rule accept?",
    ...     caption="Share of steps.",
    ...     data=frame,
    ...     row="rule",
    ...     columns=across(
    ...         ["A", "B"],
    ...         [
    ...             Column("accepted", share_text, where={"statistic": "acceptance"}),
    ...             Column("certified", share_text, where={"statistic": "certified"}),
    ...         ],
    ...     ),
    ...     names={"greedy": "Strict greedy"},
    ... )
    >>> lines(table)
    [('', [('Strict greedy', ['81 %', '23 %', '75 %', '20 %'], [])])]
"""

from __future__ import annotations

import pkgutil
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Drawing

from ..statistics.trajectories import CENSORED
from .style import letter
from .text import FORMATS

Row = dict[str, Any]


@cache
def texts() -> dict[str, dict[str, Any]]:
    """Return the entries of `texts.toml`, each text joined into one line."""
    read = tomllib.loads((pkgutil.get_data(__package__, "texts.toml") or b"").decode())
    entries = {
        name: {
            key: " ".join(content.split()) if isinstance(content, str) else content
            for key, content in entry.items()
        }
        for name, entry in read.items()
    }
    censored = {"censored": f"{100 * CENSORED:g} %"}
    entries["shared"] = {key: text.format(**censored) for key, text in entries["shared"].items()}
    entries["shared"] |= censored
    return entries


def worded(
    name: str, targets: Sequence[str] = (), more: Sequence[Column] = (), **facts: Any
) -> dict[str, Any]:
    """Return the name, texts and columns of a table or figure, from `texts.toml`.

    Args:
        name: of its entry, and of its files unless the entry has another name.
        targets: each target gets a copy of the columns, below its name.
        more: columns after those of the entry.
        facts: values for the placeholders in its texts.
    """
    facts_by_name, entry = texts()["shared"] | facts, {"name": name} | texts()[name]
    filled: dict[str, Any] = {
        key: " ".join(text.format(**facts_by_name).split())
        for key, text in entry.items()
        if isinstance(text, str)
    }
    listed = entry.get("columns", ())
    columns = [
        *(_column(heading.format(**facts_by_name), *layout) for heading, *layout in listed),
        *more,
    ]
    if columns:
        filled["columns"] = across(targets, columns) if targets else columns
    return filled


def _column(heading: str, text: str, *parts: Any) -> Column:
    """Return a column of `texts.toml` from its heading, its format and the frame's columns.

    A mapping after them is `Column.where`; its key `above` is the heading above.
    """
    where = {key: value for part in parts if isinstance(part, dict) for key, value in part.items()}
    above = where.pop("above", "")
    names = tuple(part for part in parts if isinstance(part, str)) or ("value",)
    return Column(heading, FORMATS[text], names, where, above)


def sentence(name: str) -> str:
    """Return a sentence shared by several tables, from `texts.toml`."""
    return str(texts()["shared"][name])


@dataclass(frozen=True)
class Column:
    """A column of a printed table: the rows of the frame that it shows, and their format.

    Attributes:
        heading: of the column.
        text: a function from the columns `values` to the printed text; if `values` is empty,
            from the whole row as a mapping.
        values: one or several columns of the frame. Without a value of the first one the cell is
            undefined.
        where: columns and their values that select the frame's row among those that share a
            printed row. Without such a row the cell is undefined.
        above: heading shared by this column and its neighbours.
    """

    heading: str
    text: Callable[..., str]
    values: str | tuple[str, ...] = "value"
    where: Mapping[str, Any] = field(default_factory=dict)
    above: str = ""


def across(values: Iterable[str], columns: Sequence[Column], key: str = "target") -> list[Column]:
    """Return a copy of the columns for each value of the key, usually a target."""
    return [
        replace(column, above=value, where={key: value, **column.where})
        for value in values
        for column in columns
    ]


@dataclass(frozen=True, eq=False)
class Table:
    """A table: a tidy frame and its layout.

    Rows of the frame with the same `section` and `row` form a printed row, and each column selects
    one of them by its `where`. If no column has a `where`, every row of the frame is a printed row.
    A second line shows the frame's column `published`, the numbers of the paper.

    Attributes:
        name: file name without suffix, for instance "table2".
        title: heading on the page.
        question: the question that the table answers, one sentence.
        caption: one paragraph of plain text.
        data: the tidy frame, as written to the CSV file.
        row: the frame's column that identifies and names the printed rows. Of several columns,
            separated by spaces, the first names them.
        columns: from left to right.
        stub: heading of the first column.
        section: the frame's column whose values become headings between rows.
        order: the values of `row` to print, in order; by default all. A mapping groups them below
            its keys as headings, and may map a value to another printed name.
        names: printed text of values of `row` and `section`; numbers print as `:g` otherwise.
        notes: plain sentences printed below.
        shown: the frame to print, if it differs from that of the CSV file.
    """

    name: str
    title: str
    question: str
    caption: str
    data: pd.DataFrame
    row: str
    columns: Sequence[Column]
    stub: str = ""
    section: str = ""
    order: Sequence[Any] | Mapping[str, Sequence[Any] | Mapping[Any, str]] | None = None
    names: Mapping[Any, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    shown: pd.DataFrame | None = None


@dataclass(frozen=True, eq=False)
class Figure:
    """A figure for papers: a matplotlib drawing and its data.

    Attributes:
        name: file name without suffix, for instance "figure2".
        title: heading on the page.
        question: the question that the figure answers, one sentence.
        caption: one paragraph of plain text.
        data: the numbers drawn, as written to the CSV file.
        drawing: the matplotlib figure; `analysis.report.style.grid` makes panels of the right
            size.
    """

    name: str
    title: str
    question: str
    caption: str
    data: pd.DataFrame
    drawing: Drawing

    def __post_init__(self) -> None:
        """Letter the panels."""
        letter(self.drawing)


@dataclass(frozen=True, eq=False)
class Section:
    """A section of a report: a heading, plain sentences, then tables and figures in their order.

    Attributes:
        title: heading.
        shown: tables and figures; None for one that the study has no data for.
        paragraphs: plain text below the heading.
        timed: whether it depends on the clock. Its files are in timings/, outside all digests.
    """

    title: str
    shown: Sequence[Any]
    paragraphs: Sequence[str] = ()
    timed: bool = False

    def __post_init__(self) -> None:
        """Drop the tables and figures that are None."""
        object.__setattr__(self, "shown", [item for item in self.shown if item is not None])

    @property
    def place(self) -> str:
        """Directory of its files within the report, with a slash; empty for the report's own."""
        return "timings/" if self.timed else ""


def select(frame: pd.DataFrame, **conditions: Any) -> pd.DataFrame:
    """Return the rows of a frame whose columns equal a value, or one of a list of values.

    >>> frame = pd.DataFrame({"rule": ["a", "b", "c"], "value": [1, 2, 3]})
    >>> select(frame, rule=["a", "c"])["value"].tolist()
    [1, 3]
    """
    for column, values in conditions.items():
        several = isinstance(values, list | tuple | set | dict | pd.Series)
        frame = frame[frame[column].isin(list(values) if several else [values])]
    return frame


def records_of(frame: pd.DataFrame) -> list[Row]:
    """Return the rows of a frame as dictionaries."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def together(frames: Mapping[str, pd.DataFrame], key: str = "target") -> pd.DataFrame:
    """Return frames with equal columns as one frame, their names in a first column `key`."""
    labelled = [frame.assign(**{key: name}) for name, frame in frames.items()]
    if not labelled:
        return pd.DataFrame()
    joined = pd.concat(labelled, ignore_index=True)
    return joined[[key, *(column for column in joined if column != key)]]

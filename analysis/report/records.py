"""The records of a report: what was measured, and tables and figures as data.

A section of the report (`certificates`, `published`, `acceptance`, `decoding`, `accuracy`) takes
`Results` and returns a `Section`: tables, figures and sentences above them. A table names a tidy
frame and says which of its statistics become columns, in which format; `analysis.report.render`
writes it as CSV and LaTeX. No section lays out a cell itself. Titles, questions, captions and most
columns lie in `texts.toml`.

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
    """Return what `texts.toml` holds, every text on one line."""
    read = tomllib.loads((pkgutil.get_data(__package__, "texts.toml") or b"").decode())
    found = {
        name: {
            key: " ".join(given.split()) if isinstance(given, str) else given
            for key, given in entry.items()
        }
        for name, entry in read.items()
    }
    censored = {"censored": f"{100 * CENSORED:g} %"}
    found["shared"] = {key: text.format(**censored) for key, text in found["shared"].items()}
    found["shared"] |= censored
    return found


def worded(
    name: str, targets: Sequence[str] = (), more: Sequence[Column] = (), **facts: Any
) -> dict[str, Any]:
    """Return name, texts and layout of a table or figure, from `texts.toml`.

    Args:
        name: of its entry, and of its files unless the entry has another.
        targets: below each of which the columns stand.
        more: columns behind those of the entry.
        facts: what stands for the braces in its texts.
    """
    known, entry = texts()["shared"] | facts, {"name": name} | texts()[name]
    found: dict[str, Any] = {
        key: of.format(**known) for key, of in entry.items() if isinstance(of, str)
    }
    told = entry.get("columns", ())
    columns = [*(_column(heading.format(**known), *layout) for heading, *layout in told), *more]
    if columns:
        found["columns"] = across(targets, columns) if targets else columns
    return found


def _column(heading: str, text: str, *of: Any) -> Column:
    """Return a column of `texts.toml`: its heading, its format and the frame's columns.

    A mapping behind them is `Column.where`, whose key `above` is the heading above.
    """
    where = {key: value for part in of if isinstance(part, dict) for key, value in part.items()}
    above = where.pop("above", "")
    names = tuple(part for part in of if isinstance(part, str)) or ("value",)
    return Column(heading, FORMATS[text], names, where, above)


def sentence(name: str) -> str:
    """Return a sentence that several tables share, from `texts.toml`."""
    return str(texts()["shared"][name])


@dataclass(frozen=True)
class Column:
    """A column of a printed table: which rows of its frame it shows, and how.

    Attributes:
        heading: over the column.
        text: gives what is printed, from the values of the columns `of`; from the whole row, as a
            mapping, if `of` is empty.
        of: name of the frame's column, or several. Where the first has no value, none is printed.
        where: column and value that tell the row of the frame, among those that share a printed
            row. A printed row without such a row has no value there.
        above: heading over this column and its neighbours with the same.
    """

    heading: str
    text: Callable[..., str]
    of: str | tuple[str, ...] = "value"
    where: Mapping[str, Any] = field(default_factory=dict)
    above: str = ""


def across(values: Iterable[str], columns: Sequence[Column], key: str = "target") -> list[Column]:
    """Return the same columns below each value of the key, most often a target."""
    return [
        replace(column, above=value, where={key: value, **column.where})
        for value in values
        for column in columns
    ]


@dataclass(frozen=True, eq=False)
class Table:
    """A table: a tidy frame, and how it is laid out.

    Rows of the frame that have the same `section` and `row` are one printed row, of which each
    column picks one by its `where`. Where no column has a `where`, every row of the frame is one
    printed row. A second line repeats what the frame has in a column `published`: what the paper
    prints.

    Attributes:
        name: file name without suffix, for instance "table2".
        title: heading on the page.
        question: that the table answers, one sentence.
        caption: one paragraph of plain text.
        data: the tidy frame, as the CSV file has it.
        row: the frame's column that names the printed rows; several, with spaces between, tell
            them apart, and the first names them.
        columns: from left to right.
        stub: heading of the first column.
        section: the frame's column whose values are headings between rows.
        order: values of `row` that are printed, in this order, by default all; as a mapping, below
            the headings that are its keys, where values may be a mapping to other names.
        names: printed text of values of `row` and `section`; numbers print as `:g` otherwise.
        notes: plain sentences printed below.
        shown: the frame that is laid out, where it is another than that of the CSV file.
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
    """A figure for papers: its drawing, by matplotlib, and the numbers drawn.

    Attributes:
        name: file name without suffix, for instance "figure2".
        title: heading on the page.
        question: that the figure answers, one sentence.
        caption: one paragraph of plain text.
        data: the tidy numbers drawn, as the CSV file has them.
        drawing: what is drawn; `analysis.report.style.grid` makes panels of the right size.
    """

    name: str
    title: str
    question: str
    caption: str
    data: pd.DataFrame
    drawing: Drawing

    def __post_init__(self) -> None:
        """Give the panels their letters, the same in every figure."""
        letter(self.drawing)


@dataclass(frozen=True, eq=False)
class Section:
    """A section of a report: a heading, plain sentences, then tables and figures in their order.

    Attributes:
        title: heading.
        shown: tables and figures; None stands for one that the study does not fill.
        says: paragraphs below the heading.
        timed: whether it depends on the clock. Its files lie in timings/, which no digest covers.
    """

    title: str
    shown: Sequence[Any]
    says: Sequence[str] = ()
    timed: bool = False

    def __post_init__(self) -> None:
        """Leave out what the study does not fill."""
        object.__setattr__(self, "shown", [item for item in self.shown if item is not None])

    @property
    def place(self) -> str:
        """Directory of its files in the report, with a slash; empty: the report's own."""
        return "timings/" if self.timed else ""


def select(frame: pd.DataFrame, **wanted: Any) -> pd.DataFrame:
    """Return the rows of a frame whose columns have a value, or one of several (a list).

    >>> frame = pd.DataFrame({"rule": ["a", "b", "c"], "value": [1, 2, 3]})
    >>> select(frame, rule=["a", "c"])["value"].tolist()
    [1, 3]
    """
    for column, values in wanted.items():
        several = isinstance(values, list | tuple | set | dict | pd.Series)
        frame = frame[frame[column].isin(list(values) if several else [values])]
    return frame


def records_of(frame: pd.DataFrame) -> list[Row]:
    """Return the rows of a frame as mappings from column to value."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def together(frames: Mapping[str, pd.DataFrame], key: str = "target") -> pd.DataFrame:
    """Return frames of the same columns as one, with what each is of as the first column."""
    kept = [frame.assign(**{key: name}) for name, frame in frames.items()]
    if not kept:
        return pd.DataFrame()
    joined = pd.concat(kept, ignore_index=True)
    return joined[[key, *(column for column in joined if column != key)]]

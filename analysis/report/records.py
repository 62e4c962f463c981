"""The records of a report: what was measured, and tables and figures as data.

A section of the report (`certificates`, `published`, `acceptance`, `decoding`, `accuracy`) takes
`Results` and returns a `Part`: tables, figures and the sentences above them. A table names a tidy
frame and says which of its statistics become columns, in which format; `analysis.report.render`
writes it as CSV and LaTeX. No section lays out a cell itself. Titles, questions and captions lie in
`texts.toml`.

Example:
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

import math
import pkgutil
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Drawing

from ..rules import Rule
from ..statistics.trajectories import CENSORED
from .style import letter

Row = dict[str, Any]


@cache
def _texts() -> dict[str, dict[str, str]]:
    """Return what `texts.toml` holds, every text on one line."""
    read = tomllib.loads((pkgutil.get_data(__package__, "texts.toml") or b"").decode())
    found = {
        name: {key: " ".join(text.split()) for key, text in entry.items()}
        for name, entry in read.items()
    }
    censored = f"{100 * CENSORED:g} %"
    found["shared"] = {key: text.format(censored=censored) for key, text in found["shared"].items()}
    return found


def worded(name: str, **facts: Any) -> dict[str, Any]:
    """Return name, title, question and caption of a table or figure, from `texts.toml`.

    Args:
        name: of its entry, and of its files unless the entry has another.
        facts: what stands for the braces in its texts.
    """
    known = _texts()["shared"] | facts
    return {key: text.format(**known) for key, text in ({"name": name} | _texts()[name]).items()}


def sentence(name: str) -> str:
    """Return a sentence that several tables share, from `texts.toml`."""
    return _texts()["shared"][name]


@dataclass(frozen=True, eq=False)
class Results:
    """What a study measured: named tidy frames that share their key columns.

    Key columns are `target` (printed name) and `rule` (label); a long frame has `statistic` and
    `value` as well. Wherever there are intervals over prompts they are `ci_low` and `ci_high`,
    with `prompts` and `few_prompts`; `optimistic` is a statistic from the upper ends of
    certificates that are known as intervals, equal to `value` elsewhere. Each section names the
    frames that it reads.

    Attributes:
        targets: printed names, in order.
        rules: every rule that a frame names, by its label; those of the study first, in order.
        frames: by name. `top`, `certificates` and `runs` (`analysis.report.measured`) are of every
            study; one without a drafter, without decoding, ... lacks others.
        drafter: its printed name; empty without one.
        facts: what captions name beside frames: resamples, confidence, seed, margin, ...
    """

    targets: Sequence[str]
    rules: Mapping[str, Rule]
    frames: Mapping[str, pd.DataFrame]
    drafter: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    _found: dict[tuple[str, ...], dict[tuple[Any, ...], Row]] = field(
        default_factory=dict, repr=False
    )

    def __contains__(self, name: str) -> bool:
        """Whether there is a frame of this name with a row."""
        return name in self.frames and not self.frames[name].empty

    def __getitem__(self, name: str) -> pd.DataFrame:
        """Return a frame; without any row or column where the study has none of this name."""
        return self.frames.get(name, pd.DataFrame())

    @cached_property
    def certified(self) -> list[Rule]:
        """The study's own rules, whose certificates were computed."""
        return [self.rules[label] for label in self["certificates"]["rule"].unique()]

    @cached_property
    def names(self) -> dict[str, str]:
        """Printed name of every rule, by label."""
        return {label: rule.title for label, rule in self.rules.items()}

    def select(self, name: str, **wanted: Any) -> pd.DataFrame:
        """Return the rows of a frame whose columns have a value, or one of several (a list)."""
        return select(self[name], **wanted) if name in self else self[name]

    def rows(self, name: str, *keys: str) -> dict[tuple[Any, ...], Row]:
        """Return the rows of a frame by their values in some columns."""
        if (name, *keys) not in self._found:
            self._found[name, *keys] = rows_by(self[name], *keys)
        return self._found[name, *keys]

    def row(self, target: str, rule: str, statistic: str, name: str = "certificates") -> Row:
        """Return the row of a rule's statistic; its numbers are NaN where it does not exist."""
        found = self.rows(name, "target", "rule", "statistic").get((target, rule, statistic))
        return dict.fromkeys(self[name].columns, math.nan) if found is None else found


@dataclass(frozen=True)
class Column:
    """A column of a printed table: which rows of its frame it shows, and how.

    Attributes:
        heading: over the column.
        text: gives what is printed, from the values of the columns `of`; from the whole row, as a
            mapping, if `of` is empty.
        of: name of the frame's column, or several.
        where: column and value that tell the row of the frame, among those that share a printed
            row. A printed row without such a row has no value there.
        above: heading over this column and its neighbours with the same.
        published: gives what the paper prints there, from the frame's column `published`.
    """

    heading: str
    text: Callable[..., str]
    of: str | tuple[str, ...] = "value"
    where: Mapping[str, Any] = field(default_factory=dict)
    above: str = ""
    published: Callable[[Any], str] | None = None


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
    printed row.

    Attributes:
        name: file name without suffix, for instance "table2".
        title: heading on the page.
        question: that the table answers, one sentence.
        caption: one paragraph of plain text.
        data: the tidy frame, as the CSV file has it.
        row: the frame's column that names the printed rows, or several that tell them apart, of
            which the first names them.
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
    row: str | tuple[str, ...]
    columns: Sequence[Column]
    stub: str = ""
    section: str = ""
    order: Sequence[Any] | Mapping[str, Sequence[Any] | Mapping[Any, str]] | None = None
    names: Mapping[Any, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    shown: pd.DataFrame | None = None


def by_rule(results: Results, columns: Sequence[Column], stub: str = "Rule") -> dict[str, Any]:
    """Return the layout of a table with a row a rule, and the columns below each target."""
    return {
        "row": "rule",
        "columns": across(results.targets, columns),
        "stub": stub,
        "names": results.names,
    }


def by_method(columns: Sequence[Column]) -> dict[str, Any]:
    """Return the layout of a table with a row a method, below a heading for each target."""
    return {"row": "method", "section": "target", "stub": "Method", "columns": columns}


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
class Part:
    """A part of a report: a heading, plain sentences, then tables and figures in their order.

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


def rows_by(frame: pd.DataFrame, *keys: str) -> dict[tuple[Any, ...], Row]:
    """Return the rows of a frame by their values in some columns."""
    return {tuple(row[key] for key in keys): row for row in records_of(frame)}


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

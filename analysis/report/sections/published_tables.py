"""Tables of ours beside the published, and a verdict in plain words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ..notes import few_notes
from ..published import CAP
from ..table import Cell, Section, Table
from ..text import digits_text, number_text, range_text, run_text
from .published_matched import PAPERS, RUNS, TABLES, Match

DIFFERS = "≠"
MATCHED = (
    "Ours: as certified in this study. Matched: the same steps at that of the stored temperatures "
    "(distributions.temperatures, and 1) at which mean, median, p5 and p25 of p0, the probability "
    "of the most probable token, are nearest to the paper's Table 1, with bootstrap intervals over "
    "prompts; the answers stay as they were decoded. Difference: "
    f"matched less published; {DIFFERS}: the published number lies outside the interval."
)
DIGITS = {RUNS: 2}
DIGITS |= dict.fromkeys(TABLES[:-1], 3)


def verdict_table(compared: pd.DataFrame, matches: Sequence[Match]) -> Table:
    """Count, for each table of the paper, the published numbers outside our intervals.

    Its notes say in words whether p0 matches, and which certificates of Table 2 differ.
    """
    rows = []
    notes = []
    for match in matches:
        mine = compared[(compared["target"] == match.target) & (compared["paper"] == match.paper)]
        p0 = mine[(mine["table"] == "1") & (mine["row"] == "1")]
        parts = [p0, *(mine[mine["table"] == table] for table in TABLES)]
        cells = [Cell(f"{match.temperature:g}"), *(Cell(_outside(part)) for part in parts)]
        rows.append((f"{match.target} beside {match.paper}", cells))
        notes.append(verdict(match, mine))
    return Table(
        "published",
        "Beside the published",
        "How many of the paper's printed numbers lie outside our bootstrap intervals over prompts, "
        "at the temperature at which p0, the probability of the most probable token, is nearest to "
        "the paper's Table 1. Certificates depend on the distributions alone: where p0 matches and "
        "they do not, the distributions differ below p0, or the computations differ.",
        "Pair",
        [("", 1), ("outside, of all", 1 + len(TABLES))],
        ["temperature", "p0", *(f"{_named(table)}" for table in TABLES)],
        [Section("", rows)],
        compared,
        notes,
    )


def verdict(match: Match, compared: pd.DataFrame) -> str:
    """Say in words whether p0 of a match agrees, and which certificates do not.

    Args:
        match: a target beside a model of the paper.
        compared: the rows of `published_matched.compare` for it.
    """
    p0 = compared[(compared["table"] == "1") & (compared["row"] == "1")]
    off = p0[p0["outside"]]
    if off.empty:
        opening = "p0 matches in mean, median, p5 and p25"
    elif len(off) == len(p0):
        opening = f"p0 matches nowhere ({_listed(off, '1')})"
    else:
        same = ", ".join(p0.loc[~p0["outside"], "statistic"])
        opening = f"p0 matches in {same}, not in {_listed(off, '1')}"
    certificates = compared[compared["table"] == "2"]
    differing = certificates[certificates["outside"]]
    if len(off) == len(p0):
        told = "certificates can't be expected to"
    elif certificates.empty:
        told = "no rule of Table 2 is in this study"
    elif differing.empty:
        told = "every certificate of Table 2 agrees within its interval"
    else:
        named = "; ".join(
            f"{name}: {_listed(part, '2')}" for name, part in differing.groupby("name", sort=False)
        )
        although = "although p0 matches" if off.empty else "beside that"
        told = (
            f"{although}, {len(differing)} of {len(certificates)} numbers of Table 2 differ by "
            f"more than the interval over prompts (ours against the paper's). {named}"
        )
    return (
        f"{match.target} at temperature {match.temperature:g} beside {match.paper}: {opening}; "
        f"{told}.{_edge(match)}"
    )


def _edge(match: Match) -> str:
    """Warn where the nearest temperature is the last of the list."""
    if match.least == match.most or match.least < match.temperature < match.most:
        return ""
    return (
        f" {match.temperature:g} is an end of distributions.temperatures: one beyond may be nearer."
    )


def compared_tables(compared: pd.DataFrame, matches: Sequence[Match]) -> list[Table]:
    """Lay out every table of the paper: ours, ours matched, the published, and the difference."""
    return [
        _compared_table(table, compared[compared["table"] == table], matches)
        for table in TABLES
        if (compared["table"] == table).any()
    ]


def _compared_table(table: str, data: pd.DataFrame, matches: Sequence[Match]) -> Table:
    known = {
        (row["target"], row["paper"], row["name"], row["statistic"]): row
        for row in data.to_dict("records")
    }
    sections = []
    for target in dict.fromkeys(match.target for match in matches):
        mine = [match for match in matches if match.target == target]
        at = ", ".join(f"{match.temperature:g} for {match.paper}" for match in mine)
        lines = dict.fromkeys((name, column) for of, _, name, column in known if of == target)
        rows = [
            (
                f"{name}, {f'ε = {column:g}' if table == RUNS else column}",
                _cells(table, [known[target, paper, name, column] for paper in PAPERS]),
            )
            for name, column in lines
        ]
        sections.append(
            Section(f"{target}: ours at temperature {mine[0].own:g}, matched at {at}", rows)
        )
    return Table(
        f"published{TABLES.index(table) + 1}",
        f"{_named(table)} beside the published",
        f"{_named(table)} of the paper. {MATCHED}",
        "Row",
        [("", 1), *((paper, 3) for paper in PAPERS)],
        ["ours", *["matched", "published", "difference"] * len(PAPERS)],
        sections,
        data,
        few_notes(prompts for match in matches for prompts in match.measured.top["prompts"]),
    )


def _named(table: str) -> str:
    return f"Tables {table}" if table == RUNS else f"Table {table}"


def _outside(part: pd.DataFrame) -> str:
    return f"{int(part['outside'].sum())} of {len(part)}" if len(part) else ""


def _cells(table: str, rows: Sequence[Mapping[Any, Any]]) -> list[Cell]:
    """Return the cells of a line: ours once, then three for each model of the paper."""
    digits = DIGITS[table]

    def end(value: float) -> str:
        return _number(table, value, value)

    cells = [Cell(_number(table, rows[0]["value"], rows[0]["optimistic"]))]
    for row in rows:
        limits = f"[{end(row['ci_low'])}, {end(row['ci_high'])}]"
        mark = f" {DIFFERS}" if row["outside"] else ""
        cells += [
            Cell(f"{_number(table, row['matched'], row['matched_optimistic'])} {limits}"),
            Cell(_printed(table, row["published"])),
            Cell(f"{row['difference']:+z.{digits}f}".replace("-", "−") + mark),
        ]
    return cells


def _number(table: str, value: float, optimistic: float) -> str:
    if table == RUNS:
        value, optimistic = (math.inf if end >= CAP else end for end in (value, optimistic))
        return run_text(value, optimistic)
    return range_text(digits_text(value), digits_text(optimistic))


def _printed(table: str, value: float) -> str:
    """Return a number of the paper with the digits that the paper prints."""
    return _number(table, value, value) if table == RUNS else number_text(value, 3)


def _listed(rows: pd.DataFrame, table: str) -> str:
    return ", ".join(
        f"{row['statistic']} {_number(table, row['matched'], row['matched_optimistic'])} against "
        f"{_printed(table, row['published'])}"
        for row in rows.to_dict("records")
    )

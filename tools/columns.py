"""The tables of docs/data.md, written from the columns that the stages declare.

Run it with ``python -m tools.columns``. A table follows the comment that names its stage and file,
``<!-- columns: certificates data -->``.
"""

from __future__ import annotations

import re
from itertools import groupby

from pipeline.columns import Columns
from pipeline.paths import ROOT
from pipeline.study import STAGES

PAGE = ROOT / "docs" / "data.md"
TABLE = re.compile(r"(?<=<!-- columns: )(\S+) (\S+)( -->\n\n)(?:\|.*\n)*")


def table(columns: Columns) -> str:
    """Return a Markdown table of columns; adjacent columns with the same meaning share a row."""
    lines = ["| column | type | meaning |", "|---|---|---|"]
    for meaning, rows in groupby(columns.items(), key=lambda row: row[1].meaning):
        names, fields = zip(*rows, strict=True)
        kinds = dict.fromkeys(f"`{column.kind}`" for column in fields)
        lines.append(f"| {', '.join(names)} | {', '.join(kinds)} | {meaning} |")
    return "".join(f"{line}\n" for line in lines)


def filled(page: str) -> str:
    """Return the text of a page with its tables of columns replaced."""
    return TABLE.sub(
        lambda place: f"{place[1]} {place[2]}{place[3]}{table(STAGES[place[1]].tables[place[2]])}",
        page,
    )


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

"""Tables and figures as a report shows them: their files, and their places on a page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from analysis.report.style import render
from analysis.report.table import Table
from analysis.report.text import markdown


def files(tables: Sequence[Table], figures: Mapping[str, Figure]) -> dict[str, bytes]:
    """Return the files of tables and figures, by path in the report."""
    found = {}
    for table in tables:
        found[f"tables/{table.name}.csv"] = table.csv().encode()
        found[f"tables/{table.name}.tex"] = table.latex().encode()
    for name, figure in figures.items():
        for kind in ("pdf", "png"):
            found[f"figures/{name}.{kind}"] = render(figure, kind)
    return found


def sections(
    order: Iterable[str],
    tables: Sequence[Table],
    figures: Collection[str],
    title: Callable[[str], str],
    captions: Mapping[str, str],
) -> list[str]:
    """Return the Markdown of tables and figures as parts of a page, with links to their files.

    Args:
        order: names of tables and figures; those that are not there are left out.
        tables: they bring their captions.
        figures: names.
        title: gives the heading of a name.
        captions: of the figures.
    """
    by_name = {table.name: table for table in tables}
    parts = []
    for name in order:
        if name in by_name:
            table = by_name[name]
            parts += [
                f"## {title(name)}",
                markdown(table.caption),
                table.markdown().strip(),
                f"[CSV](tables/{name}.csv) · [LaTeX](tables/{name}.tex)",
            ]
        elif name in figures:
            parts += [
                f"## {title(name)}",
                markdown(captions[name]),
                f"![{title(name)}](figures/{name}.png)",
                f"[PDF](figures/{name}.pdf)",
            ]
    return parts


def heading(text: str) -> str:
    """Return the heading of a part of a page."""
    return f"# {markdown(text)}"


def listing(lines: Iterable[str]) -> str:
    """Return lines of plain text as a list."""
    return "\n".join(f"- {markdown(line)}" for line in lines)


def setup_table(setups: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the facts of all targets side by side; every target has the same facts."""
    facts = next(iter(setups.values()))
    rows = [
        ["", *setups],
        *([fact, *(str(known[fact]) for known in setups.values())] for fact in facts),
    ]
    lines = [f"| {' | '.join(map(markdown, row))} |" for row in rows]
    return "\n".join([lines[0], "|---" * (1 + len(setups)) + "|", *lines[1:]])

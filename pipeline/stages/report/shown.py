"""Tables and figures as a report shows them: their files, and their places on a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.report.escape import markdown
from analysis.report.figure import Figure
from analysis.report.table import Table


@dataclass(frozen=True)
class Part:
    """A part of a page: paragraphs in Markdown, then tables and figures in their order."""

    opening: Sequence[str]
    shown: Sequence[Table | Figure]

    @classmethod
    def of(cls, opening: Sequence[str], shown: Iterable[Table | Figure | None]) -> Part:
        """Return the part without the tables and figures that the study does not fill."""
        return cls(opening, [item for item in shown if item is not None])

    def markdown(self) -> str:
        """Return the text, with links to the files."""
        parts = [*self.opening, *(text for item in self.shown for text in section(item))]
        return "\n\n".join(part.strip() for part in parts) + "\n"

    def files(self) -> dict[str, bytes]:
        """Return the files of the tables and figures, by path in the report."""
        return {path: content for item in self.shown for path, content in files(item)}


def files(item: Table | Figure) -> list[tuple[str, bytes]]:
    """Return path and content of the files of a table or figure, as `section` links them."""
    if isinstance(item, Table):
        place = f"tables/{item.name}"
        return [(f"{place}.csv", item.csv().encode()), (f"{place}.tex", item.latex().encode())]
    place, csv = f"figures/{item.name}", item.csv()
    drawn = [(f"{place}.{kind}", item.render(kind)) for kind in ("pdf", "png")]
    return drawn if csv is None else [*drawn, (f"{place}.csv", csv.encode())]


def section(item: Table | Figure) -> list[str]:
    """Return the paragraphs of a table or figure in Markdown."""
    opening = [f"## {item.title}", markdown(item.caption)]
    if isinstance(item, Table):
        place = f"tables/{item.name}"
        return [*opening, item.markdown().strip(), f"[CSV]({place}.csv) · [LaTeX]({place}.tex)"]
    place = f"figures/{item.name}"
    links = f"[PDF]({place}.pdf)" + ("" if item.data is None else f" · [CSV]({place}.csv)")
    return [*opening, f"![{item.title}]({place}.png)", links]


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

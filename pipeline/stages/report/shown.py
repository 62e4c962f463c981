"""Tables and figures as a report shows them: their files, and their places on the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from analysis.report.escape import markdown
from analysis.report.figure import Figure
from analysis.report.table import Table


@dataclass(frozen=True)
class Part:
    """A part of a report: a heading, plain sentences, then tables and figures in their order."""

    title: str
    says: Sequence[str]
    shown: Sequence[Table | Figure]

    @classmethod
    def of(cls, title: str, says: Sequence[str], shown: Iterable[Table | Figure | None]) -> Part:
        """Return the part without the tables and figures that the study does not fill."""
        return cls(title, says, [item for item in shown if item is not None])

    def listing(self, place: str = "") -> str:
        """Return the part of the list of files, in Markdown.

        Args:
            place: the directory of its files in the report, with a slash; empty: the report's own.
        """
        lines = [
            f"- {markdown(item.title)}: "
            + ", ".join(f"[{path.rpartition('.')[2].upper()}]({place}{path})" for path in paths)
            for item in self.shown
            if (paths := names(item))
        ]
        return "\n".join([f"## {markdown(self.title)}", "", *lines, ""])

    def files(self) -> dict[str, bytes]:
        """Return the files of the tables and figures, by path in the report."""
        return {path: content for item in self.shown for path, content in files(item)}


def names(item: Table | Figure) -> list[str]:
    """Return the paths of the files of a table or figure."""
    if isinstance(item, Table):
        return [f"tables/{item.name}.{kind}" for kind in ("csv", "tex")]
    return [f"figures/{item.name}.{kind}" for kind in ("pdf", "png", "csv")]


def files(item: Table | Figure) -> list[tuple[str, bytes]]:
    """Return path and content of the files of a table or figure."""
    if isinstance(item, Table):
        contents = [item.csv().encode(), item.latex().encode()]
    else:
        contents = [item.render("pdf"), item.render("png"), item.csv().encode()]
    return list(zip(names(item), contents, strict=True))

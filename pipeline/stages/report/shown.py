"""Tables and figures as a report shows them: their files, and their places on the page."""

from __future__ import annotations

from typing import Any

from analysis.report import records, render
from analysis.report.escape import markdown
from analysis.report.records import Part
from analysis.report.table import Table


def listing(part: Part) -> str:
    """Return the part of the list of files, in Markdown."""
    lines = [
        f"- {markdown(item.title)}: "
        + ", ".join(f"[{path.rpartition('.')[2].upper()}]({part.place}{path})" for path in paths)
        for item in part.shown
        if (paths := names(item))
    ]
    return "\n".join([f"## {markdown(part.title)}", "", *lines, ""])


def names(item: Any) -> list[str]:
    """Return the paths of the files of a table or figure."""
    if isinstance(item, records.Table | records.Figure):
        return render.names(item)
    if isinstance(item, Table):
        return [f"tables/{item.name}.{kind}" for kind in ("csv", "tex")]
    return [f"figures/{item.name}.{kind}" for kind in ("pdf", "png", "csv")]


def files(item: Any) -> list[tuple[str, bytes]]:
    """Return path and content of the files of a table or figure."""
    if isinstance(item, records.Table | records.Figure):
        return render.files(item)
    if isinstance(item, Table):
        contents = [item.csv().encode(), item.latex().encode()]
    else:
        contents = [item.render("pdf"), item.render("png"), item.csv().encode()]
    return list(zip(names(item), contents, strict=True))

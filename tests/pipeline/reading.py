"""What a reader of a report's pages sees: their text, a table's rows as in Markdown."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

BLOCKS = {"p", "h1", "h2", "h3", "summary", "li", "dt", "dd", "figcaption", "div", "section"}


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text: list[str] = []
        self.links: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in ("script", "style")
        self.links += [value for name, value in attrs if name in ("href", "src") and value]
        if tag == "tr":
            self.text.append("\n|")
        elif tag in BLOCKS:
            self.text.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style")
        if tag in ("td", "th"):
            self.text.append(" |")
        elif tag in BLOCKS:
            self.text.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden and data.strip():
            self.text.append(f" {' '.join(data.split())}")


def page_text(report: Path) -> str:
    """The text of a report's pages, line by line; a row of a table as ``| a | b |``."""
    reader = _Reader()
    for name in ("index.html", "tables.html", "timings/tables.html"):
        if (report / name).is_file():
            reader.feed((report / name).read_text(encoding="utf-8"))
    lines = re.sub(r"\n\s*\n+", "\n", "".join(reader.text)).splitlines()
    return "\n".join(line.strip() for line in lines)


def page_links(page: Path) -> list[str]:
    """The files that a page links or shows."""
    reader = _Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    return [link for link in reader.links if not link.startswith(("#", "data:"))]

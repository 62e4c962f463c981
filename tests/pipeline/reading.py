"""What a reader of a report's page sees: its text, a table's rows as in Markdown."""

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
    """The text of a report's page, line by line; a row of a table as ``| a | b |``."""
    reader = _Reader()
    reader.feed((report / "index.html").read_text(encoding="utf-8"))
    lines = re.sub(r"\n\s*\n+", "\n", "".join(reader.text)).splitlines()
    return "\n".join(line.strip() for line in lines)


def page_links(report: Path) -> list[str]:
    """What a report's page links or shows besides itself."""
    reader = _Reader()
    reader.feed((report / "index.html").read_text(encoding="utf-8"))
    return [link for link in reader.links if not link.startswith(("#", "data:"))]


def unnamed(report: Path) -> list[str]:
    """The tables and figures of a report that its page does not name."""
    page = page_text(report)
    files = [*report.rglob("tables/*"), *report.rglob("figures/*")]
    names = {path.relative_to(report).with_suffix("").as_posix() for path in files}
    return [name for name in sorted(names) if name not in page]

"""What a reader of a report's page sees: its text, a table's rows as in Markdown."""

import re
from html.parser import HTMLParser

BLOCKS = {"p", "h1", "h2", "h3", "summary", "li", "dt", "dd", "figcaption", "div", "section"}


class _Reader(HTMLParser):
    def __init__(self, report):
        super().__init__(convert_charrefs=True)
        self.text, self.links, self._hidden = [], [], 0
        self.feed((report / "index.html").read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self._hidden += tag in ("script", "style")
        self.links += [value for name, value in attrs if name in ("href", "src") and value]
        self.text.append("\n|" if tag == "tr" else "\n" if tag in BLOCKS else "")

    def handle_endtag(self, tag):
        self._hidden -= tag in ("script", "style")
        self.text.append(" |" if tag in ("td", "th") else "\n" if tag in BLOCKS else "")

    def handle_data(self, data):
        if not self._hidden and data.strip():
            self.text.append(f" {' '.join(data.split())}")


def page_text(report):
    """The text of a report's page, line by line; a row of a table as ``| a | b |``."""
    lines = re.sub(r"\n\s*\n+", "\n", "".join(_Reader(report).text)).splitlines()
    return "\n".join(line.strip() for line in lines)


def page_links(report):
    """What a report's page links or shows besides itself."""
    return [link for link in _Reader(report).links if not link.startswith(("#", "data:"))]


def unnamed(report):
    """The tables and figures of a report that its page does not name."""
    page = page_text(report)
    files = [*report.rglob("tables/*"), *report.rglob("figures/*")]
    names = {path.relative_to(report).with_suffix("").as_posix() for path in files}
    return [name for name in sorted(names) if name not in page]

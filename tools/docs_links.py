"""A mkdocs hook that turns links to files outside docs/ into plain names.

On a code host these links lead to files of the repository, which the site does not contain. A line
that is only the link ``[HEADING](../README.md)`` becomes that section of README.md.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

SECTION = re.compile(r"^\[(.+)\]\(\.\./README\.md\)$", re.M)
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Return the Markdown of a page with its links out of docs/ replaced by text."""
    docs = Path(config["docs_dir"])
    place = PurePosixPath(page.file.src_uri).parent

    def text(match: re.Match[str]) -> str:
        inside = (docs / place / match[2]).resolve().is_relative_to(docs.resolve())
        return match[0] if inside else match[1]

    readme = (docs.parent / "README.md").read_text(encoding="utf-8")

    def section(match: re.Match[str]) -> str:
        heading = f"## {match[1]}\n"
        return heading + readme.split(heading)[1].split("\n## ")[0]

    return LINK.sub(text, SECTION.sub(section, markdown))

"""The site of docs/: it builds without a warning, and its pages load nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pipeline.paths import ROOT

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}


class _Loaded(HTMLParser):
    """What a page loads by itself; links that a reader follows are not among it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev", "edit"):
            self.found.append(given.get("href") or "")
        elif tag in LOADED:
            self.found.append(given.get(LOADED[tag]) or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="mkdocs-material is not installed (extra dev)")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed (extra dev)")
    place = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return place


def test_every_page_of_the_docs_is_in_the_site(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in
             (ROOT / "docs").rglob("*.md")}  # fmt: skip
    assert pages <= {path.relative_to(site) for path in site.rglob("*.html")}
    start = (site / "index.html").read_text(encoding="utf-8")
    for page in pages:
        assert f'href="{page.as_posix()}"' in start or page.name == "index.html", page
    assert 'id="a-decision-in-five-rows"' in start  # a section of README.md
    assert (site / "search/search_index.js").is_file()  # for pages opened from a directory


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    for path in site.rglob("*.html"):
        reader = _Loaded()
        reader.feed(path.read_text(encoding="utf-8"))
        assert len(reader.found) > 3
        for address in reader.found:
            assert not re.match(r"(?:https?:)?//", address), f"{path.name}: {address}"
            if path.name != "404.html" and not address.startswith("data:"):  # made for a server
                assert (path.parent / address.split("#")[0].split("?")[0]).exists(), address
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(\s*[\"']?(?:https?:)?//", path.read_text(encoding="utf-8"))


def test_the_library_is_described(site: Path) -> None:
    text = (site / "api.html").read_text(encoding="utf-8")
    for name in ("TopK.from_logits", "certify_logits", "StrictGreedy", "solve", "Study"):
        assert f".{name}" in text, name
    assert "::: analysis" not in text
    assert "<blockquote>" not in text  # what a doctest becomes that is not taken for code
    assert text.count("&gt;&gt;&gt;") > 20

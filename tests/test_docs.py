"""What the pages name exists, and CONTRIBUTING.md names every folder."""

from __future__ import annotations

import pkgutil
import re
from importlib.util import find_spec

from pipeline.paths import ROOT

DOCS = [page for page in (ROOT / "docs").glob("*.md") if page.name != "log.md"]  # has old names
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
TOP = "(?:analysis|pipeline|conf|tests|benchmarks|assets|tools)"


def test_the_folders_are_those_of_the_tree() -> None:
    tree = (ROOT / "CONTRIBUTING.md").read_text().split("## Where things are")[1].split("\n## ")[0]
    named = re.findall(r"^ {4}( *)(\w+)/ ", tree, re.M)
    found, top = set(), ""
    for indent, name in named:
        top = top if indent else name
        found.add(f"{top}/{name}" if indent else name)
    for top in ("analysis", "pipeline"):
        folders = {path.parent for path in (ROOT / top).glob("*/*.py")}
        assert {f"{top}/{path.name}" for path in folders} <= found
    assert not [path for path in found if not (ROOT / path).is_dir()]


def test_every_path_and_module_on_a_page_exists() -> None:
    for page in PAGES:
        text = page.read_text()
        for path in re.findall(rf"(?<![\w/.-]){TOP}/[\w./-]*\w", text):
            assert (ROOT / path).exists(), f"{page.name}: {path}"
        for name in re.findall(r"(?<![\w/.-])(?:analysis|conf|pipeline)(?:\.[a-zA-Z]\w*)+", text):
            assert pkgutil.resolve_name(name), page
        for name in re.findall(r"python -m ([\w.]+\w)(?![\w<])", text):
            assert find_spec(name), f"{page.name}: python -m {name}"

"""What the pages name exists, and the tree of CONTRIBUTING.md is complete."""

from __future__ import annotations

import pkgutil
import re
from importlib.util import find_spec

from pipeline.paths import ROOT

DOCS = [page for page in (ROOT / "docs").glob("*.md") if page.name != "log.md"]  # has old names
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
TOP = "(?:analysis|pipeline|conf|tests|benchmarks|assets|tools)"


def annotated() -> set[str]:
    tree = (ROOT / "CONTRIBUTING.md").read_text().split("## Where things are")[1].split("\n## ")[0]
    found, above = set(), [""]
    for indent, names in re.findall(r"^ {4}( *)((?:\S+ {1,2}(?=\S+/ )|\S+(?= ))+)", tree, re.M):
        above = above[: len(indent) // 4 + 1]
        found |= {above[-1] + name.strip("/") for name in names.split()}
        above.append(above[-1] + names.split()[0])
    return found


def test_the_annotated_tree_is_the_tree() -> None:
    assert not [path for path in annotated() if not (ROOT / path).exists()]
    found = {path for top in ("analysis", "pipeline") for path in (ROOT / top).rglob("[!_]*.py")}
    modules = {path.relative_to(ROOT) for path in found if "build" not in path.parts}
    assert {path.as_posix() for path in modules} - annotated() == set()


def test_every_path_and_module_on_a_page_exists() -> None:
    for page in PAGES:
        text = page.read_text()
        for path in re.findall(rf"(?<![\w/.-]){TOP}/[\w./-]*\w", text):
            assert (ROOT / path).exists(), f"{page.name}: {path}"
        for name in re.findall(r"(?<![\w/.-])(?:analysis|conf|pipeline)(?:\.[a-zA-Z]\w*)+", text):
            assert pkgutil.resolve_name(name), page
        for name in re.findall(r"python -m ([\w.]+\w)(?![\w<])", text):
            assert find_spec(name), f"{page.name}: python -m {name}"

"""What the pages name exists, and CONTRIBUTING.md names every folder."""

import csv
import pkgutil
import re
import tomllib
from importlib.util import find_spec

from pipeline.paths import ROOT

DOCS = list((ROOT / "docs").glob("*.md"))
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
TOP = "(?:analysis|pipeline|conf|tests|benchmarks|assets|tools)"


def test_the_folders_are_those_of_the_tree():
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


def test_every_path_and_module_on_a_page_exists():
    for page in PAGES:
        text = page.read_text()
        for path in re.findall(rf"(?<![\w/.-]){TOP}/[\w./-]*\w", text):
            assert (ROOT / path).exists(), f"{page.name}: {path}"
        for name in re.findall(r"(?<![\w/.-])(?:analysis|conf|pipeline)(?:\.[a-zA-Z]\w*)+", text):
            assert pkgutil.resolve_name(name), page
        for name in re.findall(r"python -m ([\w.]+\w)(?![\w<])", text):
            assert find_spec(name), f"{page.name}: python -m {name}"


def anchor(heading):
    """The name that a code host gives a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_every_link_of_a_page_leads_somewhere():
    for page in PAGES:
        text = re.sub(r"^```[\s\S]*?^```", "", page.read_text(), flags=re.M)
        for path, name in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
            target = page.parent / path if path else page
            assert target.exists(), f"{page.name}: {path}"
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.M) if name else []
            assert not name or name in map(anchor, headings), f"{page.name}: {path}#{name}"


def test_every_element_of_the_papers_has_a_place_or_a_reason():
    """Of docs/seeds.md: its tables, figures, code and tests are there."""
    page = (ROOT / "docs/seeds.md").read_text()
    code = "".join(path.read_text() for path in (ROOT / "analysis/report").glob("*.py"))
    shown = set(re.findall(r'^ {8}"([a-z]\w+)",\n', code, re.M))  # names of tables and figures
    shown |= {"table5", "table6", *(f"figure{at}" for at in range(2, 6))}
    shown |= {"decoding_thresholds", "accuracy_thresholds"}
    rows = [line.strip("| ").split(" | ") for line in re.findall(r"^\| .*", page, re.M)]
    rows = [row for row in rows if row[0] != "element"]
    assert len({row[0] for row in rows}) >= 130
    for element, where, code in rows:
        assert {*re.findall(r"\*(\w+)\*", where)} <= shown, element
        if code == "–":
            assert "not here: " in where, element
            continue
        names = code.replace("`", "").split(", ")
        tests = [name.split("::") for name in names if "::" in name]
        assert len(names) > len(tests) > 0, element
        for name in names[: -len(tests)]:
            assert pkgutil.resolve_name(name), element
        for path, test in tests:
            assert re.search(rf"^def {test}\(", (ROOT / path).read_text(), re.M), element


def test_every_measured_table_names_its_command_and_date():
    page = (RESULTS / "README.md").read_text()
    tables = {path.name: path for path in RESULTS.glob("*.csv")}
    assert set(re.findall(r"^\| `(\w+\.csv)` \|", page, re.M)) == tables.keys()
    named = set(re.findall(r"`(\w+\.csv)`", (ROOT / "docs" / "log.md").read_text()))
    assert named <= tables.keys()
    for path in tables.values():
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        assert len(rows) > 1, path
        assert {len(row) for row in rows} == {len(rows[0])}, path


def test_one_version_is_released():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = re.findall(r"^version: (\S+)", (ROOT / "CITATION.cff").read_text(), re.M)
    latest = re.search(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert latest
    assert [project["version"], *cited] == [latest[1]] * 2

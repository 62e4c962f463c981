"""What the pages name exists, and the commands and keys that they print are understood."""

import csv
import itertools
import pkgutil
import re
import shlex
import tomllib
import types
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from analysis.rules import BUILT_IN
from conf import schema
from pipeline.core.paths import CONF, ROOT
from pipeline.settings.composition import OVERRIDE, composed, settings_of
from pipeline.settings.criteria import build_rules
from pipeline.settings.method_config import build_methods

DOCS = list((ROOT / "docs").glob("*.md"))
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
TOP = "(?:analysis|pipeline|conf|tests|benchmarks|assets|tools)"


def test_the_folders_are_those_of_the_tree():
    tree = (ROOT / "CONTRIBUTING.md").read_text().split("## Where things are")[1].split("\n## ")[0]
    top, named = "", set()
    for indent, name in re.findall(r"^ {4}( *)(\w+)/ ", tree, re.M):
        top = top if indent else name
        named.add(ROOT / top / name if indent else ROOT / name)
    packages = (
        path.parent for top in ("analysis", "pipeline") for path in (ROOT / top).glob("*/*.py")
    )
    assert set(packages) <= named
    assert all(path.is_dir() for path in named)


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
    tables = {path.name for path in RESULTS.glob("*.csv")}
    assert set(re.findall(r"^\| `(\w+\.csv)` \|", page, re.M)) == tables
    named = set(re.findall(r"`(\w+\.csv)`", (ROOT / "docs" / "log.md").read_text()))
    assert named <= tables


def test_every_interval_in_the_readme_is_in_a_measured_table():
    columns = {"machines.csv": ("head", "lookup"), "carries_over.csv": ("",)}
    measured = set()
    for name, quantities in columns.items():
        with (RESULTS / name).open() as file:
            for row, of in itertools.product(list(csv.DictReader(file)), quantities):
                named = (of or "value", *(f"{of}_{end}".strip("_") for end in ("low", "high")))
                measured.add(tuple(row[column] for column in named))
    found = re.findall(r"([\d.]+)(?: %)? \[([\d.]+), ([\d.]+)\]", (ROOT / "README.md").read_text())
    assert len(found) > 8
    assert set(found) <= measured


def test_the_readmes_machines_are_the_measured_ones():
    with (RESULTS / "machines.csv").open() as file:
        rows = list(csv.DictReader(file))
    page = (ROOT / "README.md").read_text()
    table = page.split("| machine | loop |")[1].split("\n\n")[0].splitlines()[2:]
    printed = [line.strip("| ").split(" | ") for line in table]
    wanted = [[row["machine"], row["loop"], row["pass_of_3"] or "–"] for row in rows]
    assert [cells[:3] for cells in printed] == wanted
    assert [cells[-1] for cells in printed] == [row["date"] for row in rows]


def table_of(text, heading):
    """The cells of a table's rows, by the beginning of its heading."""
    lines = text.split(heading)[1].split("\n\n")[0].splitlines()[2:]
    return [line.strip("| ").split(" | ") for line in lines]


def measured_rows(name):
    with (RESULTS / name).open() as file:
        return list(csv.DictReader(file))


def numbers_in(text):
    return set(re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?!\w)", text))


def test_the_readme_has_at_most_800_words():
    assert len((ROOT / "README.md").read_text().split()) <= 800


def test_what_carries_over_is_in_the_rows_of_its_question():
    """Each number of the first table; the row on MARS is that of the scored answers."""
    rows = measured_rows("carries_over.csv")
    table = table_of((ROOT / "README.md").read_text(), "| question | measured |")
    assert list(dict.fromkeys(row["question"] for row in rows)) == [
        re.sub(r" \(.*?\)", "", question) for question, *_ in table
    ]
    for question, measured, _ in table:
        about = [row for row in rows if row["question"] == re.sub(r" \(.*?\)", "", question)]
        known = {cell for row in about for cell in row.values()}
        known |= numbers_in(" ".join(row["quantity"] for row in about))
        found = numbers_in(re.sub(r"\]\(.*?\)", "", measured))
        assert found <= known, question
        assert {row["value"] for row in about} <= found
    (mars,) = [row for row in measured_rows("smollm2_answers.csv") if row["rule"] == "MARS"]
    assert [row["value"] for row in rows if "MARS" in row["quantity"]] == [
        mars["difference_points"].lstrip("-")
    ]


def test_the_readme_has_no_other_numbers():
    """Beside the two tables: names, versions, the paper's tables, the level."""
    text = (ROOT / "README.md").read_text()
    for heading in ("| question | measured |", "| machine | loop |"):
        text = text.replace(text.split(heading)[1].split("\n\n")[0], "")
    text = re.sub(r"```[\s\S]*?```|\]\(.*?\)", "", text)
    text = re.sub(r"^    (?:(?!  #).)*", "", text, flags=re.M)  # commands, not their comments
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest, last = re.findall(r"[>=<]=?(3\.\d+)\b(?!\.)", project["requires-python"])
    assert f"Python {oldest} to 3.{int(last[2:]) - 1}" in text
    text = re.sub(r"Python 3\.\d+ to 3\.\d+|Tables 1 to [56]|Figures 1 to 5", "", text)
    text = re.sub(r"SmolLM2-135M|Qwen3-1\.7B|95 % intervals|drafts of 2|pass of 3", "", text)
    versions = re.findall(r"^## (\d+\.\d+)\.", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert numbers_in(text) <= set(versions)


def test_the_page_says_where_study_quick_runs():
    (quick,) = settings(["study=quick"])
    said = {"auto": "take a GPU where there is one", "cpu": "run on the CPU"}
    assert f"Both {said[quick.device.name]}" in (ROOT / "docs/run.md").read_text()


def test_seconds_from_nothing_on_the_page_are_the_measured_ones():
    table = table_of((ROOT / "docs/run.md").read_text(), "| command | machine | version |")
    assert table == [
        [f"`{row['command']}`", row["machine"], row["version"], row["seconds"]]
        for row in measured_rows("from_nothing.csv")
    ]


def test_the_coverage_of_intervals_on_the_page_is_the_measured_one():
    with (RESULTS / "bootstrap_coverage.csv").open() as file:
        rows = list(csv.DictReader(file))
    measured = {(row["quantity"], row["prompts"]): row for row in rows}
    page = (ROOT / "docs/method.md").read_text()
    table = page.split("| % of 1,000 studies")[1].split("\n\n")[0].splitlines()
    printed = {}
    for line in table[2:]:
        quantity, *cells = line.strip("| ").split(" | ")
        printed |= {
            (quantity, n): cell for n, cell in zip(("6", "10", "30", "100"), cells, strict=True)
        }
    assert printed == {
        key: f"{100 * float(row['coverage']):.1f} ({100 * float(row['plain']):.1f})"
        for key, row in measured.items()
    }
    assert {row["studies"] for row in rows} == {"1000"}


def test_the_usual_drafters_on_the_page_are_the_measured_ones():
    with (RESULTS / "usual_drafter.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["bin"] == "all"]
    names = ("certified", "predicted", "measured", "laplace", "uniform", "mean_kl")
    page = (ROOT / "docs/method.md").read_text()
    table = page.split("| target, drafter |")[1].split("\n\n")[0].splitlines()[2:]
    assert [line.strip("| ").split(" | ") for line in table] == [
        [f"{row['target']}, {row['drafter']}", *(f"{100 * float(row[name]):.1f}" for name in names)]
        for row in rows
        if row["rule"] == "greedy"
    ]


def test_one_version_is_released():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = re.findall(r"^version: (\S+)", (ROOT / "CITATION.cff").read_text(), re.M)
    latest = re.search(r"^## (\d\S*) \(\d", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert latest
    assert [project["version"], *cited] == [latest[1]] * 2


COMMAND = re.compile(r"(?:^|\s)(?:python -m ([\w.]+\w)(?!\.?[\w<])|make (?=[a-z]))(.*)", re.S)


def commands(page):
    """Yield the module of every command of a page (make: of a Makefile), and its arguments."""
    text = page.read_text().replace("\\\n", " ")
    code = re.compile(r"^ {4,}.*$|^```[\s\S]*?^```$", re.M)
    blocks = "\n".join(code.findall(text)).splitlines()
    spans = re.findall(r"`((?:python -m|make) [^`]+)`", code.sub("", text))
    for line in [*blocks, *(span.replace("\n", " ") for span in spans)]:
        if found := COMMAND.search(line):
            words = shlex.split(found[2].partition("; do")[0], comments=True)
            yield found[1] or "make", words


@cache
def of_groups(*groups):
    """Compose files of conf/ once for all commands that ask for the same ones."""
    return composed(groups)


def settings(overrides):
    """Yield what a command sets: of a sweep, what its first and its last point set."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    swept = [one.is_sweep_override() for one in parsed]
    for at in (0, -1) if any(swept) else (0,):
        groups, keys = [], {}
        for one, many in zip(parsed, swept, strict=True):
            value = list(one.sweep_iterator())[at] if many else one.value()
            key = one.get_key_element()
            if one.is_delete():
                groups.append(str(one.input_line))
            elif key.startswith("hydra.") or (CONF / key.lstrip("+")).is_dir():
                groups.append(f"{key}={one.get_value_element_as_str() if not many else value}")
            else:
                keys[key] = value
        config = of_groups(*groups).copy()
        for key, value in keys.items():
            OmegaConf.update(config, key.lstrip("+"), value, force_add=key.startswith("+"))
        yield settings_of(config)


def understood(module, words, place):
    """The settings that a command asks for; a wrong target, flag, key or value fails."""
    if module == "make":
        makefile = (ROOT / "Makefile").read_text()
        given = dict(word.split("=", 1) for word in words if "=" in word)
        for target in (word for word in words if "=" not in word):
            assert re.search(rf"^{target}:", makefile, re.M), target
        assert given.keys() <= set(re.findall(r"\$\((\w+)\)", makefile))
        study = given.get("STUDY")
        return list(settings([f"study={study}"])) if study else []
    assert find_spec(module), module
    other = ("hydra/launcher=", *(["lengths=", "rounds="] * (module == "benchmarks.decoding")))
    overrides = [
        word
        for word in words
        if OVERRIDE.match(word) and "=http" not in word and not word.startswith(other)
    ]
    origin = Path(find_spec(module).origin or "")
    package = origin.with_name("__main__.py")
    source = (package if origin.name == "__init__.py" else origin).read_text()
    flags = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert not [flag for flag in flags - {"--config-dir", "--help"} if f'"{flag}"' not in source]
    if "--config-dir" in words:
        folder = place / words[words.index("--config-dir") + 1]
        overrides.append(f"hydra.searchpath=[file://{folder}]")
    return list(settings(overrides))


def test_every_command_is_understood(tmp_path):
    """With the YAML files of the pages, whose first line names them."""
    texts = "\n".join(page.read_text() for page in PAGES)
    for name, body in re.findall(r"^```yaml\n# (my_conf/\S+)\n([\s\S]*?)^```", texts, re.M):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(body)
    for page in PAGES:
        for module, words in commands(page):
            try:
                for one in understood(module, words, tmp_path):
                    own = "my_rules" in str(one.criteria)
                    assert own or build_rules(one.criteria)
                    build_methods(one.decoding.methods, [] if own else build_rules(one.criteria)[1])
            except Exception as error:
                raise AssertionError(f"{page.name}: {module} {shlex.join(words)}") from error


def known(key):
    """Return whether the configuration may have a key: a parameter of a rule below criteria."""
    kind = schema.Config
    for name in key.split("."):
        options = [one for one in get_args(kind) if one is not types.NoneType]
        kind = options[0] if get_origin(kind) in (Union, types.UnionType) else kind
        if kind is Any:
            return key.partition(".")[0] != "criteria" or any(
                name in rule.__dataclass_fields__ for rule in BUILT_IN.values()
            )
        if get_origin(kind) is dict:
            kind = get_args(kind)[1]
        elif name in getattr(kind, "model_fields", {}):
            kind = kind.model_fields[name].annotation
        else:
            return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_key_is_one_of_the_configuration(page):
    groups = "|".join(schema.Config.model_fields)
    named = re.findall(rf"`\+?((?:{groups})(?:\.\w+)+)[`=<]", page.read_text())
    assert [key for key in named if not known(key)] == []

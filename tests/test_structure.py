"""What the tree promises: import directions and lazy imports."""

import ast
from functools import cache
from importlib import import_module

import pytest

from conf import schema
from pipeline.core.paths import ROOT
from pipeline.study import STAGES, Study
from tests.conftest import HEAVY

ALLOWED = {"analysis": {"analysis"}, "conf": {"conf"}, "pipeline": {"analysis", "conf", "pipeline"}}


def files(folder):
    return sorted((ROOT / folder).rglob("*.py"))


@cache
def imported(path, types=True):
    """All names that a file imports, at any depth; without `types`, not those for types alone."""
    found = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if not types and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = path.relative_to(ROOT).parts[: -node.level] if node.level else ()
            module = ".".join([*parts, *([node.module] if node.module else [])])
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("folder", sorted(ALLOWED))
def test_import_directions(folder):
    assert files(folder)
    for path in files(folder):
        for name in imported(path):
            top = name.split(".")[0]
            if top in {"analysis", "conf", "pipeline", "tests", "benchmarks"}:
                assert top in ALLOWED[folder], f"{path} imports {name}"


ROOMS = {  # what each may import, besides itself: nothing that is made of it
    "analysis": {  # "" are the modules that are in no room: steps and rules
        "": set(),
        "certificates": {"", "statistics"},
        "statistics": {""},
        "trees": {""},
        "acceptance": {"", "certificates", "statistics"},
        "decoding": {"", "statistics", "trees"},
        "report": {"", "certificates", "statistics", "trees", "acceptance", "decoding"},
    },
    "pipeline": {
        "core": set(),
        "engines": {"core"},
        "inputs": {"core", "engines", "models", "settings"},
        "settings": {"core", "drafters"},
        "models": {"core", "inputs"},
        "drafters": {"core", "decoding", "models"},
        "decoding": {"core", "drafters", "models", "settings"},
        "stages": {"core", "decoding", "drafters", "engines", "inputs", "models", "settings"},
    },
    "pipeline.engines": {  # "" are the engines, what they count and their pages of metrics
        "": set(),
        "answers": {""},
        "speed": {"", "answers"},
        "asking": {"", "answers"},
    },
}


@pytest.mark.parametrize(("top", "room"), [(top, room) for top in ROOMS for room in ROOMS[top]])
def test_rooms_import_downward(top, room):
    """Types aside: a stage's plan is told the study, which knows all stages."""
    folder = ROOT / top.replace(".", "/")
    found = files(folder / room) if room else sorted(folder.glob("*.py"))
    modules = [path for path in found if path != folder / "__init__.py"]
    allowed = [f"{top}.{other}." for other in (room, *ROOMS[top][room]) if other]
    if not room or "" in ROOMS[top][room]:
        alone = folder.glob("*.py")
        allowed += [f"{top}.{path.stem}." for path in alone] + [f"{top}.RuleError."]
    assert modules
    for path in modules:
        for name in imported(path, types=False) - {top}:
            if name.startswith(f"{top}."):
                assert f"{name}.".startswith(tuple(allowed)), f"{path} imports {name}"


def test_analysis_touches_no_files_models_or_configuration():
    banned = {*HEAVY, "hydra", "omegaconf", "pyarrow", "pathlib", "os", "shutil", "subprocess"}
    banned -= {"numba", "matplotlib"}
    for path in files("analysis"):
        assert not {name.split(".")[0] for name in imported(path)} & banned, path


def test_compiled_code_uses_only_what_its_own_file_defines():
    """Numba's cache sees changes of this file alone; what it took from others would stay."""
    compiled = [path for path in files("analysis") if "numba.njit" in path.read_text()]
    assert compiled
    for path in compiled:
        module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        imports = [
            node for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.ImportFrom) and node.level
        ]  # fmt: skip
        foreign = {alias.asname or alias.name for node in imports for alias in node.names}
        functions = [value for value in vars(module).values() if hasattr(value, "py_func")]
        assert functions
        for function in functions:
            used = foreign & set(function.py_func.__code__.co_names)
            assert not used, f"{path}: {function.py_func.__name__} uses {used}"


def test_stages_do_not_import_each_other():
    rooms = {f"pipeline.stages.{name}." for name in STAGES}
    for path in files("pipeline"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        others = tuple(room for room in rooms if not f"{module}.".startswith(room))
        for name in imported(path):  # outside their own folder they are found by name
            assert not f"{name}.".startswith(others), f"{path} imports {name}"


def test_the_stages_are_in_order_and_made_from_what_they_declare(tmp_path):
    assert tuple(STAGES) == schema.STAGE_NAMES
    tasks = Study("study=mini", f"outputs={tmp_path}").tasks
    for at, (name, stage) in enumerate(STAGES.items()):
        assert stage.name == name
        assert set(stage.upstream) <= set(list(STAGES)[:at]), name
        assert tasks[name], name
        for task in tasks[name]:
            assert {one.stage.name for one in task.inputs.values()} <= set(stage.upstream), name


def test_nothing_outside_the_tests_is_collected_as_a_test():
    """pytest collects classes and functions by name, also where it is given a module to check."""
    for folder in ("analysis", "pipeline", "conf", "tools", "benchmarks"):
        for path in files(folder):
            names = [
                node.name
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.ClassDef | ast.FunctionDef)
            ]
            assert not [name for name in names if name.startswith(("Test", "test_"))], path


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("pipeline.stored", "read_steps"),
        ("analysis.acceptance.summary", "margins"),
        ("analysis.report.acceptance", "margin_figure"),
        ("analysis.rule_config", "build"),
    ],
)
def test_imports_of_older_notebooks_stay(module, name):
    assert callable(getattr(import_module(module), name))

"""What the tree promises: import directions and lazy imports."""

import ast
from functools import cache

import pytest

from conf import schema
from pipeline.core.paths import ROOT
from pipeline.study import STAGES, Study
from tests.conftest import HEAVY

ALLOWED = {"analysis": {"analysis"}, "conf": {"conf"}, "pipeline": {"analysis", "conf", "pipeline"}}


def files(folder):
    return sorted((ROOT / folder).rglob("*.py"))


@cache
def imported(path):
    """All names that a file imports, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
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


def test_analysis_touches_no_files_models_or_configuration():
    banned = {*HEAVY, "hydra", "omegaconf", "pyarrow", "pathlib", "os", "shutil", "subprocess"}
    banned -= {"numba", "matplotlib"}
    for path in files("analysis"):
        assert not {name.split(".")[0] for name in imported(path)} & banned, path


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

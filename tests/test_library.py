"""The mathematics as a library: a wheel, a fresh environment, nothing of the checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import venv
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path

import pytest

import draft_acceptance
from analysis import TopK
from analysis.rules import builtin

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("numpy", "numba", "llvmlite")
SCRIPT = """
import math, sys
import numpy as np
from draft_acceptance import TopK, certify, certify_logits
from draft_acceptance.rules import Additive, StrictGreedy, Tree

found = certify_logits(np.log([[0.5, 0.3, 0.15, 0.05]]), [StrictGreedy(), Additive(0.3), Tree(2)])
assert found.lower.round(4).tolist() == [[0.0253, 0.0994, 0.1001]], found.lower
assert certify(TopK.from_probabilities([[0.75, 0.25]]), StrictGreedy()).upper.shape == (1, 1)
assert not {"analysis", "pipeline", "conf", "pandas", "matplotlib", "torch"} & set(sys.modules)
print("certified")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    source = folder / "analysis"  # a build leaves files beside what it builds
    shutil.copytree(ROOT / "analysis", source, ignore=shutil.ignore_patterns("__pycache__"))
    command = ["wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", *command, str(source)], check=True)
    (built,) = folder.glob("draft_acceptance-*.whl")
    return built


@pytest.mark.thorough
def test_a_fresh_environment_certifies_logits(wheel: Path, tmp_path: Path) -> None:
    """Numpy and numba, as they are installed here, are all that it gets."""
    home = tmp_path / "environment"
    venv.create(home, with_pip=False)
    (packages,) = home.glob("lib/python*/site-packages")
    for name in NEEDED:
        for top in {Path(str(file)).parts[0] for file in distribution(name).files or []} - {".."}:
            found = Path(str(distribution(name).locate_file(top)))
            if not (packages / top).exists():
                (packages / top).symlink_to(found)
    python = home / "bin" / "python"  # pip checks that what the wheel requires is there
    install = ["-m", "pip", "--python", str(python), "install", "-q", "--no-index", str(wheel)]
    subprocess.run([sys.executable, *install], check=True)
    done = subprocess.run(
        [python, "-I", "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "certified\n", done.stderr


def test_the_wheel_has_every_package_and_its_types(wheel: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(wheel, tmp_path, "zip")
    there = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.py")}
    here = (ROOT / "analysis").rglob("*.py")
    wanted = {f"draft_acceptance/{path.relative_to(ROOT / 'analysis').as_posix()}" for path in here}
    assert there == {path for path in wanted if "/build/" not in path}
    assert (tmp_path / "draft_acceptance" / "py.typed").is_file()


def test_the_wheels_name_stands_for_the_same_modules_in_a_checkout() -> None:
    import draft_acceptance.rules.builtin as by_alias

    assert by_alias is builtin
    assert draft_acceptance.TopK is TopK
    assert builtin.__spec__.name == "analysis.rules.builtin"
    with pytest.raises(ModuleNotFoundError, match=r"analysis\.nothing"):
        import_module("draft_acceptance.nothing")


def test_the_library_and_the_study_agree_on_versions() -> None:
    library, study = (
        tomllib.loads((ROOT / name).read_text())["project"]
        for name in ("analysis/pyproject.toml", "pyproject.toml")
    )
    assert library["version"] == study["version"]
    assert library["requires-python"].startswith(study["requires-python"].split(",")[0])
    extras = {need for needs in library["optional-dependencies"].values() for need in needs}
    own = {*library["dependencies"], *extras} - {"draft-acceptance[tables]"}
    assert own <= set(study["dependencies"])

"""The Makefile, the environment, the choice of an index for torch, and the pinned versions."""

from __future__ import annotations

import importlib.util
import io
import os
import re
import subprocess
import tomllib
import venv
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PHONY = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
TARGETS = PHONY[1].split() if PHONY else []
# What a surrounding `make test ARGS=...` would pass on.
INHERITED = {"ARGS", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "PYTHON", "STUDY"}


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in INHERITED}
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )


def test_help_lists_every_target_and_every_target_parses() -> None:
    done = make()
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines()] == TARGETS
    done = make("-n", *TARGETS, "STUDY=paper", "ARGS=stage=certificates")
    assert done.returncode == 0, done.stderr
    assert ".venv/bin/python -m pipeline study=paper stage=certificates" in done.stdout


def test_a_study_that_is_none_is_refused_before_anything_is_installed() -> None:
    for target in ("reproduce", "fetch"):
        done = make(target, "STUDY=papper")
        assert (done.returncode, done.stdout) == (2, "")
        assert "there is no study papper: STUDY is one of log mars mini paper" in done.stderr


@pytest.mark.parametrize(
    ("fetched", "status", "said"),
    [
        (0, 0, "ran -m pipeline study=quick a=1\n"),
        (1, 0, "error: no index *****\n***** The embedded models run instead "),
        (130, 2, ""),  # interrupted
    ],
)
def test_a_model_that_cant_be_fetched_leaves_the_embedded_study(
    fetched: int, status: int, said: str, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    refused = f"echo error: no index >&2; exit {fetched}"
    write_command(python, f'case "$*" in *pipeline.fetch*) {refused};; esac; echo ran "$@"')
    done = make("reproduce", f"PY={python}", "READY=1 2 dev", "STATE=1 2", "ARGS=a=1")
    assert done.returncode == status
    assert said in done.stdout
    ran = done.stdout.partition("ran ")[2]
    assert ran.startswith("-m pipeline study=mini note='SmolLM2 could not be") == (fetched == 1)
    assert bool(ran) == (fetched != 130)


def test_what_tests_need_is_installed_for_tests_only() -> None:
    for ready, target, asked in (
        ("1 2 core", "reproduce", ""),
        ("1 2 dev", "reproduce", ""),
        ("1 2 dev", "test", ""),
        ("1 2 core", "test", "1 2 dev"),
        ("1 3 dev", "reproduce", "1 2 core"),
        ("", "reproduce", "1 2 core"),
    ):
        printed = make("-n", target, f"READY={ready}", "STATE=1 2").stdout
        assert ("setup_env.py" in printed) == bool(asked), (ready, target)
        assert asked in printed


def write_command(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


# --- tools/setup_env.py --------------------------------------------------------------------------


@pytest.fixture
def setup_env(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_env", ROOT / "tools" / "setup_env.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    monkeypatch.setattr(module.platform, "system", lambda: "Linux")
    monkeypatch.setattr(module, "has_nvidia_driver", lambda: False)
    monkeypatch.setattr(module.urllib.request, "urlopen", lambda *_, **__: io.BytesIO())
    return module


def test_torch_is_the_cpu_build_only_on_linux_without_a_driver(setup_env, monkeypatch) -> None:
    assert setup_env.torch_index() == ["--extra-index-url", setup_env.CPU_INDEX]
    monkeypatch.setattr(setup_env, "has_nvidia_driver", lambda: True)
    assert setup_env.torch_index() == []
    monkeypatch.setenv("TORCH_INDEX", "https://builds.example/cu126")
    assert setup_env.torch_index() == ["--extra-index-url", "https://builds.example/cu126"]
    monkeypatch.setattr(setup_env, "has_nvidia_driver", lambda: False)
    monkeypatch.setenv("TORCH_INDEX", "")
    assert setup_env.torch_index() == []
    monkeypatch.delenv("TORCH_INDEX")
    monkeypatch.setattr(setup_env.urllib.request, "urlopen", Mock(side_effect=OSError))
    assert setup_env.torch_index() == []
    monkeypatch.setattr(setup_env.platform, "system", lambda: "Darwin")
    assert setup_env.torch_index() == []


@pytest.mark.parametrize("version", [(3, 10, 12), (3, 14, 1), (3, 15, 0)])
def test_a_python_that_does_not_fit_is_refused(setup_env, monkeypatch, version) -> None:
    monkeypatch.setattr(setup_env.sys, "version_info", version)
    with pytest.raises(SystemExit, match=r"3\.11 to 3\.14 .* make install PYTHON="):
        setup_env.main("1 9 core")


def test_half_made_environment_is_made_again(setup_env, monkeypatch, tmp_path, capsys) -> None:
    """A failed installation counts for nothing; a finished one is only brought up to date."""
    outcomes = iter([RuntimeError, None, None, None])

    installed = []

    def install(environment: Path, what: str, lock: object) -> None:
        assert (environment / "bin" / "python").exists()
        installed.append(what)
        if (outcome := next(outcomes)) is not None:
            raise outcome

    monkeypatch.setattr(setup_env, "ROOT", tmp_path)
    monkeypatch.setattr(setup_env, "install", install)
    builder = venv.EnvBuilder  # without pip, which takes seconds
    monkeypatch.setattr(venv, "EnvBuilder", lambda **given: builder(**given | {"with_pip": False}))

    def said(state: str) -> str:
        setup_env.main(state)
        return capsys.readouterr().out.split(" ")[0]

    with pytest.raises(RuntimeError):
        said("1 9 core")
    assert capsys.readouterr().out.startswith("Making")
    (tmp_path / ".venv" / "left-over").touch()
    assert said("1 9 core") == "Making"
    assert not (tmp_path / ".venv" / "left-over").exists()
    assert said("1 9 core") == ""  # nothing to do: install is not called
    assert said("1 9 dev") == "Updating"  # more
    assert said("1 9 core") == ""  # is a part of it
    assert said("2 9 core") == "Updating"  # other versions, of all that is there
    assert installed == [".", ".", ".[dev]", ".[dev]"]
    assert not setup_env.is_reusable(tmp_path / ".venv", "2 8 dev")  # other place


def test_what_pip_is_asked_for_and_what_is_said_when_it_fails(
    setup_env, monkeypatch, tmp_path
) -> None:
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    monkeypatch.setattr(setup_env, "ROOT", tmp_path)
    with (tmp_path / "lock").open("w") as lock:
        write_command(python, 'echo "$@" >asked')
        setup_env.install(tmp_path / ".venv", ".[dev]", lock)
        asked = (tmp_path / "asked").read_text()
        assert "--constraint constraints.txt --editable .[dev] --extra-index-url http" in asked
        write_command(python, "exit 1")
        with pytest.raises(SystemExit, match="run make again"):
            setup_env.install(tmp_path / ".venv", ".", lock)


def test_a_link_is_not_emptied(setup_env, monkeypatch, tmp_path) -> None:
    """An environment that several checkouts share; making it anew would take it from the others."""
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "python").touch()
    (tmp_path / ".venv").symlink_to(shared)
    monkeypatch.setattr(setup_env, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match=r"\.venv is a link to .*shared: remove the link"):
        setup_env.main("1 9 core")
    assert (shared / "python").exists()


# --- versions -----------------------------------------------------------------------------------


def test_every_dependency_is_pinned_within_its_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {}
    for line in (line for line in lines if not line.startswith("#")):
        pin = re.fullmatch(r"([a-z0-9-]+)==([0-9a-z.]+)( ; [^/]+)?", line)
        assert pin is not None, f"constraints.txt: {line!r} is not name==version"
        assert pins.setdefault(pin[1], pin[2]) == pin[2], f"{pin[1]} is pinned twice"
    for text in project["dependencies"] + project["optional-dependencies"]["dev"]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins[requirement.name]), text

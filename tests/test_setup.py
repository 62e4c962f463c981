"""The Makefile, the environment that it makes, and the pinned versions."""

import fcntl
import io
import os
import re
import subprocess
import tomllib
from pathlib import Path
from threading import Thread
from unittest.mock import Mock

import pytest
from packaging.requirements import Requirement

from pipeline.core.paths import ROOT
from tools import setup_env

PIP_CONFIG = "global.index-url='https://mirror.example/simple'\nglobal.timeout='9'\n"
PHONY = re.search(r"^\.PHONY: ((?:.+\\\n)*.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
TARGETS = PHONY[1].replace("\\\n", " ").split() if PHONY else []
# What a surrounding `make test ARGS=...` would pass on.
INHERITED = {"ARGS", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "PYTHON", "STUDY"}


def make(*arguments):
    environment = {key: value for key, value in os.environ.items() if key not in INHERITED}
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )


def test_help_lists_every_target_and_every_target_parses():
    lines = make().stdout.splitlines()
    assert ["help", *(line.split()[1] for line in lines if line.startswith("  make "))] == TARGETS
    done = make("-n", *TARGETS, "STUDY=paper", "ARGS=stage=certificates")
    assert done.returncode == 0, done.stderr
    assert ".venv/bin/python -m pipeline study=paper stage=certificates" in done.stdout


def test_a_study_that_is_none_is_refused_before_anything_is_installed():
    done = make("fetch", "STUDY=papper")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no study papper" in done.stderr


@pytest.mark.parametrize("fetched", [0, 1, 130])
def test_a_model_that_cant_be_fetched_leaves_the_embedded_study(fetched, tmp_path):
    python = tmp_path / "python"
    refused = f"echo error: no index >&2; exit {fetched}"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *pipeline.fetch*) {refused};; esac; echo ran "$@"\n'
    )
    python.chmod(0o755)
    given = (f"PY={python}", "READY=1 2 dev", "STATE=1 2", "ARGS=a=1")
    assert "fetch" not in make("reproduce", *given, f"REPORT={tmp_path}").stdout  # there is one
    done = make("reproduce", *given, f"REPORT={tmp_path}/none")
    _, ran, command = done.stdout.partition("ran ")
    study = {0: "quick", 1: "mini", 130: ""}[fetched]  # 130: interrupted
    assert (study in command, bool(ran), done.returncode) == (True, bool(study), 2 * (not study))
    assert ("error: no index" in done.stdout) == (fetched == 1)


@pytest.fixture
def called(tmp_path, monkeypatch):
    """The commands of an installation, which make nothing but the directories."""
    commands = list[str]()

    def call(*command):
        commands.append(" ".join(command))
        if "venv" in command:
            version = Path(os.__file__).parent.name
            (tmp_path / ".venv" / "lib" / version).mkdir(parents=True, exist_ok=True)
        return 0

    monkeypatch.setattr(setup_env, "ROOT", tmp_path)
    monkeypatch.setattr(setup_env, "call", call)
    monkeypatch.setattr(setup_env.shutil, "which", lambda _: "/usr/bin/uv")
    monkeypatch.setattr(setup_env.subprocess, "run", lambda *_, **__: Mock(stdout=PIP_CONFIG))
    for name in setup_env.SETTINGS.values():
        monkeypatch.setenv(name, "")  # and as it was afterwards
        monkeypatch.delenv(name)
    monkeypatch.setenv("TORCH_INDEX", "https://builds.example/cpu")
    return commands


def test_an_environment_is_made_once_and_an_unfinished_one_anew(called, tmp_path, monkeypatch):
    def asked(state):
        called.clear()
        setup_env.main(state)
        new = [command for command in called if "venv --clear" in command]
        return [*(["new"] if new else []), *re.findall(r"--editable (\S+)", " ".join(called))]

    assert asked("1 9 core") == ["new", "."]
    assert os.environ["UV_DEFAULT_INDEX"] == "https://mirror.example/simple"
    assert "uv pip install" in called[1]
    assert "--constraint constraints.txt" in called[1]
    assert called[1].endswith("--extra-index-url https://builds.example/cpu")
    assert asked("1 9 core") == []
    assert asked("1 9 dev") == [".[dev]"]  # more
    assert asked("1 9 core") == []  # is a part of it
    assert asked("2 9 core") == [".[dev]"]  # other versions, of all that is there
    assert asked("2 8 core") == ["new", "."]  # another directory
    (tmp_path / ".venv/ready").unlink()  # as an interruption leaves it
    assert asked("2 8 core") == ["new", "."]
    monkeypatch.setattr(setup_env, "call", lambda *command: "install" in command)
    with pytest.raises(SystemExit, match=r"run make again .* make install PYTHON="):
        asked("4 8 core")
    assert not (tmp_path / ".venv/ready").exists()


def test_two_at_once_wait_for_each_other(called, tmp_path):
    with (tmp_path / ".venv.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        other = Thread(target=setup_env.main, args=("1 9 core",))
        other.start()
        other.join(0.2)
        assert other.is_alive()
        assert not called
    other.join(10)
    assert len(called) == 2


def test_torch_is_the_cpu_build_only_on_linux_without_a_driver(monkeypatch):
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    monkeypatch.setattr(setup_env.platform, "system", lambda: "Linux")
    monkeypatch.setattr(setup_env, "DRIVERS", ("/nowhere",))
    monkeypatch.setattr(setup_env, "urlopen", lambda *_, **__: io.BytesIO())
    assert setup_env.torch_index() == ["--extra-index-url", setup_env.CPU_INDEX]
    monkeypatch.setenv("TORCH_INDEX", "")
    assert setup_env.torch_index() == []
    monkeypatch.delenv("TORCH_INDEX")
    monkeypatch.setattr(setup_env, "DRIVERS", ("/",))
    assert setup_env.torch_index() == []


def test_every_dependency_is_pinned_within_its_range():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {}
    for line in (line for line in lines if not line.startswith("#")):
        pin = re.fullmatch(r"([a-z0-9-]+)==([0-9a-z.]+)( ; [^/]+)?", line)
        assert pins.setdefault(pin[1], pin[2]) == pin[2], f"{pin[1]} is pinned twice"
    extras = project["optional-dependencies"]
    for text in project["dependencies"] + extras["dev"] + extras["notebooks"]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins[requirement.name]), text


def test_the_notebooks_open_in_jupyter_lab_which_is_installed_once(tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho ran "$@"\n')
    python.chmod(0o755)
    given = (f"PY={python}", "READY=1 2 dev", "STATE=1 2", "ARGS=--no-browser")
    opened = "ran -m jupyterlab --notebook-dir=notebooks --no-browser"
    first = make("notebooks", *given).stdout.splitlines()
    installed = [line for line in first if line.startswith("ran -m pip install")]
    assert ".[notebooks]" in installed[0].split()
    assert "--constraint constraints.txt" in installed[0]
    assert opened in first
    (tmp_path / "jupyter-lab").write_text("#!/bin/sh\n")
    (tmp_path / "jupyter-lab").chmod(0o755)
    again = make("notebooks", *given).stdout.splitlines()
    assert [line for line in again if line.startswith("ran ")] == [opened]

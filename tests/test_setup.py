"""The Makefile, the choice of a Python and of an index for torch, and the pinned versions."""

from __future__ import annotations

import http.server
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import venv
from functools import partial
from pathlib import Path
from types import ModuleType

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
        assert ("setup_env.sh" in printed) == bool(asked), (ready, target)
        assert asked in printed


# --- tools/setup_env.sh: which Python ---------------------------------------------------------


def write_command(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def fit(path: Path, said: str) -> None:
    """A Python that passes the probe and then, in place of making .venv, says who it is."""
    write_command(path, f'[ "$1" = -c ] && exec \'{sys.executable}\' "$@"\necho {said} "$@"')


def of_version(path: Path, version: tuple[int, int, int]) -> None:
    """A Python that takes itself for another version."""
    code = f"import sys; sys.version_info = {version}; exec(sys.argv[1])"
    write_command(path, f"exec '{sys.executable}' -c '{code}' \"$2\"")


@pytest.fixture
def find_python(tmp_path: Path):
    """Run the script in a project of its own (with a space in its path) and a PATH of its own."""
    tools, commands = tmp_path / "a project" / "tools", tmp_path / "bin"
    tools.mkdir(parents=True)
    commands.mkdir()
    shutil.copy(ROOT / "tools" / "setup_env.sh", tools)
    for name in ("cat", "dirname", "grep", "head"):
        (commands / name).symlink_to(shutil.which(name) or name)

    def run(python: str = "") -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(commands), "PYTHON": python}
        command = ["/bin/sh", str(tools / "setup_env.sh"), "12 34 core"]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    run.commands = commands  # type: ignore[attr-defined]
    return run


def test_the_first_fit_python_is_taken_and_a_refusal_says_what_was_wrong(find_python) -> None:
    write_command(find_python.commands / "python3", "echo shim: no such version; exit 127")
    of_version(find_python.commands / "python3.13", (3, 14, 1))
    fit(find_python.commands / "python3.12", "twelve")
    fit(find_python.commands / "python3.11", "eleven")
    assert find_python().stdout.split() == ["twelve", "tools/setup_env.py", "12", "34", "core"]
    for name in ("python3.11", "python3.12"):
        (find_python.commands / name).unlink()
    done = find_python()
    assert done.returncode == 1
    assert "python3: does not run (shim: no such version)" in done.stderr
    assert "python3.13: is Python 3.14.1" in done.stderr
    assert "python3.12: is not there" in done.stderr
    assert "3.11 to 3.14" in done.stderr
    assert "make install PYTHON=" in done.stderr
    code = 'import sys; sys.modules["ensurepip"] = None; exec(sys.argv[1])'
    old = find_python.commands / "an old one"
    write_command(old, f"exec '{sys.executable}' -c '{code}' \"$2\"")
    done = find_python(str(old))  # named, it is the only candidate
    assert "an old one: is Python" in done.stderr
    assert "incomplete: import of ensurepip halted" in done.stderr
    assert "python3: " not in done.stderr


# --- tools/setup_env.py: which torch, and when an environment is made again ---------------------


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
    monkeypatch.setattr(module, "is_reachable", lambda _: True)
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
    monkeypatch.setattr(setup_env.platform, "system", lambda: "Darwin")
    assert setup_env.torch_index() == []


def test_silent_index_is_skipped(setup_env, monkeypatch, capsys) -> None:
    """It is not waited for longer than was said: the question is still open when pip goes on."""
    monkeypatch.undo()  # the real probe
    asked, ended, end = [], [], threading.Event()

    def urlopen(url: str, timeout: float) -> None:  # a name look-up that outlasts the timeout
        asked.append((url, timeout))
        end.wait(60)
        ended.append(url)
        raise OSError

    monkeypatch.setattr(setup_env.urllib.request, "urlopen", urlopen)
    monkeypatch.setattr(setup_env.is_reachable, "__defaults__", (0.2,))
    monkeypatch.setenv("TORCH_INDEX", "https://silent.example/cpu")
    assert setup_env.torch_index() == []
    assert (asked, ended) == ([("https://silent.example/cpu/torch/", 0.2)], [])
    end.set()
    assert "https://silent.example/cpu does not answer" in capsys.readouterr().out


def test_answering_index_is_used_if_it_has_torch(setup_env, monkeypatch, tmp_path) -> None:
    monkeypatch.undo()  # the real probe
    (tmp_path / "cpu" / "torch").mkdir(parents=True)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        assert setup_env.is_reachable(f"{address}/cpu/")
        assert not setup_env.is_reachable(f"{address}/cu000")
        server.shutdown()


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


def test_uv_installs_where_it_is_there_and_pip_where_it_is_not_or_fails(
    setup_env, monkeypatch, tmp_path, capsys
) -> None:
    """Both quietly: what they print is in a file, whose end is shown when pip fails."""
    for name in [name for name in os.environ if name.startswith(("UV_", "PIP_"))]:
        monkeypatch.delenv(name)
    folder, commands = tmp_path / ".venv" / "bin", tmp_path / "commands"
    folder.mkdir(parents=True)
    commands.mkdir()
    monkeypatch.setattr(setup_env, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(commands), prepend=os.pathsep)
    monkeypatch.setattr(setup_env, "has_nvidia_driver", lambda: True)
    log = tmp_path / ".venv" / "install.log"

    def installed(config: str, uv: int | None, pip: int) -> list[str]:
        asked = f'case "$*" in *"config list"*) echo "{config}"; exit 0;; esac'
        write_command(folder / "python", f'{asked}; echo pip "$@"; exit {pip}')
        (commands / "uv").unlink(missing_ok=True)
        if uv is not None:
            write_command(commands / "uv", f'echo uv "$@"; exit {uv}')
        with (tmp_path / "lock").open("w") as lock:
            setup_env.install(tmp_path / ".venv", ".", lock)
        return [line.split()[0] for line in log.read_text().splitlines()]

    assert installed("", uv=0, pip=0) == ["uv"]
    assert "--constraint constraints.txt --editable ." in log.read_text()
    assert installed("", uv=2, pip=0) == ["uv", "pip"]
    assert "pip tries" in capsys.readouterr().out
    assert installed("global.index-url='file:///x'", uv=0, pip=0) == ["pip"]  # uv reads none of it
    monkeypatch.setenv("UV_DEFAULT_INDEX", "file:///x")
    assert installed("global.index-url='file:///x'", uv=0, pip=0) == ["uv"]
    with pytest.raises(SystemExit, match=r"(?s)pip -m pip .*install\.log.*run make again"):
        installed("", uv=None if shutil.which("uv") is None else 1, pip=1)


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

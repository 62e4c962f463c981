"""A small study with the embedded models, made once for all tests that read artifacts."""

from __future__ import annotations

import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from pipeline import cli
from tests import methods

HEAVY = ("torch", "transformers", "tokenizers", "datasets", "numba", "matplotlib")  # to import
SMALL = [
    "study=mini",
    "study_name=mini",
    "prompts.count=6",
    "distributions.steps=16",
    "distributions.k=64",
    "statistics.resamples=50",
    "device={threads: 1, batch: 2}",  # three shards
    "decoding.prompts=1",
    "decoding.steps=6",
    *methods.overrides(
        "{drafter: model, rule: greedy, draft_length: [1, 3, 7]}",
        "{drafter: prompt_lookup, rule: greedy, draft_length: 7}",
        "{drafter: model, rule: mars, theta: [0.86, 0.9, 0.94], draft_length: 7}",
        "{drafter: model, rule: mars, theta: 0.9, draft_length: 7, temperature: [0.5, 1.0]}",
        "{drafter: model, sampling: [speculative, races], draft_length: 7, temperature: 1.0}",
    ),
]


@dataclass(frozen=True)
class SmallStudy:
    """Where the small study lies and how it is asked for."""

    outputs: Path
    overrides: list[str]
    printed: str


def pipeline(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run ``python -m pipeline`` in this process; return its status, and what it printed."""
    out, status = StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
        patch.setattr(sys, "argv", ["pipeline", *arguments])
        patch.setattr(sys, "unraisablehook", sys.unraisablehook)
        try:
            cli.main()
        except SystemExit as end:
            status = end.code or 0
    said = status if isinstance(status, str) else ""
    done = subprocess.CompletedProcess(arguments, int(bool(status)), out.getvalue(), said)
    assert not check or done.returncode == 0, done.stdout + said
    return done


@pytest.fixture(scope="session")
def small_study(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> SmallStudy:
    """The artifacts of every stage for six prompts, sixteen steps.

    The first worker of pytest that needs them makes them for all. Tests only read them.
    """
    base = tmp_path_factory.getbasetemp()
    base = base if worker_id == "master" else base.parent  # the workers' folders lie beside it
    outputs, printed = base / "small" / "outputs", base / "small" / "printed.txt"
    overrides = [*SMALL, f"outputs={outputs}"]
    with FileLock(base / "small.lock"):
        if not printed.exists():
            text = pipeline(*overrides).stdout
            printed.write_text(text)
    return SmallStudy(outputs, overrides, printed.read_text())


LEFT_OUT = pytest.StashKey[int]()  # thorough tests that were not run


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Count the thorough tests that are left out."""
    for item in items:
        stash = item.config.stash
        stash[LEFT_OUT] = stash.get(LEFT_OUT, 0) + bool(item.get_closest_marker("thorough"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand the count from a worker of pytest to the process that prints it."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the count of a worker; all workers collect the same tests."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print how many thorough tests were left out."""
    if count := config.stash.get(LEFT_OUT, 0):
        terminalreporter.line(f"{count} thorough tests were not run: make test-all")

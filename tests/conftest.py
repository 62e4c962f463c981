"""A small study with the embedded models, made once for all tests that read artifacts."""

import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

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


def pytest_collection_modifyitems(items):
    """Those of the small study first: one worker gets them all, and no other waits for it."""
    items.sort(key=lambda item: "small_study" not in getattr(item, "fixturenames", ()))


def pipeline(*arguments, check=True):
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
def small_study(tmp_path_factory, worker_id):
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

"""A small study with the embedded models, made once for all tests that read artifacts."""

import gc
import subprocess
import sys
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest
from filelock import FileLock
from omegaconf import OmegaConf

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


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Import everything without a search for garbage, and let no later search go through it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


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


@pytest.fixture(scope="session", autouse=True)
def files_are_parsed_once():
    """Hydra parses the files of conf/ again for each composition: here each content once."""
    load, parsed = OmegaConf.load, {}

    def load_once(file):
        if not hasattr(file, "read"):
            return load(file)
        text = file.read()
        if text not in parsed:
            file.seek(0)
            parsed[text] = load(file)
        return deepcopy(parsed[text])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OmegaConf, "load", load_once)
        yield


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

"""A small study with the embedded models, made once for all tests that read artifacts."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
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
    "decoding.methods=["
    "{drafter: model, rule: greedy, draft_length: [1, 3, 7], temperature: 0}, "
    "{drafter: prompt_lookup, rule: greedy, draft_length: 7, temperature: 0}, "
    "{drafter: model, rule: mars, theta: [0.86, 0.9, 0.94], draft_length: 7, temperature: 0}, "
    "{drafter: model, rule: mars, theta: 0.9, draft_length: 7, temperature: [0.5, 1.0]}, "
    "{drafter: model, sampling: [speculative, races], draft_length: 7, temperature: 1.0}]",
]


@dataclass(frozen=True)
class SmallStudy:
    """Where the small study lies and how it is asked for."""

    outputs: Path
    overrides: list[str]
    printed: str


def pipeline(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run ``python -m pipeline`` as a user does, on one thread."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="session")
def small_study(tmp_path_factory: pytest.TempPathFactory) -> SmallStudy:
    """The artifacts of every stage for six prompts, sixteen steps."""
    outputs = tmp_path_factory.mktemp("small") / "outputs"
    overrides = [*SMALL, f"outputs={outputs}"]
    return SmallStudy(outputs, overrides, pipeline(*overrides).stdout)

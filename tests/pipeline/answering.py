"""A small study whose items are answered: shared by tests of stage accuracy and the harness."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.stages.accuracy import compute as stage
from pipeline.study import Study
from tests import methods
from tests.results.models import WORDS, write_model

METHODS = [
    "{drafter: model, rule: greedy, draft_length: 3, temperature: 0}",
    "{drafter: model, rule: additive, t: 0.6, draft_length: 3, temperature: 0}",
    "{drafter: model, sampling: races, draft_length: 3, temperature: 0.7}",
]
ITEMS = 6


def note_asked(patch: pytest.MonkeyPatch, stop_after: int) -> list[str]:
    """Return a list that gets the key of every question asked; before one more it stops once."""
    answer, asked, stops = stage.answer, list[str](), [stop_after]

    def noting(pair: Any, one: Any, text: Any) -> Any:
        if stops == [len(asked)]:
            stops.clear()
            raise KeyboardInterrupt
        asked.append(one.key)
        return answer(pair, one, text)

    patch.setattr(stage, "answer", noting)
    return asked


def rows() -> list[dict[str, Any]]:
    """Items in the words of the models, whose right answer is a word that they like to say."""
    return [
        {
            "id": f"item {at}",
            "kind": "answer",
            "prompt": " ".join(WORDS[4 + (7 * at + i) % 44] for i in range(3 + at)),
            "expected": WORDS[10:30],
            "wrong": WORDS[30:36],
            "max_tokens": 4 + at,
        }
        for at in range(ITEMS)
    ]


def write(path: Path, items: list[dict[str, Any]]) -> Path:
    """Write the items of a task."""
    path.write_text("".join(json.dumps(row) + "\n" for row in items))
    return path


def write_place(folder: Path) -> Path:
    """Write the two models and the items of the task `own`."""
    folder.mkdir(exist_ok=True)
    write_model(folder / "wide")
    write_model(folder / "narrow", noise=0.06)
    write(folder / "own.jsonl", rows())
    return folder


def study(
    place: Path, *overrides: str, stage: str = "accuracy", decoded: Sequence[str] = METHODS
) -> Study:
    """Compose the study in a folder of `write_place`; `decoded` are its methods."""
    return Study(*overrides_of(place, decoded), f"stage={stage}", *overrides)


def overrides_of(place: Path, decoded: Sequence[str] = METHODS) -> list[str]:
    """Return the configuration of the study in a folder of `write_place`."""
    return [
        "study=mini",
        "target=local",
        f"targets.local.path='{place / 'wide'}'",
        "targets.local.label=wide",
        "targets.local.dtype=float32",
        "drafter=local",
        f"drafter.path='{place / 'narrow'}'",
        "drafter.label=narrow",
        "drafter.dtype=float32",
        f"prompts.source='{place / 'own.jsonl'}'",
        "prompts.count=1",
        "prompts.min_tokens=3",
        f"accuracy.tasks=['{place / 'own.jsonl'}',facts]",
        "accuracy.items=4",
        *methods.overrides(*decoded),
        "device={name: cpu, threads: 1}",
        f"outputs='{place / 'outputs'}'",
    ]

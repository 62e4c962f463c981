"""Reads and scores the tasks for lm-evaluation-harness, by the project's own functions."""

from __future__ import annotations

from typing import Any

from datasets import Dataset

from pipeline.tasks.checks import score
from pipeline.tasks.items import read_items, task_file


def load(file: str, **_: Any) -> dict[str, Dataset]:
    """Return the items of a task."""
    return {"test": Dataset.from_list([dict(item) for item in read_items(task_file(file))])}


def process_results(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Return the score of an answer."""
    return {"acc": float(score(doc, results[0]))}

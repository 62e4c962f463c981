"""Reads and scores the tasks for lm-evaluation-harness, by the project's own functions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from datasets import Dataset

from pipeline.tasks.checks import score
from pipeline.tasks.items import Item, read_items, task_file


def load(file: str, **_: Any) -> dict[str, Dataset]:
    """Return the items of a task."""
    return {"test": Dataset.from_list([asdict(item) for item in read_items(task_file(file))])}


def process_results(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Return the score of an answer."""
    item = Item(**{**doc, "expected": tuple(doc["expected"]), "wrong": tuple(doc["wrong"])})
    return {"acc": float(score(item, results[0]))}

"""The items of a task: a JSON Lines file with a prompt, a kind and what is expected in each row.

The files of the project are in assets/tasks; assets/tasks/README.md says what the kinds mean.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError
from pipeline.paths import ROOT
from pipeline.tasks import constraints
from pipeline.tasks.sandbox import parse_test

FOLDER = ROOT / "assets" / "tasks"
KINDS = ("answer", "number", "copy", "constraints", "python")


@dataclass(frozen=True)
class Item:
    """One question.

    Attributes:
        id: unique within its task.
        kind: how an answer is scored, one of `KINDS`.
        prompt: what the model is asked.
        expected: by kind: accepted phrases, a number, the text to copy, constraints, or tests
            (`pipeline.tasks.sandbox.parse_test`).
        wrong: phrases that an answer of kind `answer` must not have.
        max_tokens: the most tokens an answer may have.
    """

    id: str
    kind: str
    prompt: str
    expected: tuple[str, ...]
    wrong: tuple[str, ...]
    max_tokens: int


def ours() -> list[str]:
    """Return the names of the project's tasks."""
    return sorted(path.stem for path in FOLDER.glob("*.jsonl"))


def is_ours_or_file(name: str) -> bool:
    """Whether a name is one of the project's or that of a file, and no task of another registry."""
    return name in ours() or Path(name).suffix == ".jsonl"


def task_file(name: str) -> Path:
    """Return the file of a task: one of the project's by name, any other by path.

    Raises:
        PipelineError: there is no such task.
    """
    path = FOLDER / f"{name}.jsonl" if name in ours() else Path(name)
    if path.suffix != ".jsonl" or not path.is_file():
        raise PipelineError(
            f"accuracy.tasks: {name} is no task: give {', '.join(ours())} or a file *.jsonl"
        )
    return path


def is_foreign(path: Path) -> bool:
    """Whether a task does not come with the project."""
    return path.resolve().parent != FOLDER.resolve()


def read_items(path: Path) -> list[Item]:
    """Read the items of a task.

    Raises:
        PipelineError: a row is wrong; names file and line.
    """
    items: list[Item] = []
    names = set()
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PipelineError(f"{path} is no UTF-8: save it as UTF-8") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            item = _item(json.loads(line))
        except (ValueError, TypeError) as error:
            raise PipelineError(f"{path}, line {number}: {error}") from error
        if item.id in names:
            raise PipelineError(f"{path}, line {number}: the id {item.id} occurs twice")
        names.add(item.id)
        items.append(item)
    if not items:
        raise PipelineError(f"{path} has no items")
    return items


def _item(row: Any) -> Item:
    wanted = {field.name for field in fields(Item)}
    if not isinstance(row, dict) or set(row) != wanted:
        raise ValueError(f"a row has the keys {', '.join(sorted(wanted))}")
    for name in ("id", "prompt"):
        if not isinstance(row[name], str) or not row[name].strip():
            raise ValueError(f"{name} is a text that is not empty")
    for name in ("expected", "wrong"):
        texts = isinstance(row[name], list) and all(isinstance(x, str) for x in row[name])
        if not texts or not all(x.strip() for x in row[name]):
            raise ValueError(f"{name} is a list of texts that are not empty")
    if row["kind"] not in KINDS:
        raise ValueError(f"kind={row['kind']} is not allowed: give one of {', '.join(KINDS)}")
    if not row["expected"] or (row["kind"] in ("number", "copy") and len(row["expected"]) > 1):
        raise ValueError(f"expected={row['expected']} is not what kind {row['kind']} takes")
    if type(row["max_tokens"]) is not int or row["max_tokens"] < 3:
        raise ValueError(f"max_tokens={row['max_tokens']} is not an integer of at least 3")
    parse = {"constraints": constraints.parse, "python": parse_test}.get(row["kind"], str)
    for text in row["expected"]:
        parse(text)
    if row["kind"] == "number":
        float(row["expected"][0])
    return Item(**{**row, "expected": tuple(row["expected"]), "wrong": tuple(row["wrong"])})

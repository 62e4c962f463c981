"""The items of a task: a JSON Lines file with a prompt, a kind and what is expected in each row.

The files of the project are in assets/tasks; assets/tasks/README.md says what the kinds mean.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError
from pipeline.paths import ROOT
from pipeline.tasks import constraints
from pipeline.tasks.sandbox import parse_test

FOLDER = ROOT / "assets" / "tasks"
KINDS = ("answer", "number", "copy", "constraints", "python")  # of which an answer is scored
KEYS = {"id", "kind", "prompt", "expected", "wrong", "max_tokens"}
Item = Mapping[str, Any]  # a row with these keys, as `check_item` allows it


def our_tasks() -> list[str]:
    """Return the names of the project's tasks."""
    return sorted(path.stem for path in FOLDER.glob("*.jsonl"))


def is_ours_or_file(name: str) -> bool:
    """Whether a name is one of the project's or that of a file, and no task of another registry."""
    return name in our_tasks() or Path(name).suffix == ".jsonl"


def task_file(name: str) -> Path:
    """Return the file of a task: one of the project's by name, any other by path.

    Raises:
        PipelineError: there is no such task.
    """
    known = our_tasks()
    path = FOLDER / f"{name}.jsonl" if name in known else Path(name)
    if path.suffix != ".jsonl" or not path.is_file():
        raise PipelineError(
            f"accuracy.tasks: {name} is no task: give {', '.join(known)} or a file *.jsonl"
        )
    return path


def read_items(path: Path) -> list[Item]:
    """Read the items of a task.

    Raises:
        PipelineError: a row is wrong; names file and line.
    """
    items: dict[str, Item] = {}
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PipelineError(f"{path} is no UTF-8: save it as UTF-8") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            check_item(row)
            if row["id"] in items:
                raise ValueError(f"the id {row['id']} occurs twice")
        except (ValueError, TypeError) as error:
            raise PipelineError(f"{path}, line {number}: {error}") from error
        items[row["id"]] = row
    if not items:
        raise PipelineError(f"{path} has no items")
    return list(items.values())


def check_item(row: Any) -> None:
    """Check a row: id, unique in its task; kind; prompt; expected; wrong; max_tokens.

    expected is by kind: accepted phrases, a number, the text to copy, constraints, or tests
    (`parse_test`). wrong are phrases that an answer of kind `answer` must not have.

    Raises:
        ValueError: it is wrong.
    """
    if not isinstance(row, dict) or set(row) != KEYS:
        raise ValueError(f"a row has the keys {', '.join(sorted(KEYS))}")
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
    parsers: dict[str, Callable[[str], object]] = {
        "constraints": constraints.parse,
        "python": parse_test,
        "number": float,
    }
    for text in row["expected"]:
        parsers.get(row["kind"], str)(text)

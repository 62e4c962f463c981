"""The tasks: their items, each a row of a JSON Lines file, and the questions that models read.

The files of the project are in assets/tasks; assets/tasks/README.md says what the kinds mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError
from pipeline.formats.prompt_files import json_lines
from pipeline.models.prompt_tokens import encode
from pipeline.paths import ROOT
from pipeline.plan.specs import AccuracySpec, TaskSpec
from pipeline.store.durable import file_digest
from pipeline.tasks import constraints
from pipeline.tasks.checks import SCORES, Item, score

FOLDER = ROOT / "assets" / "tasks"
KEYS = {"id", "kind", "prompt", "expected", "wrong", "max_tokens"}


def our_tasks() -> list[str]:
    """Return the names of the project's tasks."""
    return sorted(path.stem for path in FOLDER.glob("*.jsonl"))


def task_file(name: str) -> Path:
    """Return the file of a task: one of the project's by name, any other by path.

    Raises:
        PipelineError: there is no such task.
    """
    own_tasks = our_tasks()
    path = FOLDER / f"{name}.jsonl" if name in own_tasks else Path(name)
    if path.suffix != ".jsonl" or not path.is_file():
        raise PipelineError(
            f"accuracy.tasks: {name} is no task: give {', '.join(own_tasks)} or a file *.jsonl "
            "(tasks of lm-evaluation-harness, also those that run a model's code, are run by "
            "python -m pipeline.harness)"
        )
    return path


def read_items(path: Path) -> list[Item]:
    """Read the items of a task.

    Raises:
        PipelineError: a row is wrong; names file and line.
    """
    items: dict[str, Item] = {}
    size, read = json_lines(path, "accuracy.tasks", '{"id": "1", "prompt": "Hi", ...}')
    for row, place in map(read, range(size)):
        try:
            check_item(row)
            if row["id"] in items:
                raise ValueError(f"the id {row['id']} occurs twice")
        except (ValueError, TypeError) as error:
            raise PipelineError(f"accuracy.tasks: {place}: {error}") from error
        items[row["id"]] = row
    if not items:
        raise PipelineError(f"accuracy.tasks: {path} has no items")
    return list(items.values())


def check_item(row: Any) -> None:
    """Check a row: id, unique in its task; kind; prompt; expected; wrong; max_tokens.

    expected is by kind: accepted phrases, a number, the text to copy, or constraints. wrong are
    phrases that an answer of kind `answer` must not have.

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
    if row["kind"] not in SCORES:
        raise ValueError(f"kind={row['kind']} is not allowed: give one of {', '.join(SCORES)}")
    if not row["expected"] or (row["kind"] in ("number", "copy") and len(row["expected"]) > 1):
        raise ValueError(f"expected={row['expected']} is not what kind {row['kind']} takes")
    if type(row["max_tokens"]) is not int or row["max_tokens"] < 3:
        raise ValueError(f"max_tokens={row['max_tokens']} is not an integer of at least 3")
    parsers: dict[str, Callable[[str], object]] = {
        "constraints": constraints.parse,
        "number": float,
    }
    for text in row["expected"]:
        parsers.get(row["kind"], str)(text)


@dataclass(frozen=True)
class Question:
    """An item as the models read it.

    Attributes:
        task: its name.
        item_id: unique within the task.
        token_ids: of the prompt.
        max_tokens: the most tokens of an answer.
        right: whether an answer is right.
    """

    task: str
    item_id: str
    token_ids: list[int]
    max_tokens: int
    right: Callable[[str], bool]

    @property
    def key(self) -> str:
        """The name of the question, unique among all tasks; its sampling noise depends on it."""
        return f"{self.task}/{self.item_id}"


def task_spec(name: str) -> TaskSpec:
    """Return the specification of a task: its name and its content.

    Raises:
        PipelineError: there is no such task.
    """
    path = task_file(name)
    return TaskSpec(path.stem, file_digest(path), name)


def check_tasks(names: Sequence[str]) -> None:
    """Check the items of tasks.

    Raises:
        PipelineError: there is no such task, one is wrong, or two have one name.
    """
    files = [task_file(name) for name in names]
    stems = [path.stem for path in files]
    if len(set(stems)) < len(stems):
        raise PipelineError(f"accuracy.tasks: two of {', '.join(stems)} have the same name")
    for path in files:
        read_items(path)


def questions(spec: AccuracySpec, tokenizer: Any) -> list[Question]:
    """Return the questions, one of each task in turn.

    Args:
        spec: of the stage.
        tokenizer: the target's.
    """
    tasks = [_of_file(task.name, task_file(task.source), spec, tokenizer) for task in spec.tasks]
    return [question for turn in zip_longest(*tasks) for question in turn if question is not None]


def _of_file(task: str, path: Path, spec: AccuracySpec, tokenizer: Any) -> list[Question]:
    template = spec.prompts.template
    return [
        Question(
            task,
            item_id=item["id"],
            token_ids=encode(
                tokenizer, item["prompt"], template, enable_thinking=spec.prompts.enable_thinking
            ),
            max_tokens=item["max_tokens"],
            right=partial(score, item),
        )
        for item in read_items(path)[: spec.items]
    ]

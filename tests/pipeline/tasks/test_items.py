"""The tasks of the project can be solved, and a wrong row is refused with file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import PipelineError
from pipeline.tasks.checks import Item, score
from pipeline.tasks.items import FOLDER, read_items, task_file

RIGHT = json.loads(Path(__file__).with_name("right.json").read_text())
TASKS = {path.stem: read_items(path) for path in sorted(FOLDER.glob("*.jsonl"))}
ROW = {"id": "a", "kind": "answer", "prompt": "Who?", "expected": ["me"], "wrong": [],
       "max_tokens": 8}  # fmt: skip


def right(item: Item) -> str:
    """An answer that is right."""
    return str(RIGHT.get(item["id"], item["expected"][0]))


def test_there_are_enough_items_and_no_prompt_twice() -> None:
    prompts = [item["prompt"] for items in TASKS.values() for item in items]
    assert len(prompts) == len(set(prompts)) >= 300
    assert min(map(len, TASKS.values())) >= 40


@pytest.mark.parametrize("task", TASKS)
def test_every_item_has_a_right_answer_and_refuses_no_answer(task: str) -> None:
    for item in TASKS[task]:
        assert score(item, right(item)), item["id"]
        assert not score(item, ""), item["id"]
        if task != "instructions":  # of some of which any short sentence has the form
            assert not score(item, "I do not know what to say about this, sorry"), item["id"]


def test_tasks_are_found_by_name_or_path(tmp_path: Path) -> None:
    path = tmp_path / "facts.jsonl"
    path.write_text(json.dumps(ROW) + "\n\n")
    assert task_file("facts").parent == FOLDER
    assert task_file(str(path)) == path
    assert read_items(path) == [ROW]
    for name in ("fact", str(tmp_path), str(tmp_path / "none.jsonl")):
        with pytest.raises(PipelineError, match=r"is no task: give arithmetic, .* or a file"):
            task_file(name)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": " "}, "id is a text that is not empty"),
        ({"prompt": 3}, "prompt is a text"),
        ({"expected": "me"}, "expected is a list of texts"),
        ({"expected": [""]}, "expected is a list of texts that are not empty"),
        ({"wrong": [" "]}, "wrong is a list of texts that are not empty"),
        ({"kind": "python"}, "kind=python is not allowed: give one of answer, number, "),
        ({"expected": []}, "is not what kind answer takes"),
        ({"kind": "essay"}, "kind=essay is not allowed: give one of answer, "),
        ({"kind": "copy", "expected": ["a", "b"]}, "is not what kind copy takes"),
        ({"kind": "number", "expected": ["six"]}, "could not convert"),
        ({"kind": "constraints", "expected": ["short"]}, "constraint short is not known"),
        ({"kind": "constraints", "expected": ["max_words"]}, "is no number"),
        ({"kind": "constraints", "expected": ["marked -"]}, "is no number"),
        ({"kind": "constraints", "expected": ["contains"]}, "contains takes an argument"),
        ({"kind": "constraints", "expected": ["lower_case 3"]}, "takes no argument"),
        ({"max_tokens": 2}, "max_tokens=2 is not an integer of at least 3"),
        ({"max_tokens": True}, "max_tokens=True"),
        ({"more": 1}, "a row has the keys expected, id, "),
    ],
)
def test_a_wrong_row_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + json.dumps(ROW | {"id": "b"} | change) + "\n")
    with pytest.raises(PipelineError, match="line 2: ") as error:
        read_items(path)
    assert said in str(error.value)


def test_a_file_without_items_or_with_one_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text("\n")
    with pytest.raises(PipelineError, match="has no items"):
        read_items(path)
    path.write_text(json.dumps(ROW) + "\n" + json.dumps(ROW) + "\n")
    with pytest.raises(PipelineError, match="line 2: the id a occurs twice"):
        read_items(path)
    path.write_bytes(json.dumps(ROW, ensure_ascii=False).replace("Who", "Où").encode("latin-1"))
    with pytest.raises(
        PipelineError, match=r"^accuracy.tasks: .*own\.jsonl: byte 0xf9 of line 1 is no UTF-8"
    ):
        read_items(path)
    path.write_text("{")
    with pytest.raises(
        PipelineError, match=r"^accuracy.tasks: .*own\.jsonl, line 1 is no JSON: .*prompt"
    ):
        read_items(path)

"""Answers are scored as a person would; a table of hand-made answers to items of the project."""

import json
from pathlib import Path

import pytest

from assets.tasks.checks import holds, score
from pipeline.core.paths import ASSETS


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


TASKS = {path.stem: rows(path) for path in sorted((ASSETS / "tasks").glob("*.jsonl"))}
ITEMS = {item["id"]: item for items in TASKS.values() for item in items}
HERE = Path(__file__).with_name("tasks")
ANSWERS = rows(HERE / "answers.jsonl")
RIGHT = json.loads((HERE / "right.json").read_text())


def test_there_are_enough_items_and_none_twice():
    count = sum(map(len, TASKS.values()))
    assert len({item["prompt"] for item in ITEMS.values()}) == len(ITEMS) == count == 316
    assert min(map(len, TASKS.values())) >= 40


def test_every_item_has_a_right_answer_and_refuses_no_answer():
    for task, items in TASKS.items():
        for item in items:
            assert score(item, RIGHT.get(item["id"], item["expected"][0])), item["id"]
            assert not score(item, ""), item["id"]
            if task != "instructions":  # of some of which any short sentence has the form
                assert not score(item, "I do not know what to say about this, sorry"), item["id"]


def test_hand_made_answers():
    for row in ANSWERS:
        assert score(ITEMS[row["item"]], row["answer"]) is row["right"], row


@pytest.mark.parametrize(
    ("constraint", "holding", "failing"),
    [
        ("words 2", ["one two", "It's well-known."], ["one", "one two three"]),
        ("max_words 2", ["one", "one two"], ["one two three", "", "..."]),
        ("min_words 2", ["one two", "1 2 3"], ["one"]),
        ("sentences 2", ["A b. C d!", "Why? Because"], ["A b.", "A. B. C."]),
        ("max_sentences 1", ["A b.", "2.5 is it."], ["A. B.", "!"]),
        ("lines 2", ["a\nb", "a\n\nb\n"], ["a", "a\nb\nc"]),
        ("numbered 2", ["1. a\n2. b", "list:\n 1) a\n 2) b"], ["- a\n- b", "1. a\n1. b", "1. a"]),
        ("comma_items 2", ["a, b", "a,b."], ["a", "a, b, c", "a, "]),
        ("contains snow", ["Snow!", "the snow"], ["snowman"]),
        ("contains_any a b", ["b"], ["c", "ab"]),
        ("avoids cat cats", ["category"], ["A cat.", "CATS"]),
        ("lacks z", ["abc"], ["Zoo"]),
        ("starts_with Dear Anna", ["Dear Anna, hi"], ["dear Anna", "My Dear Anna"]),
        ("ends_with soon", ["Come soon", "Come soon!", 'Come "soon".'], ["soon I come"]),
        ("ends_with ?", ["Who?", '"Who?"'], ["Who", "?!"]),
        ("equals a b", ["A  b", '"a b."'], ["a b c", "ab"]),
        ("equals 1,2", ["1, 2", "1,2"], ["1 2"]),
        ("json_keys a,b", ['{"b": 1, "a": 2}', 'x: {"a": 1, "b": {}}'], ['{"a": 1}', "{a, b}"]),
        ("count blue 2", ["blue, Blue"], ["blue", "blue blue blue", "bluish blue"]),
        ("marked - 2", ["- a\n - b", "list:\n- a\n- b"], ["- a", "-a\n-b", "* a\n* b"]),
        ("lower_case", ["all low 3"], ["All", "123", ""]),
        ("upper_case", ["ALL UP 3!"], ["ALl", "123"]),
        ("quoted", ['"a b"', "He said “yes”."], ["'a'", '""', '"a']),
    ],
)  # fmt: skip
def test_constraints(constraint, holding, failing):
    assert [text for text in holding if not holds(constraint, text)] == []
    assert [text for text in failing if holds(constraint, text)] == []
    assert not holds(constraint, " \n")

"""Fields of served answers with values that no engine writes: counted, never a traceback."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.engines.written.answers import read_objects
from pipeline.engines.written.served import EMPTY, read_served
from pipeline.models.load import load_tokenizer
from pipeline.stages.prompts.served import NO_TEXT, answer_of, prompt_of
from pipeline.store import columns
from tests.pipeline import tiny
from tests.pipeline.served import ASKED, IDS, chat, lines, node
from tests.pipeline.test_served_formats import FORMATS

PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
HOSTILE = [-1, 2**31, 5.5, True, None, "text", "\ud83d", [], {}, [1], [None], ["a", "b"], PARTS]
GOOD = {"id": "good", "prompt": [5, 6], "answer": IDS}
TOKEN_IDS = "lines whose choices[].token_ids is wrong (first in line {}: {} is no token id)"


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value inside an object."""
    inside = value if isinstance(value, dict) else dict(enumerate(value))
    for key, item in inside.items():
        yield (*way, key)
        if isinstance(item, dict | list):
            yield from places(item, (*way, key))


def damaged(rows: list[Any]) -> Iterator[list[Any]]:
    """Yield the rows of a format with each value replaced by each hostile one."""
    for at, row in enumerate(rows):
        event = isinstance(row, str)
        if event and "{" not in row:
            continue
        body = json.loads(row.removeprefix("data: ")) if event else row
        for *way, last in places(body):
            for value in HOSTILE:
                if (last, value) == ("model", "text"):  # two models in a file end the run
                    continue
                changed = deepcopy(body)
                inside = changed
                for key in way:
                    inside = inside[key]
                inside[last] = value
                line = f"data: {json.dumps(changed)}\n\n" if event else changed
                yield [*rows[:at], line, *rows[at + 1 :]]


@pytest.mark.parametrize("engine", FORMATS)
def test_no_value_of_a_field_breaks_a_file(engine: str, model: Path, tmp_path: Path) -> None:
    """Whatever is wrong costs no other answer, and no wrong token gets through."""
    tokenizer = load_tokenizer(str(model), None, "target")
    settings = tiny.prompts_node(Path("none"), Path("none")).spec.settings
    path = tmp_path / "served.jsonl"
    for rows in damaged(FORMATS[engine]):
        answers, _ = read_served(lines(path, GOOD, *rows))
        assert (answers[0].name, answers[0].reply.ids) == ("good", IDS)
        for name, _, reply in answers:
            assert reply.request is not None
            prompt, _ = prompt_of(tokenizer, reply.request, settings)
            given = [*prompt, *(reply.ids or ())]
            assert all(type(token) is int and 0 <= token < 2**31 for token in given), rows
            if reply.ids is None and reply.text is not None and reply.text.isascii():
                given += answer_of(tokenizer, reply, Counter())
            pa.table([[name], [given]], schema=columns.schema("prompts", "answers"))


@pytest.mark.parametrize("token", [-1, 2**31, 5.5, 20.0, True, None, "text"])
def test_a_wrong_token_id_is_counted_with_its_line(token: Any, tmp_path: Path) -> None:
    wrong = {"request": ASKED, "response": chat("wrong", [20, token])}
    right = {"request": ASKED, "response": chat("right", [0, 2**31 - 1])}
    answers, excluded = read_served(lines(tmp_path / "a", GOOD, wrong, wrong, right))
    assert [answer.reply.ids for answer in answers] == [IDS, [0, 2**31 - 1]]
    assert excluded == {TOKEN_IDS.format(2, token if token != "text" else "'text'"): 2}


def test_content_parts_are_texts(model: Path, tmp_path: Path) -> None:
    """In a request, in an answer, in a conversation and in the project's own form."""
    asked = {"messages": [{"role": "user", "content": PARTS}]}
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    path = lines(
        tmp_path / "served.jsonl",
        {"request": asked, "response": chat("chat", None, message={"content": PARTS})},
        {"messages": [*asked["messages"], {"role": "assistant", "content": PARTS}]},
        {"prompt": PARTS, "answer": PARTS},
        {"request": {"text": ["ab"]}, "response": {"text": "ab", "meta_info": {"id": "s"}}},
        {"request": {"messages": [{"role": "user", "content": image}]},
         "response": chat("image", IDS)},
        {"request": asked, "response": chat("drawn", None, message={"content": image})},
    )  # fmt: skip
    answers, excluded = read_served(path)
    assert [answer.reply.text for answer in answers[:4]] == ["ab"] * 4
    assert excluded == {EMPTY: 1}
    (prompts,) = node(model, path).upstream["prompts"]
    made = tiny.built(prompts, tmp_path)
    tokenizer = load_tokenizer(str(model), None, "target")
    rendered = tokenizer.encode("<|user|>ab<|answer|><|end|>")
    assert made.read()["token_ids"].to_pylist() == [rendered] * 3 + [tokenizer.encode("ab")]
    assert made.record.facts["excluded"] == {EMPTY: 1, NO_TEXT: 1}


def test_answers_side_by_side_are_all_read(tmp_path: Path) -> None:
    """On one line, as curl leaves them; those without a name of their own, too."""
    rows = [{"prompt": [5], "answer": [20 + at]} for at in range(3)]
    text = " ".join(map(json.dumps, rows)) + "\n" + json.dumps(rows)
    answers, excluded = read_served(lines(tmp_path / "served.jsonl", text))
    assert [answer.reply.ids for answer in answers] == [[20], [21], [22]] * 2
    assert [answer.name for answer in answers][:4] == ["line-1", "line-1.1", "line-1.2", "line-2"]
    assert excluded == {}
    assert len(list(read_objects(lines(tmp_path / "done", '{"a": 1}[DONE]\n', "[DONE] x")))) == 2


def test_a_file_without_newlines_takes_linear_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each character is decoded once: the decoder is given the whole text each time."""
    given = set[int]()
    decode = json.JSONDecoder.raw_decode

    def noting(self: json.JSONDecoder, text: str, idx: int = 0) -> Any:
        given.add(len(text))
        return decode(self, text, idx)

    monkeypatch.setattr(json.JSONDecoder, "raw_decode", noting)
    path = tmp_path / "served.json"
    path.write_text("".join(json.dumps(GOOD) for _ in range(50)))
    assert len(list(read_objects(path))) == 50
    assert len(given) == 1

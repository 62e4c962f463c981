"""Formats of answers that an engine served, whole and damaged."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.engines.written.answers import AGAIN, CUT, NO_JSON, TORN
from pipeline.engines.written.served import ALONE, APART, EMPTY, read_served
from pipeline.errors import PipelineError
from tests.pipeline.served import ASKED, IDS, chat, lines


def chunks(name: str, ids: list[int]) -> list[str]:
    """A stream of vLLM: the role, two tokens an event, and the usage."""
    head = {"id": name, "object": "chat.completion.chunk", "model": "m"}
    parts = [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
    for at in range(0, len(ids), 2):
        end = "length" if at + 2 >= len(ids) else None
        part = {"delta": {"content": "."}, "token_ids": ids[at : at + 2], "finish_reason": end}
        parts.append(part)
    events = [{**head, "choices": [{"index": 0, **part}]} for part in parts]
    events.append({**head, "choices": [], "usage": {"completion_tokens": len(ids)}})
    return [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n"]


def llama(content: str, tokens: list[int], stop: bool, **more: Any) -> dict[str, Any]:
    return {"index": 0, "content": content, "tokens": tokens, "stop": stop, **more}


SGLANG = {"text": "ab", "output_ids": IDS, "meta_info": {"id": "s", "finish_reason": {
    "type": "length", "length": 4}}}  # fmt: skip
LOGGED = {"content": [{"token": f"token_id:{token}", "logprob": -1.0} for token in IDS]}
FORMATS: dict[str, list[Any]] = {
    "own": [{"prompt": [5, 6], "answer": IDS}],
    "vllm chat": [{"request": ASKED, "response": chat("v", IDS)}],
    "vllm chat, prompt ids": [{**chat("v", IDS), "prompt_token_ids": [5, 6]}],
    "vllm chat, logged ids": [{"request": ASKED, "response": chat("v", None, logprobs=LOGGED)}],
    "vllm stream": [ASKED, *chunks("v", IDS)],
    "vllm completions": [{"request": {"prompt": [5, 6]}, "response": {"id": "v", "choices": [
        {"text": "ab", "token_ids": IDS, "finish_reason": "length"}]}}],
    "batch": [{"custom_id": "q", "url": "/v1/chat/completions", "body": ASKED},
              {"custom_id": "q", "response": {"status_code": 200, "body": chat("v", IDS)}}],
    "sglang": [{"request": {"text": "a question", "sampling_params": {"temperature": 0}},
                "response": SGLANG}],
    "sglang stream": [{"input_ids": [5, 6]}, *(f"data: {json.dumps(one)}\n\n" for one in (
        {"text": "a", "output_ids": IDS[:2], "meta_info": {"id": "s", "finish_reason": None}},
        SGLANG))],
    "tensorrt-llm": [ASKED, {**chat("chatcmpl-1", None), "usage": {"total_tokens": 5}}],
    "llama.cpp": [llama("ab", IDS, True, prompt="a question", stop_type="limit")],
    "llama.cpp stream": [{"prompt": "a question"}, *(f"data: {json.dumps(one)}\n\n" for one in (
        llama("a", IDS[:2], False), llama("b", IDS[2:], False),
        llama("", [], True, stop_type="eos")))],
    "conversation": [{"messages": [*ASKED["messages"], {"role": "assistant", "content": "ab"}]}],
}  # fmt: skip


@pytest.mark.parametrize("engine", FORMATS)
def test_every_format_gives_what_was_asked_and_answered(engine: str, tmp_path: Path) -> None:
    answers, excluded = read_served(lines(tmp_path / "served.jsonl", *FORMATS[engine]))
    ((_, _, reply),) = answers
    assert excluded == {}
    given = engine not in ("tensorrt-llm", "conversation")
    assert reply.ids == (IDS if given else None)
    assert given or reply.text == "ab"
    asked = reply.request
    assert asked is not None
    assert asked.prompt_ids == [5, 6] or asked.prompt == "a question" or (
        asked.messages == ASKED["messages"]
    )  # fmt: skip
    ended = ("vllm chat", "batch", "tensorrt-llm", "llama.cpp stream")
    assert reply.ended is (engine.startswith(ended))


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    own = {"prompt": "a", "answer": "b"}
    stopped = chunks("cut", IDS)[:2]
    path = lines(
        tmp_path / "served.jsonl", own, "curl: (7) Failed\n", {"detail": "Not Found"}, 12, [],
        {"request": ASKED, "response": chat("twice", IDS)},
        {"request": ASKED, "response": chat("twice", IDS)},
        {"request": ASKED, "response": chat("empty", None, "")},
        {"request": ASKED, "response": chat("alone", None, "x", message={
            "content": "x", "reasoning_content": "y"})},
        {"request": ASKED, "response": {"choices": [3]}},
        {"choices": [{"message": {"content": "whose?"}, "finish_reason": "stop"}]},
        {"answer": "whose?"}, {"messages": [*ASKED["messages"], {"role": "assistant"}]},
        ASKED, *stopped, '{"prompt": "a", "ans',
    )  # fmt: skip
    answers, excluded = read_served(path)
    assert [answer.name for answer in answers] == ["line-1", "twice", "cut"]
    assert answers[-1].reply.ids == IDS[:2]
    wrong = "choices[] is wrong (first in line 10: 3: input should be a valid dictionary)"
    assert excluded == {
        NO_JSON: 2, "answers with an error": 1, "objects that are no answers": 1, AGAIN: 1, CUT: 1,
        EMPTY: 2, APART: 1, ALONE: 2, f"lines whose {wrong}": 1,
    }  # fmt: skip
    for nothing in ("", "nonsense\n", json.dumps(ASKED)):
        with pytest.raises(PipelineError, match=r"distributions.answers: .* has no answer that"):
            read_served(lines(path, nothing))


@pytest.mark.parametrize("engine", ["vllm chat", "vllm stream", "batch", "sglang", "sglang stream",
                                    "tensorrt-llm", "llama.cpp", "llama.cpp stream"])  # fmt: skip
def test_a_damaged_line_costs_its_own_answer_alone(engine: str, tmp_path: Path) -> None:
    """Each line of three answers in turn; of a stream stays what comes before."""
    one = lines(tmp_path / "served [1].jsonl", *FORMATS[engine]).read_text().rstrip("\n")
    texts = []
    for number in "345":  # other questions, names, texts and tokens
        text = re.sub(r"\b2([0-3])\b", rf"{number}\1", one).replace("[5, 6]", f"[{number}]")
        for word in ("a question", "v", "s", "q", "ab", "chatcmpl-1"):
            text = text.replace(f'"{word}"', f'"{word}{number}"')
        texts.append(text)
    whole = "\n".join(texts).encode().split(b"\n")
    path = tmp_path / "served [1].jsonl"

    def read(content: list[bytes]) -> tuple[dict[str, list[Any]], dict[str, int]]:
        path.write_bytes(b"\n".join(content))
        answers, excluded = read_served(path)
        found = {str(reply.request): [*(reply.ids or reply.text or "")] for *_, reply in answers}
        return found, excluded

    answers, excluded = read(whole)
    assert (len(answers), excluded) == (3, {})
    again = {} if engine.startswith("llama") else {AGAIN: 3}  # whose answers have no names
    assert read([*whole, *whole]) == (answers, again)
    torn = 0
    for at, line in enumerate(whole):
        for damage in (line[:-3], line[:-3] + b"\xff" + line[-3:]) if line else ():
            left, excluded = read([*whole[:at], damage, *whole[at + 1 :]])
            mine = [*answers][3 * at // len(whole)]
            own = left.pop(mine, [])
            assert left == {asked: ids for asked, ids in answers.items() if asked != mine}
            assert (answers[mine][: len(own)], excluded[NO_JSON]) == (own, 1)
            assert own in ([], answers[mine]) or excluded[CUT] == 1
            torn += excluded.get(TORN, 0)
    assert (torn > 0) == ("stream" in engine)

"""Prompts and answers that an engine served, as the tokens that the target reads.

| line | what it is |
|---|---|
| {"prompt": ..., "answer": ...} | texts, or lists of token ids |
| {"messages": [...]} | a conversation, the last message of the assistant |
| {"request": {...}, "response": {...}} | as it was asked, and as it was answered |
| a request, or a line of a batch's input | of the next answer, or of that with its custom_id |
| an answer, or an event of its stream | as in `engine_answers` |

An answer with its prompt_token_ids (vLLM, return_token_ids) or its prompt (llama.cpp) needs no
request. docs/log.md names the sources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.errors import PipelineError
from pipeline.formats.engine_answers import (
    DAMAGED,
    REQUEST,
    Line,
    Part,
    body_of,
    counted,
    read_answers,
    read_objects,
)
from pipeline.formats.engine_steps import logged_id
from pipeline.formats.prompt_files import is_text
from pipeline.models.load import load_tokenizer
from pipeline.models.prompt_tokens import encode, encode_chat
from pipeline.store import columns
from pipeline.store.artifacts import Pending
from pipeline.store.identity import local_path
from pipeline.store.node import Node

SAMPLING = ("temperature", "top_p", "top_k")
ASKED = {"messages", "prompt", "text", "input_ids"}  # of a request
ANSWERED = {"choices", "answer", "meta_info", "content"}
ELSEWHERE = ("reasoning_content", "reasoning", "tool_calls")  # parts of an answer beside its text
ENDED = ("stop", "eos")  # why an answer ended, if with the model's own end token
ALONE = "answers without their request or prompt_token_ids"
APART = "answers whose reasoning or tool calls stand apart: ask for return_token_ids"
EMPTY = "answers without text or tokens"
UNKNOWN = "\ufffd"  # what engines write for bytes that are no text
CHANGED = "answers whose text does not come back from its tokens: log token ids"
NO_TEXT = "prompts or answers that are no text"
REFUSED = "prompts that the chat template refuses"

Served = dict[str, Any]  # name, line, request, text, ids, ended; see `read_served`


def write_served(node: Node, pending: Pending) -> None:
    """Write the prompts and answers of all files, and what was left out of them.

    Raises:
        PipelineError: a file can't be read, or has no answer; or the tokenizer has no template.
    """
    settings = node.settings
    tokenizer = load_tokenizer(settings["model"], settings["model_revision"], "target")
    rows: list[dict[str, Any]] = []
    answers: dict[str, list[int]] = {}
    excluded, noted, sampling = Counter[str](), Counter[str](), dict[str, set[float]]()
    given = 0
    for at, path in enumerate(settings["answers"], start=1):
        local = local_path(path)
        assert local is not None
        found, left_out = read_served(local)
        excluded.update(left_out)
        refusal = None
        for one in found:
            try:
                ids, text = prompt_of(tokenizer, one["request"], node.config)
            except PipelineError as error:
                refusal = error
                excluded[REFUSED] += 1
                continue
            if not ids or not (one["ids"] or is_text(one["text"])):
                excluded[NO_TEXT] += 1
                continue
            for option in SAMPLING:
                if one["request"].get(option) is not None:
                    sampling.setdefault(option, set()).add(one["request"][option])
            given += one["ids"] is not None
            name = one["name"] if one["name"] not in answers else f"{one['name']}@{at}"
            answers[name] = one["ids"] or answer_of(tokenizer, one, noted)
            rows.append(
                {
                    "prompt_id": name,
                    "source": local.name,
                    "source_row": one["line"],
                    "text": text,
                    "later_turns": [],
                    "token_ids": ids,
                    "n_tokens": len(ids),
                }
            )
        if refusal is not None and not rows:
            raise refusal
    if not rows:
        raise PipelineError(f"distributions.answers: no answer is left: {counted(excluded)}")
    pending.write("data", pa.Table.from_pylist(rows, schema=columns.schema("prompts")))
    table = [list(answers), list(answers.values())]
    pending.write("answers", pa.table(table, schema=columns.schema("prompts", "answers")))
    pending.facts |= {
        "answers": len(rows),
        "given_ids": given,
        "excluded": dict(excluded),
        "noted": dict(noted),
        "sampling": {option: sorted(values) for option, values in sampling.items()},
    }
    print(
        f"prompts {node.label}: {len(rows)} answers, {given} with token ids; left out or cut off: "
        f"{counted(excluded)}" + (f"; {counted(noted)}" if noted else ""),
        flush=True,
    )


def prompt_of(tokenizer: Any, request: Served, config: Mapping[str, Any]) -> tuple[list[int], str]:
    """Return the tokens of what was asked, and its text; no tokens where it is no text.

    Raises:
        PipelineError: the chat template does not take it.
    """
    if request.get("prompt_ids"):
        return request["prompt_ids"], tokenizer.decode(request["prompt_ids"])
    asked = request.get("enable_thinking")
    thinking = config["enable_thinking"] if asked is None else asked
    if request.get("messages"):
        messages = [{**one, "content": _text(one.get("content"))} for one in request["messages"]]
        if not all(is_text(one["content"]) for one in messages):
            return [], ""
        ids = encode_chat(tokenizer, messages, enable_thinking=thinking)
        return ids, messages[-1]["content"]
    prompt = request["prompt"]
    if not is_text(prompt):
        return [], ""
    template = config["template"] if request["chat"] is None else "none"
    return encode(tokenizer, [prompt], template, enable_thinking=thinking), prompt


def _text(content: Any) -> Any:
    """Return the text of a message, whose parts are joined; what is no text is returned."""
    if isinstance(content, list) and all(part.get("type") == "text" for part in content):
        return "".join(part["text"] for part in content)
    return content


def answer_of(tokenizer: Any, one: Served, noted: Counter[str]) -> list[int]:
    """Return the tokens of an answer's text, and the end token where the model ended it."""
    ids: list[int] = tokenizer.encode(one["text"], add_special_tokens=False)
    back = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    if back != one["text"] or UNKNOWN in back:
        noted[CHANGED] += 1
    end = tokenizer.eos_token_id
    return ids + ([end] if one["ended"] and end is not None and ids[-1:] != [end] else [])


def read_served(path: Path) -> tuple[list[Served], dict[str, int]]:
    """Return the answers of a file, in its order, and how many lines or answers are left out.

    Each has its name and line; request: what was asked (messages, prompt or prompt_ids, and how it
    was sampled); text and ids: the answer, one of them None; ended: whether the model ended it.

    Raises:
        PipelineError: the file can't be read, mixes two models, or has no answer.
    """
    found, _, excluded = read_answers(path, _with_requests(read_objects(path)), _said)
    answers = []
    for name, (line, parts) in found.items():
        one = _joined(parts)
        why = ALONE if not one["request"] else EMPTY if not (one["ids"] or one["text"]) else None
        why = why or (APART if one.pop("apart") and not one["ids"] else None)
        if why:
            excluded[why] += 1
        else:
            answers.append({"name": name, "line": line, **one})
    if not answers:
        raise PipelineError(
            f"distributions.answers: {path} has no answer that can be scored; left out: "
            f"{counted(excluded)}. A line is an answer with its request (docs/answers.md)"
        )
    return answers, dict(+excluded)


def _with_requests(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield the objects, REQUEST for a request, each answer with what was asked, as `asked`.

    An answer in a form of the project's own becomes a choice. A damaged line may have been the
    request of the answers that follow.
    """
    requests: dict[Any, Mapping[str, Any]] = {}
    last: Mapping[str, Any] | None = None
    for line, value, streamed in lines:
        read = body_of(value)
        last = None if value is DAMAGED else last
        if isinstance(read, str):
            yield line, value, streamed
            continue
        body, custom = read
        messages: Any = body.get("messages")
        given = value.get("request")
        final: Any = messages[-1] if isinstance(messages, list) and messages else None
        replied = isinstance(final, Mapping) and final.get("role") == "assistant"
        if not isinstance(given, Mapping):
            if ASKED & set(body) and not ANSWERED & set(body) and not replied:
                requests[custom] = last = body
                yield line, REQUEST, streamed
                continue
            given = last if custom is None else requests.get(custom)
        asked = _asked(given)
        if "answer" in body or (replied and "choices" not in body):
            reply = body["answer"] if "answer" in body else final.get("content")
            asked = _asked(body if "answer" in body else {**body, "messages": messages[:-1]})
            if asked and "messages" not in body:
                asked["chat"] = None  # as prompts.template says
            ended = "stop" if body.get("finish_reason") in ENDED else "length"
            said = "token_ids" if isinstance(reply, list) else "text"
            name = body.get("id") or body.get("prompt_id")
            body = {"id": name, "choices": [{said: reply, "finish_reason": ended}]}
        yield line, {"custom_id": custom, "response": {**body, "asked": asked}}, streamed


def _asked(request: Mapping[str, Any] | None) -> Served:
    """Return what a request asked: messages, prompt or prompt_ids, and how it was sampled."""
    if request is None:
        return {}
    options = request.get("sampling_params") or {}  # of SGLang's /generate
    found = {name: options.get(name, request.get(name)) for name in SAMPLING}
    ids = request.get("input_ids")
    prompt = request.get("prompt", request.get("text"))
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]  # a list of one prompt
    if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
        prompt, ids = None, prompt
    template = request.get("chat_template_kwargs") or {}
    found |= {"messages": request.get("messages"), "prompt": prompt, "prompt_ids": ids}
    found["enable_thinking"] = template.get("enable_thinking")
    found["chat"] = isinstance(request.get("messages"), list)
    return found if any(found[name] for name in ("messages", "prompt", "prompt_ids")) else {}


def _said(part: Part) -> Served:
    """Return what a part of an answer says: request, text, ids, ended, apart, replaces."""
    said, body, request, apart = part.said, part.body, part.body["asked"], False
    if part.place == "choices":
        message = said.get("message") or said.get("delta") or said
        text = message.get("content", message.get("text"))
        ids = said.get("token_ids") or _logged_ids(said.get("logprobs") or {})
        given = body.get("prompt_token_ids") or said.get("prompt_token_ids")
        request = request | ({"prompt_ids": given} if given else {})
        ended = said.get("finish_reason") == "stop" and said.get("stop_reason") is None
        apart = any(message.get(other) for other in ELSEWHERE)
    elif part.place == "meta_info":
        text, ids = body.get("text"), body.get("output_ids")
        reason = said.get("finish_reason") or {}
        ended = reason.get("type") == "stop" and not isinstance(reason.get("matched"), str)
    else:
        text, ids = body.get("content"), body.get("tokens")
        request = _asked(body) or request
        ended = body.get("stop_type") in ENDED
    replaces = part.place == "meta_info"  # an event of SGLang's has all of the answer so far
    found = {"request": request, "text": text, "ids": ids or None, "ended": ended}
    return found | {"apart": apart, "replaces": replaces}


def _joined(parts: list[Served]) -> Served:
    """Return the parts of an answer as one: request, text, ids, ended, apart."""
    told = [part for part in parts if part["text"] or part["ids"]]
    told = told[-1:] if any(part["replaces"] for part in told) else told
    texts = [part["text"] for part in told if part["text"]]
    known = all(part["ids"] for part in told)
    return {
        "request": next((part["request"] for part in parts if part["request"]), {}),
        "text": "".join(texts) or None,
        "ids": [token for part in told for token in part["ids"]] or None if known else None,
        "ended": any(part["ended"] for part in parts),
        "apart": any(part["apart"] for part in parts),
    }


def _logged_ids(logprobs: Mapping[str, Any]) -> list[int] | None:
    """Return the ids of the tokens whose log-probabilities an answer has, where it has all ids."""
    texts = logprobs.get("tokens") or []  # of completions
    entries = logprobs.get("content") or [{"token": text} for text in texts]
    ids = [logged_id(entry) for entry in entries]
    return [token for token in ids if token is not None] if None not in ids else None

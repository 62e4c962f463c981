"""Prompts and answers that an engine served: what was asked, and what came back.

| line | what it is |
|---|---|
| {"prompt": ..., "answer": ...} | texts, or lists of token ids |
| {"messages": [...]} | a conversation, the last message of the assistant |
| {"request": {...}, "response": {...}} | as it was asked, and as it was answered |
| a request, or a line of a batch's input | of the next answer, or of that with its custom_id |
| an answer, or an event of its stream | of vLLM, SGLang, TensorRT-LLM (chat, completions), |
| | of /generate of SGLang, of /completion of llama.cpp |

An answer with its prompt_token_ids (vLLM, return_token_ids) or its prompt (llama.cpp) needs no
request. docs/answers.md names the sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError
from pipeline.formats.engine_answers import TOKEN_ID
from pipeline.formats.engine_lines import body_of, count, counted, read_objects

SAMPLING = ("temperature", "top_p", "top_k")
ASKED = ("messages", "prompt", "text", "input_ids")  # of a request
ANSWERED = ("choices", "answer", "meta_info", "content")
ELSEWHERE = ("reasoning_content", "reasoning", "tool_calls")  # parts of an answer beside its text
ENDED = ("stop", "eos")  # why an answer ended, if with the model's own end token
ALONE = "answers without their request or prompt_token_ids"
APART = "answers whose reasoning or tool calls stand apart: ask for return_token_ids"
EMPTY = "answers without text or tokens"
CUT = "ends of answers that were cut off"
AGAIN = "answers given again"

BLANK = {"text": None, "ids": None, "whole": False, "ended": False, "apart": False}
Served = dict[str, Any]  # name, line, request, text, ids, ended; see `read_served`


def read_served(path: Path) -> tuple[list[Served], dict[str, int]]:
    """Return the answers of a file, in its order, and how many lines or answers are left out.

    Each has its name and line; request: what was asked (messages, prompt or prompt_ids, and how it
    was sampled); text and ids: the answer, one of them None; ended: whether the model ended it.

    Raises:
        PipelineError: the file can't be read, or has no answer.
    """
    excluded: dict[str, int] = {}
    requests: dict[Any, Mapping[str, Any]] = {}
    last: Mapping[str, Any] | None = None
    held: dict[str, Served] = {}
    open_: str | None = None
    for line, value, streamed in read_objects(path, excluded):
        read = body_of(value)
        if isinstance(read, str):
            count(excluded, read)
            continue
        body, custom = read
        given = value.get("request")
        request = given if isinstance(given, Mapping) else None
        if request is None and _asks(body):
            requests[custom], last = body, body
            continue
        request = request or requests.get(custom) or (last if custom is None else None)
        try:
            found = list(_parts(body, custom, line, streamed))
        except (AttributeError, KeyError, IndexError, TypeError, ValueError):
            found = []
        if not found and body.get("choices") != []:  # as the last event of a stream is
            count(excluded, "objects that are no answers")
        for name, part in found:
            key = name or open_ or f"line-{line}"
            one = held.setdefault(key, {"name": key, "line": line, "request": {}} | BLANK)
            if one["whole"]:
                if part["text"] or part["ids"]:
                    count(excluded, AGAIN)
                continue
            one["request"] = part.pop("request") or one["request"] or _asked(request)
            if part["replaces"]:
                one |= {"text": None, "ids": None}
            one["lacking"] = one.get("lacking") or bool(part["text"] and not part["ids"])
            for what in ("text", "ids"):
                if part[what]:
                    one[what] = one[what] + part[what] if one[what] else part[what]
            one |= {what: part[what] or one[what] for what in ("whole", "ended", "apart")}
            open_ = key if name is None and not part["whole"] else None
    answers = []
    for one in held.values():
        if one["lacking"]:
            one["ids"] = None
        why = ALONE if not one["request"] else EMPTY if not (one["ids"] or one["text"]) else None
        why = why or (APART if one["apart"] and not one["ids"] else None)
        if why:
            count(excluded, why)
            continue
        if not one["whole"]:
            count(excluded, CUT)
        answers.append(one)
    if not answers:
        raise PipelineError(
            f"distributions.answers: {path} has no answer that can be scored; left out: "
            f"{counted(excluded)}. A line is an answer with its request (docs/answers.md)"
        )
    return answers, excluded


def _asks(body: Mapping[str, Any]) -> bool:
    """Whether an object is a request: it asks, and answers nothing."""
    messages = body.get("messages")
    if isinstance(messages, list) and messages and isinstance(messages[-1], Mapping):
        return messages[-1].get("role") != "assistant" and not set(ANSWERED) & set(body)
    return bool(set(ASKED) & set(body)) and not set(ANSWERED) & set(body)


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


def _parts(
    body: Mapping[str, Any], custom: Any, line: int, streamed: bool
) -> Iterator[tuple[str | None, Served]]:
    """Yield the parts of answers in an object, each with its name."""
    part: Served = BLANK | {"request": {}, "replaces": False, "whole": True}
    chunk = streamed or str(body.get("object", "")).endswith(".chunk")
    name = str(custom or body.get("id") or "") or None
    if "choices" in body:
        for choice in body["choices"]:
            index = choice.get("index") or 0
            said = choice.get("message") or choice.get("delta") or choice
            reason = choice.get("finish_reason")
            ids = choice.get("token_ids") or _logged_ids(choice.get("logprobs") or {})
            prompt_ids = body.get("prompt_token_ids") or choice.get("prompt_token_ids")
            yield (
                (name or f"line-{line}") + (f"#{index}" if index else ""),
                part
                | {
                    "request": {"prompt_ids": prompt_ids} if prompt_ids else {},
                    "text": said.get("content", said.get("text")),
                    "ids": ids,
                    "whole": reason is not None or not chunk,
                    "ended": reason == "stop" and choice.get("stop_reason") is None,
                    "apart": any(said.get(other) for other in ELSEWHERE),
                },
            )
    elif isinstance(body.get("meta_info"), Mapping):
        info = body["meta_info"]
        reason = info.get("finish_reason") or {}
        part |= {"text": body.get("text"), "ids": body.get("output_ids"), "replaces": streamed}
        ended = reason.get("type") == "stop" and not isinstance(reason.get("matched"), str)
        part |= {"whole": bool(reason) or not chunk, "ended": ended}
        yield str(custom or info.get("id") or f"line-{line}"), part
    elif {"content", "stop"} <= set(body):
        asked = {"prompt": body.get("prompt"), "prompt_ids": None, "chat": False}
        part |= {"request": asked if asked["prompt"] else {}, "whole": bool(body["stop"])}
        part |= {"text": body["content"], "ids": body.get("tokens") or None}
        yield name, part | {"ended": body.get("stop_type") in ENDED}
    elif "answer" in body or "messages" in body:
        asked = dict(body)
        if "answer" not in body:
            *asked["messages"], reply = body["messages"]
            asked["answer"] = reply["content"]
        ids = asked["answer"] if isinstance(asked["answer"], list) else None
        part |= {"text": None if ids else asked["answer"], "ids": ids}
        chat = {"chat": None} if "messages" not in body else {}  # as prompts.template says
        part |= {"request": _asked(asked) | chat, "ended": body.get("finish_reason") in ENDED}
        yield name or str(body.get("prompt_id") or f"line-{line}"), part


def _logged_ids(logprobs: Mapping[str, Any]) -> list[int] | None:
    """Return the ids of the tokens whose log-probabilities an answer has, where it has all ids."""
    texts = logprobs.get("tokens") or []  # of completions
    entries = logprobs.get("content") or [{"token": text} for text in texts]
    ids: list[int] = []
    for entry in entries:
        named = TOKEN_ID.fullmatch(str(entry.get("token")))
        token = entry.get("id", int(named[1]) if named else None)
        if type(token) is not int:
            return None
        ids.append(token)
    return ids or None

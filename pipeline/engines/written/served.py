"""Answers that an engine served, each with its request, from a file of lines.

| line | what it is |
|---|---|
| {"prompt": ..., "answer": ...} | texts, or lists of token ids |
| {"messages": [...]} | a conversation, the last message of the assistant |
| {"request": {...}, "response": {...}} | as it was asked, and as it was answered |
| a request, or a line of a batch's input | of the next answer, or of that with its custom_id |
| an answer, or an event of its stream | as in `answers` |

An answer with its prompt_token_ids (vLLM, return_token_ids) or its prompt (llama.cpp) needs no
request. A line with a field of a wrong type counts as damaged. docs/answers.md names the sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from pipeline.engines.written.answers import (
    REQUEST,
    Damaged,
    Line,
    Part,
    body_of,
    counted,
    read_answers,
    read_objects,
)
from pipeline.engines.written.logs import MASKED
from pipeline.engines.written.served_lines import (
    Body,
    Message,
    WrongFieldError,
    logged_ids,
    typed_body,
    typed_line,
)
from pipeline.engines.written.steps import logged_steps
from pipeline.errors import PipelineError

SAMPLING = ("temperature", "top_p", "top_k")
ASKED = {"messages", "prompt", "text", "input_ids"}  # of a request
ANSWERED = {"choices", "answer", "meta_info", "content"}
ELSEWHERE = ("reasoning_content", "reasoning", "tool_calls")  # parts of an answer beside its text
ENDED = ("stop", "eos")  # why an answer ended, if with the model's own end token
ALONE = "answers without their request or prompt_token_ids"
APART = "answers whose reasoning or tool calls stand apart: ask for return_token_ids"
EMPTY = "answers without text or tokens"

LogProbs = list[dict[int, float]]  # of each token of an answer: log-probabilities by token id


class Request(NamedTuple):
    """A question to a model.

    Attributes:
        messages: of a conversation, else None.
        prompt: text, else None.
        prompt_ids: its tokens, else None.
        chat: whether the engine applied the chat template; None: as prompts.template says.
        enable_thinking: passed to the chat template, None where the request has none.
        sampling: temperature, top_p and top_k, of those that it gives.
    """

    messages: list[Message] | None
    prompt: str | None
    prompt_ids: list[int] | None
    chat: bool | None
    enable_thinking: bool | None
    sampling: dict[str, float]


class Reply(NamedTuple):
    """An answer, or a part of it.

    Attributes:
        request: its question, None where the file has none.
        text: None where there is none.
        ids: its tokens, None without ids.
        ended: whether the model ended it.
        apart: whether reasoning or tool calls stand beside the text.
        log_probs: of each token, None where the engine gave none.
    """

    request: Request | None
    text: str | None
    ids: list[int] | None
    ended: bool
    apart: bool
    log_probs: LogProbs | None


class Served(NamedTuple):
    """An answer, with its name and the line where it begins."""

    name: str
    line: int
    reply: Reply


def read_served(path: Path) -> tuple[list[Served], dict[str, int]]:
    """Return the answers of a file, in its order, and how many lines or answers are left out.

    Every answer has a request, and a text or tokens.

    Raises:
        PipelineError: the file can't be read, mixes two models, or has no answer.
    """
    replies, _, excluded = read_answers(path, _with_requests(read_objects(path)), _reply)
    answers = []
    for name, (line, parts) in replies.items():
        reply = _joined(parts)
        why = ALONE if reply.request is None else EMPTY if not (reply.ids or reply.text) else None
        why = why or (APART if reply.apart and not reply.ids else None)
        if why:
            excluded[why] += 1
        else:
            answers.append(Served(name, line, reply))
    if not answers:
        raise PipelineError(
            f"distributions.answers: {path} has no answer that can be scored; left out: "
            f"{counted(excluded)}. A line is an answer with its request (docs/answers.md)"
        )
    return answers, dict(+excluded)


def _with_requests(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield the objects, REQUEST for a request, each answer with its request, as `question`.

    An answer in a form of the project's own becomes a choice. A damaged line may have been the
    request of the answers that follow.
    """
    requests: dict[str | int | None, Request | None] = {}
    last: Request | None = None
    reasons: dict[str, str] = {}
    for line, value, streamed in lines:
        read = body_of(value)
        last = None if isinstance(value, Damaged) else last
        if isinstance(read, str):
            yield line, value, streamed
            continue
        try:
            body, around = typed_body(read[0]), typed_line(value)
        except WrongFieldError as error:
            last = None
            reason = f"lines whose {error.field} is wrong (first in line {line}: {error.problem})"
            yield line, Damaged(reasons.setdefault(error.field, reason)), streamed
            continue
        custom, given = around.get("custom_id"), around.get("request")
        messages = body.get("messages") or []
        replied = bool(messages) and messages[-1].get("role") == "assistant"
        if given is not None:
            question = _asked(given)
        elif ASKED & set(body) and not ANSWERED & set(body) and not replied:
            requests[custom] = last = _asked(body)
            yield line, REQUEST, streamed
            continue
        else:
            question = last if custom is None else requests.get(custom)
        answer: Mapping[str, Any] = body
        if "answer" in body or (replied and "choices" not in body):
            question, answer = _own(body)
        yield line, {"custom_id": custom, "response": {**answer, "question": question}}, streamed


def _own(body: Body) -> tuple[Request | None, dict[str, Any]]:
    """Return the request of a line in a form of the project's own, and its answer as a choice."""
    if "answer" in body:
        reply, question = body["answer"], _asked(body)
    else:
        messages = body["messages"] or []
        reply = messages[-1].get("content")
        question = _asked({**body, "messages": messages[:-1]})
    if question is not None and "messages" not in body:
        question = question._replace(chat=None)
    choice = {
        "token_ids" if isinstance(reply, list) else "text": reply,
        "finish_reason": "stop" if body.get("finish_reason") in ENDED else "length",
    }
    return question, {"id": body.get("id") or body.get("prompt_id"), "choices": [choice]}


def _asked(request: Body) -> Request | None:
    """Return a request; None where it asks nothing."""
    options = request.get("sampling_params") or {}  # of SGLang's /generate
    sampling = {name: options.get(name, request.get(name)) for name in SAMPLING}
    prompt = request.get("prompt", request.get("text"))
    ids = prompt if isinstance(prompt, list) else request.get("input_ids")
    messages = request.get("messages")
    if not (messages or prompt or ids):
        return None
    return Request(
        messages or None,
        prompt if isinstance(prompt, str) else None,
        ids or None,
        messages is not None,
        (request.get("chat_template_kwargs") or {}).get("enable_thinking"),
        {name: cast(float, value) for name, value in sampling.items() if value is not None},
    )


def _reply(part: Part) -> tuple[Reply, bool]:
    """Return a part of an answer, and whether it replaces the parts before it, as SGLang's do."""
    # checked by `typed_body`
    place, body, request = cast(Any, part.content), cast(Any, part.body), part.body["question"]
    apart = False
    if part.place == "choices":
        message = place.get("message") or place.get("delta") or place
        text = message.get("content", message.get("text"))
        ids = place.get("token_ids") or logged_ids(place.get("logprobs") or {})
        given = body.get("prompt_token_ids") or place.get("prompt_token_ids")
        if given:
            request = (request or Request(None, None, None, False, None, {}))._replace(
                prompt_ids=given
            )
        ended = place.get("finish_reason") == "stop" and place.get("stop_reason") is None
        apart = any(message.get(other) for other in ELSEWHERE)
    elif part.place == "meta_info":
        text, ids = body.get("text"), body.get("output_ids")
        reason = place.get("finish_reason") or {}
        ended = reason.get("type") == "stop" and not isinstance(reason.get("matched"), str)
    else:
        text, ids = body.get("content"), body.get("tokens")
        request = request or _asked(body)  # the answer repeats the prompt as text
        ended = body.get("stop_type") in ENDED
    text = text if isinstance(text, str) else None
    reply = Reply(request, text, ids or None, ended, apart, _log_probs(part, ids or []))
    return reply, part.place == "meta_info"


def _log_probs(part: Part, ids: list[int]) -> LogProbs | None:
    """Return the log-probabilities of the tokens of a part, None where they are not of these."""
    try:
        steps = logged_steps(part, "generated")
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
    values: LogProbs = []
    for token, step in zip(ids, steps, strict=False):
        if step is None or (isinstance(step.emitted, int) and step.emitted != token):
            return None
        listed = {name: value for name, value in step.top if isinstance(name, int)}
        listed |= {} if step.own is None else {token: step.own}
        values.append({name: value for name, value in listed.items() if value > MASKED})
    return values if len(values) == len(ids) == len(steps) else None


def _joined(pieces: list[tuple[Reply, bool]]) -> Reply:
    """Return the parts of an answer as one."""
    parts = [part for part, _ in pieces]
    given = [part for part in parts if part.text or part.ids]
    given = given[-1:] if any(replaces for _, replaces in pieces) else given
    ids = [token for part in given for token in part.ids or []]
    values = [value for part in given for value in part.log_probs or []]
    return Reply(
        next((part.request for part in parts if part.request), None),
        "".join(part.text for part in given if part.text) or None,
        ids if ids and all(part.ids for part in given) else None,
        any(part.ended for part in parts),
        any(part.apart for part in parts),
        values if values and len(values) == len(ids) else None,
    )

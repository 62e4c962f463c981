"""The answers in an object of JSON that an engine wrote.

In OpenAI's layout (chat and completions) each of the object's `choices` is an answer; in an
engine's own layout (llama.cpp's /completion, SGLang's /generate) the object is. Either may be
wrapped as `pipeline.ask` saves it (custom_id, request, response, seconds), or as batch files do
(custom_id, response.body).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pipeline.engines.answers.checksums import CHANGED, is_unchanged
from pipeline.engines.engine_base import AnswerPart, mapping
from pipeline.engines.printed_text import printable
from pipeline.engines.registry import has_own_layout

NO_ANSWER = "objects that are no answers"
WITH_ERROR = "answers with an error"
MAX_SECONDS = 1e7  # of a request; more are damage
MAX_LOAD = 100_000  # requests at once; more are damage


def without_batch(value: Any) -> Any:
    """Return a line of a batch file (vLLM's run-batch, OpenAI's) as `pipeline.ask` writes it."""
    response = value.get("response") if isinstance(value, dict) else None
    body = response.get("body") if isinstance(response, dict) else None
    return value | {"response": body} if isinstance(body, dict) else value


def answer_parts(value: Any, line: int) -> list[AnswerPart] | str:
    """Return the answers in the object of a line, or why it has none."""
    if not isinstance(value, Mapping):
        return NO_ANSWER
    if not is_unchanged(value):
        return CHANGED
    body = value["response"] if isinstance(value.get("response"), Mapping) else value
    if _is_error(body):
        return WITH_ERROR
    name = value.get("custom_id")
    fallback = f"line-{line}"
    choices = body.get("choices")
    if isinstance(choices, list) and choices and all(isinstance(c, Mapping) for c in choices):
        name = printable(name or body.get("id") or body.get("request_id") or fallback)
        return [_part(_choice_name(name, choice), line, value, body, choice) for choice in choices]
    if has_own_layout(body):
        return [_part(printable(name or fallback), line, value, body, body)]
    return NO_ANSWER


def _is_error(body: Mapping[str, Any]) -> bool:
    has_error = body.get("error") is not None or "detail" in body or body.get("object") == "error"
    return has_error and "choices" not in body


def _choice_name(name: str, choice: Mapping[str, Any]) -> str:
    return f"{name}#{choice['index']}" if choice.get("index") else name


def _part(
    name: str,
    line: int,
    wrapper: Mapping[str, Any],
    body: Mapping[str, Any],
    content: Mapping[str, Any],
) -> AnswerPart:
    """Return an answer with what its wrapper says of the request."""
    seconds = wrapper.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        seconds = math.nan
    if not 0 < seconds < MAX_SECONDS:  # NaN compares as false
        seconds = math.nan
    load = wrapper.get("concurrent")
    if not (type(load) is int and 1 <= load <= MAX_LOAD):
        load = math.nan
    source = wrapper.get("source", wrapper.get("category"))  # Spec-Bench has the category
    return AnswerPart(
        name,
        line,
        mapping(wrapper.get("request")),
        body,
        content,
        seconds=float(seconds),
        load=float(load),
        source=printable(source) if isinstance(source, str) else "",
    )

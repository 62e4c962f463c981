"""The answers in a file that an engine wrote, one JSON object a line, in the order of the file.

A line is an answer as it came, or with its request as `pipeline.ask` saves it: custom_id, request,
response and seconds. The file may be packed with gzip; the chunks of a stream (`data: {...}`) are
put together. An answer has its tokens in `choices` (vLLM, llama.cpp and servers like them: chat and
completions), or beside `content` and `stop` (llama.cpp's /completion).
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pipeline.core.errors import PipelineError, first_line

NO_ANSWER = "objects that are no answers"
NO_JSON = "lines that are no JSON"
WITH_ERROR = "answers with an error"
AGAIN = "answers given again"
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # of terminals, or no valid Unicode

T = TypeVar("T")


class FormatError(Exception):
    """An answer is wrong; the message follows its file and line."""


class Part(NamedTuple):
    """An answer: a choice of an object, or all of it."""

    answer: str  # its name
    line: int  # where it stands
    request: Mapping[str, Any]  # what was asked, empty where the file does not have it
    body: Mapping[str, Any]  # the object
    content: Mapping[str, Any]  # the choice, or the object
    seconds: float  # that the request took, NaN where the file does not have it

    @property
    def is_choice(self) -> bool:
        """Whether it is one of `choices`; else it is llama.cpp's own layout."""
        return self.content is not self.body


def read_answers(
    path: Path, read: Callable[[Part], T]
) -> tuple[dict[str, T], str | None, Counter[str]]:
    """Read every answer of a file.

    Returns:
        What was read of each answer, by name; the model that the answers name, None where they
        name none; and how much of what was left out.
    """
    answers: dict[str, T] = {}
    excluded = Counter[str]()
    first: tuple[str, int] | None = None
    for line, value in _objects(read_bytes(path), excluded):
        parts = answer_parts(value, line)
        if isinstance(parts, str):
            excluded[parts] += 1
            continue
        model = parts[0].body.get("model")
        if isinstance(model, str) and model:
            first = first or (printable(model), line)
            if printable(model) != first[0]:
                raise PipelineError(
                    f"{path} mixes two models: {first[0]} in line {first[1]} and "
                    f"{printable(model)} in line {line}: give each its own file"
                )
        for part in parts:
            if part.answer in answers:
                excluded[AGAIN] += 1
                continue
            try:
                answers[part.answer] = read(part)
            except FormatError as error:
                raise PipelineError(f"{path}, line {line} {error}") from error
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                why = f"{type(error).__name__}: {first_line(error)}"
                raise PipelineError(f"{path}, line {line} can't be read ({why:.80})") from error
    return answers, None if first is None else first[0], excluded


def _objects(data: bytes, excluded: Counter[str]) -> Iterator[tuple[int, Any]]:
    """Yield each line's object, and behind them the answers that came in chunks."""
    streams: dict[str, tuple[int, dict[str, Any]]] = {}
    for line, raw in enumerate(data.split(b"\n"), start=1):
        text = raw.strip().removeprefix(b"data:").strip()
        if not text or text == b"[DONE]":
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            excluded[NO_JSON] += 1
            continue
        if not isinstance(value, dict) or not str(value.get("object")).endswith(".chunk"):
            yield line, value
            continue
        choices = value.get("choices") or []
        if isinstance(choices, list) and all(isinstance(choice, dict) for choice in choices):
            by_index = {str(choice.get("index")): choice for choice in choices}
            first, whole = streams.get(key := str(value.get("id")), (line, {}))
            streams[key] = first, _joined(whole, value | {"choices": by_index})
    for line, whole in streams.values():
        yield line, whole | {"choices": list(whole["choices"].values())}


def _joined(old: Any, new: Any) -> Any:
    """Return what was streamed with one more chunk: lists go on, other values are replaced."""
    if isinstance(old, list) and isinstance(new, list):
        return old + new
    if isinstance(old, dict) and isinstance(new, dict):
        told = {key: value for key, value in new.items() if value is not None}
        return old | {key: _joined(old.get(key), value) for key, value in told.items()}
    return new


def answer_parts(value: Any, line: int) -> list[Part] | str:
    """Return the answers in the object of a line, one a choice, or why it has none."""
    if not isinstance(value, Mapping):
        return NO_ANSWER
    body = value["response"] if isinstance(value.get("response"), Mapping) else value
    request = value["request"] if isinstance(value.get("request"), Mapping) else {}
    choices, took = body.get("choices"), value.get("seconds")
    seconds = took if isinstance(took, float) and 0 < took < 1e7 else math.nan
    wrong = body.get("error") is not None or "detail" in body or body.get("object") == "error"
    if wrong and "choices" not in body:
        return WITH_ERROR
    name, fallback = value.get("custom_id"), f"line-{line}"
    if isinstance(choices, list) and choices and all(isinstance(c, Mapping) for c in choices):
        own = printable(name or body.get("id") or body.get("request_id") or fallback)
        names = [own + (f"#{choice['index']}" if choice.get("index") else "") for choice in choices]
        pairs = zip(names, choices, strict=True)
        return [Part(one, line, request, body, choice, seconds) for one, choice in pairs]
    native = "completion_probabilities" in body or {"content", "stop"} <= set(body)
    if native or isinstance(body.get("meta_info"), Mapping):
        return [Part(printable(name or fallback), line, request, body, body, seconds)]
    return NO_ANSWER


def read_bytes(path: Path) -> bytes:
    """Return a file's content, unpacked where it is gzip."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or f"it is a damaged gzip file: {error}"
        raise PipelineError(f"{path} can't be read: {why}") from error


def printable(name: Any) -> str:
    r"""Return a name that can be printed and stored: control characters as escapes.

    >>> printable("a\x1b[31m\ud800")
    'a\\u001b[31m\\ud800'
    """
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", str(name))


def counted(excluded: Mapping[str, int]) -> str:
    """Return the printed line about rows that were left out."""
    reasons = [f"{times} {reason}" for reason, times in excluded.items() if times]
    return ", ".join(reasons) or "none"

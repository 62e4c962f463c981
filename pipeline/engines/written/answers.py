"""The answers in a file that an engine wrote, one JSON object a line, in the order of the file.

A line is an answer as it came, or with its request as `pipeline.ask` saves it: custom_id, request
and response. The file may be packed with gzip. An answer has its tokens in one of two places:

| place | who writes it |
|---|---|
| choices[] | vLLM, llama.cpp: chat and completions |
| content and stop | llama.cpp's /completion |
"""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pipeline.errors import PipelineError

NO_ANSWER = "objects that are no answers"
NO_JSON = "lines that are no JSON"
WITH_ERROR = "answers with an error"
AGAIN = "answers given again"

UNREADABLE = "can't be read as an answer: its tokens have a form that no engine writes"
OBJECTS = {  # fields that hold an object, or null
    *("metrics", "speculative_decoding", "timings", "usage", "logprobs"),
    *("generation_settings", "__verbose", "message"),
}

T = TypeVar("T")


class FormatError(ValueError):
    """An answer is wrong; the message follows its file and line."""


class Part(NamedTuple):
    """An answer.

    Attributes:
        answer: its name.
        line: where it stands.
        request: what was asked, empty where the file does not have it.
        body: the object.
        place: choices or content.
        content: of `place`: a choice, or all of the object.
    """

    answer: str
    line: int
    request: Mapping[str, Any]
    body: Mapping[str, Any]
    place: str
    content: Mapping[str, Any]


def read_answers(
    path: Path, read: Callable[[Part], T]
) -> tuple[dict[str, T], str | None, Counter[str]]:
    """Read every answer of a file.

    Args:
        path: of the file.
        read: takes what is wanted out of an answer.

    Returns:
        What was read of each answer, by name; the model that the answers name, None where they
        name none; and how much of what was left out.

    Raises:
        PipelineError: an answer can't be read, or two models are mixed; names the file and the
            line.
    """
    answers: dict[str, T] = {}
    excluded = Counter[str]()
    first: tuple[str, int] | None = None
    for line, raw in enumerate(read_bytes(path).split(b"\n"), start=1):
        if not raw.strip():
            continue
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            excluded[NO_JSON] += 1
            continue
        parts = answer_parts(value, line)
        if isinstance(parts, str):
            excluded[parts] += 1
            continue
        model = parts[0].body.get("model")
        if isinstance(model, str) and model:
            first = first or (model, line)
            if model != first[0]:
                raise PipelineError(
                    f"{path} mixes two models: {first[0]} in line {first[1]} and {model} in line "
                    f"{line}: give each its own file"
                )
        for part in parts:
            if part.answer in answers:
                excluded[AGAIN] += 1
                continue
            try:
                answers[part.answer] = read(part)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                what = next(_wrong_fields(part.body), UNREADABLE)
                if isinstance(error, FormatError):
                    what = str(error)
                elif isinstance(error, KeyError):
                    what = f"holds a token without {error.args[0]}"
                raise PipelineError(f"{path}, line {line} {what}") from error
    return answers, None if first is None else first[0], excluded


def _wrong_fields(value: Any, place: str = "") -> Iterator[str]:
    """Yield the problem of each field that should hold an object."""
    for key, item in value.items() if isinstance(value, Mapping) else ():
        name = f"{place}.{key}".removeprefix(".")
        if key in OBJECTS and not (item is None or isinstance(item, Mapping)):
            yield f"has {name}={item!r:.40}: an object was expected"
        for inner in item if isinstance(item, list) else [item]:
            yield from _wrong_fields(inner, name + "[]" * isinstance(item, list))


def answer_parts(value: Any, line: int) -> list[Part] | str:
    """Return the answers in the object of a line, one a choice, or why it has none."""
    if not isinstance(value, Mapping):
        return NO_ANSWER
    body = value["response"] if isinstance(value.get("response"), Mapping) else value
    request = value["request"] if isinstance(value.get("request"), Mapping) else {}
    choices = body.get("choices")
    wrong = body.get("error") is not None or "detail" in body or body.get("object") == "error"
    if wrong and "choices" not in body:
        return WITH_ERROR
    custom = value.get("custom_id")
    if isinstance(choices, list) and choices and all(isinstance(c, Mapping) for c in choices):
        own = str(custom or body.get("id") or f"line-{line}")
        names = [own + (f"#{choice['index']}" if choice.get("index") else "") for choice in choices]
        return [
            Part(name, line, request, body, "choices", choice)
            for name, choice in zip(names, choices, strict=True)
        ]
    if "completion_probabilities" in body or {"content", "stop"} <= set(body):
        return [Part(str(custom or f"line-{line}"), line, request, body, "content", body)]
    return NO_ANSWER


def read_bytes(path: Path) -> bytes:
    """Return a file's content, unpacked where it is gzip, without UTF-8's mark.

    Raises:
        PipelineError: it can't be read or unpacked, or is in UTF-16.
    """
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or f"it is a damaged gzip file: {error}"
        raise PipelineError(f"{path} can't be read: {why}") from error
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise PipelineError(
            f"{path} is in UTF-16, as PowerShell's > writes it: save it in UTF-8 (curl -o FILE URL)"
        )
    return data.removeprefix(codecs.BOM_UTF8)


def decimals(value: float) -> int:
    """Return the number of digits behind the point.

    >>> decimals(-0.25), decimals(1.5e-05), decimals(-2)
    (2, 6, 0)
    """
    mantissa, _, exponent = repr(value).partition("e")
    return max(0, len(mantissa.partition(".")[2]) - int(exponent or 0))


def counted(excluded: Mapping[str, int]) -> str:
    """Return the printed line about rows that were left out."""
    reasons = [f"{times} {reason}" for reason, times in excluded.items() if times]
    return ", ".join(reasons) or "none"

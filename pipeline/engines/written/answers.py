"""The answers in a file that an engine wrote, joined from their parts, in the order of the file.

A file is JSON Lines, a saved event stream, or answers side by side; it may be packed with gzip. An
object has answers in one of three places:

| place | who writes it |
|---|---|
| choices[] | vLLM, SGLang, TensorRT-LLM, llama.cpp: chat and completions |
| meta_info, beside the text | SGLang's /generate |
| content and stop | llama.cpp's /completion |
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.errors import PipelineError

STREAM_FIELDS = re.compile(r"(data|event|id|retry)?:")  # of server-sent events; bare is a comment
NO_ANSWER = "objects that are no answers"
NO_JSON = "lines that are no JSON"
TORN = "stream events after a damaged line"
AGAIN = "answers given again"
CUT = "ends of answers that were cut off"

UNREADABLE = "can't be read as an answer: its tokens have a form that no engine writes"
OBJECTS = {  # fields that hold an object, or null
    *("metrics", "speculative_decoding", "sglext", "spec_tokens_details", "meta_info"),
    *("timings", "usage", "logprobs", "generation_settings", "__verbose", "message", "delta"),
}

REQUEST = object()  # in the place of an object that is no answer
SPACE = re.compile(r"\s*")
Line = tuple[int, Any, bool]  # number, object, and whether it is of an event stream


class Damaged(NamedTuple):
    """Stands for an object that can't be read.

    Attributes:
        reason: under which it is counted.
    """

    reason: str = NO_JSON


class FormatError(ValueError):
    """An answer is wrong; the message follows its file and line."""


class Part(NamedTuple):
    """A part of an answer: all of it, or one event of a stream.

    Attributes:
        answer: its name; None is what a stream without names goes on with.
        line: where it stands.
        body: the object.
        place: choices, meta_info or content.
        content: of `place`: a choice, the meta_info, or all of the object; empty for an event
            without a choice, the last of a stream.
        streamed: whether it is an event of a stream.
        finished: whether nothing follows.
    """

    answer: str | None
    line: int
    body: Mapping[str, Any]
    place: str
    content: Mapping[str, Any]
    streamed: bool
    finished: bool


def read_answers(
    path: Path, lines: Iterable[Line], read: Callable[[Part], Any]
) -> tuple[dict[str, tuple[int, list[Any]]], str | None, Counter[str]]:
    """Join the parts of every answer by name; a stream without names goes on until it ends.

    A damaged line may have been an event: what a stream has behind it is left out.

    Args:
        path: of the file, for errors.
        lines: its objects, as `read_objects` gives them.
        read: takes what is wanted out of a part.

    Returns:
        Of each answer, by name, the line where it begins and what was read of its parts; the model
        that the answers name, None where they name none; and how much of what was left out.

    Raises:
        PipelineError: a part can't be read, or two models are mixed; names the file and the line.
    """
    answers: dict[str, tuple[int, list[Any]]] = {}
    unfinished, again, torn = set[str](), set[str](), set[str]()
    excluded = Counter[str]()
    number, of_line = 0, 0  # the line before, and how many objects it has so far
    open_: str | None = None
    first: tuple[str, int] | None = None
    before: Any = None
    for line, value, streamed in lines:
        last, before = before, value
        if isinstance(value, Damaged):
            excluded[value.reason] += 1
            torn |= unfinished
        number, of_line = line, of_line + 1 if line == number else 0
        if isinstance(value, Damaged) or value is REQUEST:
            open_ = None
            continue
        unnamed = f"line-{line}.{of_line}" if of_line else f"line-{line}"
        parts = answer_parts(value, line, streamed, unnamed)
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
            name = part.answer or open_ or unnamed
            open_ = name if part.answer is None and not part.finished else None
            closed = name in answers and name not in unfinished
            if closed and part.content:
                again.add(name)
                continue
            after_damage = isinstance(last, Damaged) and name not in answers
            if name in torn or (part.streamed and after_damage):
                torn.add(name)
                excluded[TORN] += 1
                continue
            try:
                answers.setdefault(name, (line, []))[1].append(read(part))
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                what = next(_wrong_fields(part.body), UNREADABLE)
                if isinstance(error, FormatError):
                    what = str(error)
                elif isinstance(error, KeyError):
                    what = f"holds a token without {error.args[0]}"
                raise PipelineError(f"{path}, line {line} {what}") from error
            if part.finished:
                unfinished.discard(name)
            elif not closed:
                unfinished.add(name)
    excluded |= Counter({CUT: len(unfinished), AGAIN: len(again)})
    return answers, None if first is None else first[0], excluded


def _wrong_fields(value: Any, place: str = "") -> Iterator[str]:
    """Yield the problem of each field that should hold an object."""
    for key, item in value.items() if isinstance(value, Mapping) else ():
        name = f"{place}.{key}".removeprefix(".")
        if key in OBJECTS and not (item is None or isinstance(item, Mapping)):
            yield f"has {name}={item!r:.40}: an object was expected"
        for inner in item if isinstance(item, list) else [item]:
            yield from _wrong_fields(inner, name + "[]" * isinstance(item, list))


def answer_parts(value: Any, line: int, streamed: bool, unnamed: str) -> list[Part] | str:
    """Return the parts of answers in an object, or why it has none; `unnamed` is a default name."""
    read = body_of(value)
    if isinstance(read, str):
        return read
    body, custom = read
    choices, info = body.get("choices"), body.get("meta_info")
    streamed = streamed or str(body.get("object", "")).endswith(".chunk")

    def part(name: str | None, place: str, content: Mapping[str, Any], ended: Any) -> Part:
        return Part(
            answer=name,
            line=line,
            body=body,
            place=place,
            content=content,
            streamed=streamed,
            finished=bool(ended),
        )

    own = str(custom or body.get("id") or unnamed)
    if choices == []:
        return [part(own, "choices", {}, not streamed)]
    if isinstance(choices, list) and all(isinstance(choice, Mapping) for choice in choices):
        return [
            part(
                own + (f"#{choice['index']}" if choice.get("index") else ""),
                "choices",
                choice,
                choice.get("finish_reason") or not streamed,
            )
            for choice in choices
        ]
    if isinstance(info, Mapping):
        own = str(custom or info.get("id") or unnamed)
        return [part(own, "meta_info", info, info.get("finish_reason") or not streamed)]
    if "completion_probabilities" in body or {"content", "stop"} <= set(body):
        named = str(custom) if custom else None if streamed else unnamed
        return [part(named, "content", body, body.get("stop", True))]
    return NO_ANSWER


def body_of(value: Any) -> tuple[Mapping[str, Any], Any] | str:
    """Return an answer and its custom_id, out of a batch file's line; or why it is none."""
    if not isinstance(value, Mapping):
        return NO_ANSWER
    body = value
    for key in ("response", "body"):
        body = body[key] if isinstance(body.get(key), Mapping) else body
    error = body.get("error") is not None or "detail" in body or body.get("object") == "error"
    if error and "choices" not in body:
        return "answers with an error"
    return body, value.get("custom_id")


def read_objects(path: Path) -> Iterator[Line]:
    """Yield the objects of a file, `Damaged` for a line that is no JSON or no UTF-8.

    Raises:
        PipelineError: the file can't be read.
    """
    decoder = json.JSONDecoder()
    for number, raw in enumerate(read_bytes(path).split(b"\n"), start=1):
        try:
            text, streamed = _content(raw.decode().strip().removeprefix("\ufeff"))
            text, at = text.removesuffix("[DONE]"), 0  # of a stream; `curl` writes no newlines
            while at < len(text):
                value, end = decoder.raw_decode(text, at)
                for item in value if isinstance(value, list) else [value]:
                    yield number, item, streamed
                at = SPACE.match(text, end).end()  # type: ignore[union-attr]
        except (ValueError, RecursionError):
            yield number, Damaged(), False


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


def _content(text: str) -> tuple[str, bool]:
    """Return the content of a line, and whether the line is of an event stream."""
    field = STREAM_FIELDS.match(text)
    if field is None:
        return text, False
    return (text[field.end() :].strip() if field.group(1) == "data" else ""), True


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

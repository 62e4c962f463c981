"""The answers in a file that an engine wrote, in the order of the file.

The file has the engine's objects as they came, or as `pipeline.ask` saves them (custom_id, request,
response, seconds), or a batch file's (response.body). `json_text` finds the objects, in a file that
may be packed with gzip or in UTF-16; `streams` joins the chunks of streamed ones. In OpenAI's
layout (chat and completions) each of an object's `choices` is an answer; in an engine's own layout
(llama.cpp's /completion, SGLang's /generate) the object is.
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
from typing import Any, TypeVar

from pipeline.core.errors import PipelineError, first_line
from pipeline.core.files import regular
from pipeline.engines.answer_checksums import CHANGED, is_unchanged
from pipeline.engines.engine_base import FormatError, Part
from pipeline.engines.json_text import FormError, form_of, has_events, json_values
from pipeline.engines.registry import has_own_layout
from pipeline.engines.streams import Streams

NO_ANSWER = "objects that are no answers"
NO_JSON = "lines that are no JSON"
WITH_ERROR = "answers with an error"
AGAIN = "answers given again"
GZIP = b"\x1f\x8b"
OTHER_PACKERS = {
    b"PK\x03\x04": "zip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"PAR1": "Parquet",
    GZIP: "gzip, twice",
}
MOST_RATIO = 50  # of unpacked to packed bytes; logs have 5 to 20
FREE_BYTES = 64 * 2**20  # that may be unpacked whatever the ratio
MOST_LOAD = 100_000  # requests at once; more are damage
PIECE = 2**20  # bytes unpacked at once
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # of terminals, or no valid Unicode

T = TypeVar("T")


def read_answers(
    path: Path, read: Callable[[Part], T]
) -> tuple[dict[str, T], str | None, Counter[str]]:
    """Read every answer of a file.

    Returns:
        What `read` gave for each answer, by name; the model that the answers name, or None; and
        how many were left out, by reason.

    Raises:
        PipelineError: the file can't be read, most of it is no answers, it mixes two models, or
            `read` raised a `FormatError`.
    """
    answers: dict[str, T] = {}
    excluded = Counter[str]()
    first: tuple[str, int] | None = None
    for line, parts in _parts(path, excluded):
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


def _parts(path: Path, excluded: Counter[str]) -> Iterator[tuple[int, list[Part]]]:
    """Yield the answers of each object with its line, and count what is none.

    Raises:
        PipelineError: most of the file can't be read.
    """
    text = _decoded(read_bytes(path))
    broken: list[int] = []
    streams = Streams(has_events(text))
    objects = 0
    strange = ""

    def whole() -> Iterator[tuple[int, int, Any]]:
        nonlocal objects
        for line, number, value in json_values(text, broken):
            objects += 1
            unwrapped = _of_batch(value)
            if not (isinstance(value, dict) and streams.take(line, number, unwrapped)):
                yield line, number, unwrapped
        yield from streams.answers()

    try:
        for line, number, value in whole():
            parts = answer_parts(value, line)
            if isinstance(parts, str):
                excluded[parts] += 1
                if parts == NO_ANSWER and isinstance(value, dict):
                    strange = strange or f"JSON objects with the keys {', '.join(value):.80}"
                continue
            yield line, [_with_own_name(part, number) for part in parts]
    except FormError as error:
        raise PipelineError(f"{path} {error}") from error
    excluded[NO_JSON] += len(broken)
    unread = excluded[NO_JSON] + excluded[NO_ANSWER]
    if 2 * unread > objects + excluded[NO_JSON]:
        form = strange if excluded[NO_ANSWER] > excluded[NO_JSON] else ""
        place = f" (line {broken[0]})" if broken else ""
        raise PipelineError(
            f"{path} holds {printable(form or form_of(text))}, and no answers that can be read, or "
            f"few: {counted(+excluded)}{place}: give one answer of the engine a line, as it came"
        )


def _of_batch(value: Any) -> Any:
    """Return a line of a batch file (vLLM's run-batch, OpenAI's batches) as others are."""
    response = value.get("response") if isinstance(value, dict) else None
    body = response.get("body") if isinstance(response, dict) else None
    return value | {"response": body} if isinstance(body, dict) else value


def _with_own_name(part: Part, number: int) -> Part:
    """Number the answers of one line that have no id."""
    by_line = f"line-{part.line}"
    if number == 0 or part.answer.partition("#")[0] != by_line:
        return part
    return part._replace(answer=part.answer.replace(by_line, f"{by_line}.{number}", 1))


def answer_parts(value: Any, line: int) -> list[Part] | str:
    """Return the answers in the object of a line, one a choice, or why it has none."""
    if not isinstance(value, Mapping):
        return NO_ANSWER
    if not is_unchanged(value):
        return CHANGED
    body = value["response"] if isinstance(value.get("response"), Mapping) else value
    request = value["request"] if isinstance(value.get("request"), Mapping) else {}
    choices = body.get("choices")
    took = value.get("seconds")
    seconds = took if isinstance(took, float) and 0 < took < 1e7 else math.nan
    at_once = value.get("concurrent")
    load = float(at_once) if type(at_once) is int and 1 <= at_once <= MOST_LOAD else math.nan
    source = value.get("source", value.get("category"))  # Spec-Bench has the category
    source = printable(source) if isinstance(source, str) else ""
    told = seconds, load, source
    wrong = body.get("error") is not None or "detail" in body or body.get("object") == "error"
    if wrong and "choices" not in body:
        return WITH_ERROR
    name = value.get("custom_id")
    fallback = f"line-{line}"
    if isinstance(choices, list) and choices and all(isinstance(c, Mapping) for c in choices):
        own = printable(name or body.get("id") or body.get("request_id") or fallback)
        names = [own + (f"#{choice['index']}" if choice.get("index") else "") for choice in choices]
        pairs = zip(names, choices, strict=True)
        return [Part(one, line, request, body, choice, *told) for one, choice in pairs]
    if has_own_layout(body):
        return [Part(printable(name or fallback), line, request, body, body, *told)]
    return NO_ANSWER


def read_bytes(path: Path) -> bytes:
    """Return a file's content as UTF-8, unpacked from gzip and decoded from UTF-16 or UTF-32.

    Raises:
        PipelineError: the file can't be read, is damaged, unpacks to far more than a log would, or
            is packed in another way.
    """
    try:
        regular(path)
        data = path.read_bytes()
        if data.startswith(GZIP):
            data = _unpacked(path, len(data))
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or f"it is a damaged gzip file: {error}"
        raise PipelineError(f"{path} can't be read: {why}") from error
    for beginning, name in OTHER_PACKERS.items():
        if data.startswith(beginning):
            raise PipelineError(f"{path} can't be read: it is packed ({name}): unpack it first")
    encoding = json.detect_encoding(data[:4])
    if encoding.startswith("utf-8"):
        return data.removeprefix(b"\xef\xbb\xbf")
    return data.decode(encoding, errors="replace").encode(errors="replace")


def _unpacked(path: Path, packed: int) -> bytes:
    most = max(FREE_BYTES, MOST_RATIO * packed)
    data = bytearray()
    with gzip.open(path) as file:
        while piece := file.read(PIECE):
            data += piece
            if len(data) > most:
                raise PipelineError(
                    f"{path} can't be read: its {packed:,} bytes unpack to more than {most:,}, as "
                    "no log does: unpack it yourself if that is right"
                )
    return bytes(data)


def _decoded(data: bytes) -> str:
    """Return bytes as text; lines that are not UTF-8 become lines that are no JSON."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "\n".join(map(_decoded_line, data.split(b"\n")))


def _decoded_line(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return "(not UTF-8)"


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

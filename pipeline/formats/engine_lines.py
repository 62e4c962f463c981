"""The objects of a file that an engine answered: JSON Lines, a saved event stream, or side by side.

Files may be packed with gzip. Numbers keep how they were printed.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError

STREAM_FIELDS = re.compile(r"(data|event|id|retry)?:")  # of server-sent events; bare is a comment


class Printed(float):
    """A number and its text."""

    text: str

    def __new__(cls, text: str) -> Printed:
        """Read a number."""
        number = super().__new__(cls, text)
        number.text = text
        return number


def decimals(value: float) -> int:
    """Return how many digits behind the point a number was printed with.

    >>> decimals(Printed("-0.250")), decimals(Printed("1.5e-05")), decimals(-2)
    (3, 6, 0)
    """
    if not isinstance(value, Printed):
        return 0
    mantissa, _, exponent = value.text.lower().partition("e")
    return max(0, len(mantissa.partition(".")[2]) - int(exponent or 0))


def read_bytes(path: Path) -> bytes:
    """Return a file's content, unpacked where it is gzip.

    Raises:
        PipelineError: it can't be read or unpacked.
    """
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or f"it is a damaged gzip file: {error}"
        raise PipelineError(f"{path} can't be read: {why}") from error


def read_objects(path: Path, excluded: dict[str, int]) -> Iterator[tuple[int, Any, bool]]:
    """Yield the objects of a file, each with its line and whether it is of an event stream.

    The file is JSON Lines, answers side by side (`curl` ends an answer without a newline), or a
    saved stream of `data: {...}` lines. What is no JSON is counted in `excluded`.

    Raises:
        PipelineError: the file can't be read.
    """
    decoder = json.JSONDecoder(parse_float=Printed)
    lines = read_bytes(path).split(b"\n")
    last = len(lines) if lines[-1].strip() else 0
    for number, raw in enumerate(lines, start=1):
        text, streamed = "", False
        try:
            text, streamed = _content(raw.decode().strip().removeprefix("\ufeff"))
            while text and text != "[DONE]":
                value, end = decoder.raw_decode(text)
                for item in value if isinstance(value, list) else [value]:
                    yield number, item, streamed
                text = text[end:].strip()
        except (ValueError, RecursionError):  # no JSON, or no UTF-8
            cut = number == last and text.startswith(("{", "["))
            count(excluded, "truncated last line" if cut else "lines that are no JSON")


def _content(text: str) -> tuple[str, bool]:
    """Return what a line holds, and whether it is of an event stream."""
    field = STREAM_FIELDS.match(text)
    if field is None:
        return text, False
    return (text[field.end() :].strip() if field.group(1) == "data" else ""), True


def count(excluded: dict[str, int], reason: str) -> None:
    """Count one more that is left out."""
    excluded[reason] = excluded.get(reason, 0) + 1


def counted(excluded: Mapping[str, int]) -> str:
    """Return what was left out as printed."""
    return ", ".join(f"{times} {reason}" for reason, times in excluded.items()) or "none"


def body_of(value: Any) -> tuple[Mapping[str, Any], Any] | str:
    """Return an answer and its custom_id, out of a batch file's line; or why it is none."""
    if not isinstance(value, Mapping):
        return "objects that are no answers"
    body = value
    for key in ("response", "body"):
        body = body[key] if isinstance(body.get(key), Mapping) else body
    said = body.get("error") is not None or "detail" in body or body.get("object") == "error"
    if said and "choices" not in body:
        return "answers with an error"
    return body, value.get("custom_id")

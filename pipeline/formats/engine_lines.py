"""The lines of an engine's log: JSON Lines, answers side by side, or a saved event stream.

`curl` ends an answer without a newline and a server streams `data: {...}`, so a line may hold
several objects, or begin with a field name. Numbers keep how they were printed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError

STREAM_FIELDS = re.compile(r"(data|event|id|retry)?:")  # of server-sent events; bare is a comment
EXPONENT = re.compile(r"[eE]")
SHOWN = 40  # characters of a line in an error


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
    mantissa, _, exponent = EXPONENT.sub("e", value.text).partition("e")
    return max(0, len(mantissa.partition(".")[2]) - int(exponent or 0))


@dataclass(frozen=True)
class Record:
    """An object of a file, and whether it was streamed."""

    line: int
    value: Any
    streamed: bool


def read_records(path: Path, excluded: dict[str, int]) -> Iterator[Record]:
    """Yield the objects of a log in order.

    A last line that a killed engine left unfinished is counted in `excluded`.

    Raises:
        PipelineError: the file can't be read, or a line is no JSON; names the file and the line.
    """
    decoder = json.JSONDecoder(parse_float=Printed)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise PipelineError(f"{path} can't be read: {error.strerror}") from error
    last = len(lines) if lines[-1].strip() else 0
    for number, raw in enumerate(lines, start=1):
        try:
            text = raw.decode().strip().removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            if number == last:
                _count(excluded, "truncated last line")
                return
            raise PipelineError(f"{path}, line {number} is no UTF-8: {error.reason}") from error
        text, streamed = _content(text)
        while text and text != "[DONE]":
            try:
                value, end = decoder.raw_decode(text)
            except (json.JSONDecodeError, RecursionError) as error:
                if number == last and text[0] in "{[":
                    _count(excluded, "truncated last line")
                    return
                raise PipelineError(
                    f"{path}, line {number} is no JSON ({text[:SHOWN]!r}): give one answer of the "
                    "engine a line, as it came, or a saved stream of `data: {...}` lines"
                ) from error
            for item in value if isinstance(value, list) else [value]:
                yield Record(number, item, streamed)
            text = text[end:].strip()


def _content(text: str) -> tuple[str, bool]:
    """Return what a line holds, and whether it is of an event stream."""
    field = STREAM_FIELDS.match(text)
    if field is None:
        return text, False
    return (text[field.end() :].strip() if field.group(1) == "data" else ""), True


def _count(excluded: dict[str, int], reason: str) -> None:
    excluded[reason] = excluded.get(reason, 0) + 1

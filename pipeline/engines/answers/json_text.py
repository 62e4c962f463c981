"""Finds the JSON values of a text, however they were written, each with its line.

Values may stand one a line, side by side, over several lines, in an array, or as the data of
server-sent events. An array of objects is read whole or not at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from typing import Any

BLANK = re.compile(r"[\s\ufeff]*")  # between values; UTF-8's mark stands where files were joined
ARRAY = re.compile(r"\[\s*\{")
NEXT_OBJECT = re.compile(r"\n(?=\{)")
EVENT_FIELD = re.compile(
    r"^(?:data:[^\S\n]*(?:\[DONE\][^\S\n]*$)?|(?:event|id|retry):.*|:.*)", re.MULTILINE
)
MAX_BROKEN = 100  # values over several lines that break off; more are another form
BROKEN = object()  # in the place of a value that can't be read
DECODER = json.JSONDecoder()


class UnreadableFileError(Exception):
    """A file can't be read; the message follows its path."""


def has_events(text: str) -> bool:
    """Whether a text holds server-sent events (`data: {...}`)."""
    return text.startswith("data:") or "\ndata:" in text


def json_values(text: str, broken: list[int]) -> Iterator[tuple[int, int, Any]]:
    """Yield each value with its line and its number in this line, from 0.

    The lines of what can't be read are added to `broken`.

    Raises:
        UnreadableFileError: an array of objects breaks off, or too many values over several lines
            do.
    """
    if has_events(text):
        text = EVENT_FIELD.sub("", text)
    line = 1
    before = 0
    number = -1
    for offset, value in _values(text):
        lines = text.count("\n", before, offset)
        line += lines
        before = offset
        number = 0 if lines else number + 1
        if value is BROKEN:
            broken.append(line)
        else:
            yield line, number, value


def _values(text: str) -> Iterator[tuple[int, Any]]:
    """Yield each value, or `BROKEN`, with its place in the text."""
    offset = 0
    breaks = 0
    while (offset := _skipped(text, offset)) < len(text):
        if ARRAY.match(text, offset):
            offset = yield from _elements(text, offset)
            continue
        end = text.find("\n", offset)
        end = len(text) if end < 0 else end
        row = text[offset:end].rstrip()
        read, goes_on = yield from _values_of_row(row, offset)
        offset += read
        if read == len(row):
            offset = end
        elif not goes_on:
            yield offset, BROKEN
            offset = end
        else:
            try:
                value, behind = DECODER.raw_decode(text, offset)
            except (ValueError, RecursionError):
                breaks += 1
                if breaks > MAX_BROKEN:
                    raise UnreadableFileError(
                        f"holds JSON over several lines that breaks off {breaks} times, at last in "
                        f"line {_line(text, offset)}"
                    ) from None
                yield offset, BROKEN
                following = NEXT_OBJECT.search(text, end)
                offset = following.end() if following else len(text)
            else:
                yield offset, value
                offset = behind


def _values_of_row(row: str, start: int) -> Generator[tuple[int, Any], None, tuple[int, bool]]:
    """Yield the values of a line; return where reading stopped, and if the next line goes on."""
    if row == "[DONE]":  # the end of a stream
        return len(row), False
    offset = 0
    while offset < len(row):
        try:
            value, behind = DECODER.raw_decode(row, offset)
        except json.JSONDecodeError as error:
            return offset, error.pos >= len(row)
        except (ValueError, RecursionError):  # a number of too many digits
            return offset, False
        yield start + offset, value
        offset = _skipped(row, behind)
    return offset, False


def _elements(text: str, start: int) -> Generator[tuple[int, Any], None, int]:
    """Yield the elements of an array; return where it ends."""
    offset = start + 1
    while True:
        offset = _skipped(text, offset)
        try:
            value, behind = DECODER.raw_decode(text, offset)
        except (ValueError, RecursionError):
            raise _broken_array(text, start, offset) from None
        yield offset, value
        offset = _skipped(text, behind)
        if text.startswith("]", offset):
            return offset + 1
        if not text.startswith(",", offset):
            raise _broken_array(text, start, offset)
        offset += 1


def _broken_array(text: str, start: int, offset: int) -> UnreadableFileError:
    return UnreadableFileError(
        f"holds a JSON array, from line {_line(text, start)} on, that breaks off in line "
        f"{_line(text, offset)}: give all of it, or one answer a line"
    )


def _skipped(text: str, offset: int) -> int:
    match = BLANK.match(text, offset)
    return match.end() if match else offset


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def form_of(text: str) -> str:
    r"""Name the form of a text that is no JSON, by how it begins.

    >>> form_of("a,b\n1,2\n"), form_of(" <!DOCTYPE html>"), form_of("INFO: started")
    ('a table (CSV)', 'HTML or XML', "text that begins with 'INFO: started'")
    """
    start = text[_skipped(text, 0) :][:2000]
    beginnings = {
        "<": "HTML or XML",
        "HTTP/": "HTTP responses with their headers (save the body alone)",
        "# HELP": "a page of /metrics",
        "# TYPE": "a page of /metrics",
        "{'": "Python's dicts as printed (write them with json.dumps)",
        "[{'": "Python's dicts as printed (write them with json.dumps)",
        "{": "damaged JSON",
        "[{": "damaged JSON",
    }
    for beginning, form in beginnings.items():
        if start.startswith(beginning):
            return form
    if any(not sign.isprintable() and not sign.isspace() for sign in start[:100]):
        return "binary data"
    head, second = [*start.splitlines(), "", ""][:2]
    if any(0 < head.count(sign) == second.count(sign) for sign in ",;\t"):
        return "a table (CSV)"
    return f"text that begins with {head[:40]!r}"

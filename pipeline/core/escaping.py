"""Control characters in the output: escaped, so that texts of others do nothing to the terminal."""

from __future__ import annotations

import re
from typing import Any

# characters that act on a terminal or reverse the text instead of being shown; not newlines, tabs
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
MOVES = re.compile(r"\n*(\x1b\[A)*")  # how a progress bar moves to its line


def escaped(text: str) -> str:
    r"""Return a text with its control characters escaped, apart from newlines and tabs.

    >>> print(escaped("a\x1b[31m\nb"))
    a\x1b[31m
    b
    """
    return CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


class EscapedStream:
    """A stream whose output has no control characters, whoever wrote the names and messages."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write a text with its control characters escaped; a progress bar may move the cursor."""
        if not MOVES.fullmatch(text):
            start = "\r" if text.startswith("\r") else ""
            text = start + escaped(text.removeprefix("\r"))
        self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

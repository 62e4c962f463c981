"""How far a stage is: a bar on a terminal, a line a minute in a log."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from tqdm import tqdm

SECONDS = 60.0  # between two lines of a log; a stage that takes less writes none
LINE = (
    "{desc}: {n_fmt} of {total_fmt} {unit}s, {elapsed} so far, {rate_fmt}, about {remaining} left"
)


class _Lines:
    """A stream that gets a line for each state of the bar, in the place of one written over.

    A bar that ends says its last state again: of lines that count the same, the first is written.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = ""

    def write(self, text: str) -> None:
        """Write a state of the bar; a return to the line's beginning alone is dropped."""
        counted = text.strip().partition(",")[0]
        if counted and counted != self._last:
            self._last = counted
            self._stream.write(text.strip() + "\n")

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()


def progress_bar(total: int, unit: str, label: str) -> tqdm[Any]:
    """Return a bar on stderr that counts to `total`.

    Args:
        total: what is to be done, with what remains of it when a run goes on.
        unit: of `total`, in the singular.
        label: of what is running.
    """
    if sys.stderr.isatty():
        return tqdm(total=total, unit=unit, desc=label)
    return tqdm(
        total=total, unit=unit, desc=label, bar_format=LINE, file=_Lines(sys.stderr),
        delay=SECONDS, mininterval=SECONDS, miniters=1,
    )  # fmt: skip

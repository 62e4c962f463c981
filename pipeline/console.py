"""How every command of the project behaves in a terminal: readable output, quiet ends.

Imports nothing of weight, so that an interruption while the rest is imported is caught as well.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

DASHES = str.maketrans("–−", "--")
INTERRUPTED, CLOSED = 130, 141  # 128 and the number of the signal, as shells have it


@contextmanager
def terminal(hint: str = "the same command goes on from here") -> Iterator[None]:
    """Run a command: no traceback for an interruption or a reader that has gone (``| head``).

    Dashes that the output can't encode are printed as hyphens, other characters as escapes. `hint`
    is said when the command is interrupted.

    Raises:
        SystemExit: with the status of an interrupted or a cut-off command.
    """
    codecs.register_error("plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="plain")
    try:
        yield
        print(end="", flush=True)
    except BrokenPipeError:
        _discard_output()
        raise SystemExit(CLOSED) from None
    except KeyboardInterrupt:
        print(f"interrupted: {hint}", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None


def interrupts(error: BaseException | None) -> bool:
    """Whether an error arose from an interruption that a library took for something else."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Stand in for what an output can't encode, a handler of codecs."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end].translate(DASHES)
    return text.encode("ascii", "backslashreplace").decode(), error.end


def _discard_output() -> None:
    """Send what is still printed nowhere: Python would complain of it when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())

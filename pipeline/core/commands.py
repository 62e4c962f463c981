"""How a command runs: its help, its errors in one line, its exit status, what it prints.

It imports nothing slow, so that an interruption during the other imports ends the command at once.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from pipeline.core.errors import EXPECTED, one_line
from pipeline.core.escaping import EscapedStream, escaped
from pipeline.core.interruption import (
    INTERRUPTED,
    TERMINATED,
    listen,
    raise_if_interrupted,
    received,
    restore,
    stopped,
)

CLOSED = 141  # exit status after a closed pipe: 128 and the number of the signal, as in shells


@contextmanager
def run_as_command(*, goes_on: bool = True) -> Iterator[None]:
    """Run a command: a user's error and an interruption print one line, a closed pipe none.

    SIGTERM interrupts like Ctrl-C, and the command ends as interrupted whatever a library makes of
    the signal. A second signal ends the process at once. Signals that the shell ignores (nohup)
    stay ignored. Control characters, and characters that the output can't encode, are escaped.

    Args:
        goes_on: whether the same command goes on from where it was interrupted.

    Raises:
        SystemExit: with the usual status, or a line for each problem; 1 after a traceback.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    out: Any = EscapedStream(sys.stdout)
    err: Any = EscapedStream(sys.stderr)
    before: dict[int, Any] = {}  # handlers of signals
    with redirect_stdout(out), redirect_stderr(err):
        try:
            listen(before, goes_on=goes_on)
            yield
            print(end="", flush=True)
            raise_if_interrupted()
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            restore(before)  # from here on a signal ends the process at once
            raise _end_of(error, goes_on=goes_on) from None
        finally:
            restore(before)


def _end_of(error: BaseException, *, goes_on: bool) -> SystemExit:
    """Return how a command exits after an error; print the line or traceback that it needs."""
    if isinstance(error, BrokenPipeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)  # for what Python flushes at exit
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
    if received or isinstance(error, KeyboardInterrupt):
        if isinstance(error, SystemExit) and error.code in (INTERRUPTED, TERMINATED):
            return error
        return SystemExit(stopped(goes_on=goes_on))
    if isinstance(error, BrokenPipeError):
        return SystemExit(CLOSED)
    if isinstance(error, SystemExit):
        return SystemExit(escaped(error.code)) if isinstance(error.code, str) else error
    if isinstance(error, EXPECTED):
        return SystemExit(escaped("error: " + one_line(error).replace("\n", "\nerror: ")))
    print("".join(traceback.format_exception(error)), end="", file=sys.stderr)
    return SystemExit(1)


@contextmanager
def command(
    usage: str, text: str | None, arguments: Sequence[str], *, goes_on: bool = False
) -> Iterator[None]:
    """Run a command as `run_as_command`, or print `usage` and `text` if help is asked for."""
    with run_as_command(goes_on=goes_on):
        if {"-h", "--help"} & set(arguments):
            print(f"usage: {usage}\n\n{(text or '').replace('``', '`').strip()}")
            raise SystemExit(0)
        yield

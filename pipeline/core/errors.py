"""Errors of a user's input, and how every command ends: in one line where nothing is to be mended.

Imports nothing of weight: an interruption while the rest is imported ends at once.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, NoReturn

from analysis import RuleError

INTERRUPTED, CLOSED, TERMINATED = 130, 141, 143  # 128 and the signal's number, as in shells
WORDS: dict[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
received = list[int]()  # signals: Ray raises a KeyboardInterrupt of its own for any


class PipelineError(Exception):
    """An error of a user's input: the key or file, its value, the allowed values, the remedy.

    Whatever reads an input may raise it; docstrings name it where a caller has to know.
    """


class DamagedError(PipelineError):
    """An artifact differs from its record. The runner sets it aside and makes it anew."""

    def __init__(self, directory: Path, reason: str) -> None:
        super().__init__(
            f"{reason}: the command that made this artifact sets it aside and makes it anew"
        )
        self.directory = directory
        self.reason = reason


EXPECTED = (PipelineError, OSError, RuleError)  # of a user's making, or the machine's: a full disk
OF_INPUTS = (*EXPECTED, ValueError)  # as libraries raise for names and files that they refuse


def first_line(error: BaseException) -> str:
    r"""Return the message of an error in one line, without a full stop.

    >>> first_line(ValueError("no.\nmore"))
    'no'
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(". ")


def one_line(error: BaseException) -> str:
    r"""Return an error as printed: in one line, of a `PipelineError` one for each problem.

    >>> one_line(ValueError("no\n  more")), one_line(KeyError("t")), one_line(OSError(28, "full", "f"))
    ('no more', "KeyError: 't'", 'f: full')
    """  # noqa: E501
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, PipelineError):
        return "\n".join(" ".join(line.split()) for line in str(error).splitlines())
    text = " ".join(str(error).split())
    return text if text and isinstance(error, OF_INPUTS) else f"{type(error).__name__}: {text}"


@contextmanager
def collect_errors(problems: list[str]) -> Iterator[None]:
    """Collect errors of inputs, so that all are reported together."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OF_INPUTS as error:
        problems.append(one_line(error))


def raise_collected(problems: list[str]) -> None:
    """Raise the collected problems as one error, if there are any."""
    if problems:
        raise PipelineError("\n".join(dict.fromkeys(problems)))


@contextmanager
def terminal() -> Iterator[None]:
    """Run a command: one line for an error of a user's making, an interruption, nothing for a pipe.

    SIGTERM interrupts as Ctrl-C does. Signals that the shell ignores (nohup) stay ignored.
    Characters that the output can't encode are printed as escapes.

    Raises:
        SystemExit: with the usual status, or a line for each problem; 1 after a traceback.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if current_thread() is main_thread():
        for number in WORDS:
            if signal.getsignal(number) is signal.SIG_DFL:  # not ignored, nor a launcher's
                signal.signal(number, _interrupt)
        sys.unraisablehook = _unraisable
    try:
        yield
        print(end="", flush=True)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)  # Python writes what is left when it ends
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
        raise SystemExit(CLOSED) from None
    except KeyboardInterrupt:
        raise SystemExit(_stopped()) from None
    except EXPECTED as error:
        raise SystemExit("error: " + one_line(error).replace("\n", "\nerror: ")) from None
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None


@contextmanager
def command(usage: str, text: str | None, arguments: Sequence[str]) -> Iterator[None]:
    """Run a command in a terminal, or print its `usage` and `text` where help is asked for."""
    with terminal():
        if {"-h", "--help"} & set(arguments):
            print(f"usage: {usage}\n\n{(text or '').replace('``', '`').strip()}")
            raise SystemExit(0)
        yield


def _interrupt(number: int, _: Any) -> NoReturn:
    received.append(number)
    raise KeyboardInterrupt


def _unraisable(lost: Any) -> None:
    """End the process for an interruption inside `__del__`, which Python prints and forgets."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        os._exit(_stopped())
    sys.__unraisablehook__(lost)


def _stopped() -> int:
    number = received[0] if received else signal.SIGINT
    print(f"{WORDS[number]}: the same command goes on from here", file=sys.stderr, flush=True)
    return 128 + number

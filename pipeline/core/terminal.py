"""How commands run in a terminal: signals, exit statuses, control characters in what is printed.

Imports nothing of weight: an interruption while the rest is imported ends at once.
"""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from threading import current_thread, main_thread
from typing import Any

from pipeline.core.errors import EXPECTED, one_line

INTERRUPTED, CLOSED, TERMINATED = 130, 141, 143  # 128 and the signal's number, as in shells
WORDS: dict[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
received = dict[int, float]()  # signals, and when. Ray raises its own KeyboardInterrupt for any
TWICE = 1.0  # seconds: a signal that comes again within them is the same (`timeout` sends two)
# Characters that act on a terminal, or turn a text around, instead of being shown. Lines and tabs
# are left.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
MOVES = re.compile(r"\n*(\x1b\[A)*")  # of a progress bar, to its line


def escaped(text: str) -> str:
    r"""Return a text with its control characters as escapes; lines and tabs stay.

    >>> print(escaped("a\x1b[31m\nb"))
    a\x1b[31m
    b
    """
    return CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


class Terminal:
    """A stream that shows names and messages of others as text, without control characters."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write a text, its control characters as escapes; a progress bar goes back to its line."""
        if not MOVES.fullmatch(text):
            start = "\r" if text.startswith("\r") else ""
            text = start + escaped(text.removeprefix("\r"))
        self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def terminal() -> Iterator[None]:
    """Run a command: one line for an error of a user's making, an interruption, nothing for a pipe.

    SIGTERM interrupts as Ctrl-C does, and whatever a library makes of it, the command ends as
    interrupted. A second signal ends the process at once. Signals that the shell ignores (nohup)
    stay ignored. Control characters are printed as escapes, and so is what the output can't encode.

    Raises:
        SystemExit: with the usual status, or a line for each problem; 1 after a traceback.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    out: Any = Terminal(sys.stdout)
    err: Any = Terminal(sys.stderr)
    before: dict[int, Any] = {}  # handlers of signals
    with redirect_stdout(out), redirect_stderr(err):
        try:
            _listen(before)
            yield
            print(end="", flush=True)
            go_on()
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            _restore(before)  # from here on a signal ends the process at once
            raise _end_of(error) from None
        finally:
            _restore(before)


def go_on() -> None:
    """Raise the KeyboardInterrupt of a signal again where a library has lost it."""
    if received:
        raise KeyboardInterrupt


def _end_of(error: BaseException) -> SystemExit:
    """Return how a command exits with this error; print what has to be said before."""
    if isinstance(error, BrokenPipeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)  # Python writes what is left when it ends
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
    if received or isinstance(error, KeyboardInterrupt):
        if isinstance(error, SystemExit) and error.code in (INTERRUPTED, TERMINATED):
            return error
        return SystemExit(_stopped())
    if isinstance(error, BrokenPipeError):
        return SystemExit(CLOSED)
    if isinstance(error, SystemExit):
        return SystemExit(escaped(error.code)) if isinstance(error.code, str) else error
    if isinstance(error, EXPECTED):
        return SystemExit(escaped("error: " + one_line(error).replace("\n", "\nerror: ")))
    print("".join(traceback.format_exception(error)), end="", file=sys.stderr)
    return SystemExit(1)


@contextmanager
def command(usage: str, text: str | None, arguments: Sequence[str]) -> Iterator[None]:
    """Run a command in a terminal, or print its `usage` and `text` where help is asked for."""
    with terminal():
        if {"-h", "--help"} & set(arguments):
            print(f"usage: {usage}\n\n{(text or '').replace('``', '`').strip()}")
            raise SystemExit(0)
        yield


def _listen(before: dict[int, Any]) -> None:
    """Let signals interrupt the command, unless they do, or are ignored; note what they did."""
    if current_thread() is not main_thread():
        return
    for number in WORDS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            if not before:
                received.clear()
            before[number] = signal.getsignal(number)
            signal.signal(number, _interrupt)
    sys.unraisablehook = _unraisable


def _restore(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)


def _interrupt(number: int, _: Any) -> None:
    again = bool(received)
    received.setdefault(number, time.monotonic())
    if not again:
        raise KeyboardInterrupt
    if time.monotonic() - min(received.values()) > TWICE:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


def _unraisable(lost: Any) -> None:
    """End the process for an interruption inside `__del__`, which Python prints and forgets."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        os._exit(_stopped())
    sys.__unraisablehook__(lost)


def _stopped() -> int:
    number = next(iter(received), signal.SIGINT)
    exec("")  # else Python ends by SIGINT where the interruption came through an `exec` of a text
    with suppress(OSError):  # the terminal may be gone
        print(f"{WORDS[number]}: the same command goes on from here", file=sys.stderr, flush=True)
    return 128 + number

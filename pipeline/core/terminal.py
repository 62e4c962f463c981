"""How commands run in a terminal: signals, exit statuses, control characters in the output.

It imports nothing slow, so that an interruption during the other imports ends the command at once.
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

# exit statuses: 128 and the number of the signal, as in shells
INTERRUPTED = 130
CLOSED = 141
TERMINATED = 143
WORDS: dict[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
received = dict[int, float]()  # signals, with their times; Ray raises a KeyboardInterrupt for any
TWICE = 1.0  # seconds within which a repeated signal counts once (`timeout` sends two)
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


class Terminal:
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


@contextmanager
def terminal() -> Iterator[None]:
    """Run a command: a user's error and an interruption print one line, a closed pipe none.

    SIGTERM interrupts like Ctrl-C, and the command ends as interrupted whatever a library makes of
    the signal. A second signal ends the process at once. Signals that the shell ignores (nohup)
    stay ignored. Control characters, and characters that the output can't encode, are escaped.

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
    """Raise KeyboardInterrupt if a signal was received, in case a library has swallowed it."""
    if received:
        raise KeyboardInterrupt


def _end_of(error: BaseException) -> SystemExit:
    """Return how a command exits after an error; print the line or traceback that it needs."""
    if isinstance(error, BrokenPipeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)  # for what Python flushes at exit
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
    """Run a command in a terminal, or print `usage` and `text` if help is asked for."""
    with terminal():
        if {"-h", "--help"} & set(arguments):
            print(f"usage: {usage}\n\n{(text or '').replace('``', '`').strip()}")
            raise SystemExit(0)
        yield


def _listen(before: dict[int, Any]) -> None:
    """Let signals that have their default handler interrupt the command; `before` keeps these."""
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
    """End the process for an interruption inside `__del__`, which Python would print and ignore."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        os._exit(_stopped())
    sys.__unraisablehook__(lost)


def _stopped() -> int:
    number = next(iter(received), signal.SIGINT)
    exec("")  # else Python ends by SIGINT if the interruption came from inside an `exec`
    with suppress(OSError):  # the terminal may be gone
        print(f"{WORDS[number]}: the same command goes on from here", file=sys.stderr, flush=True)
    return 128 + number

"""Signals: SIGINT and SIGTERM interrupt a command, a second one ends the process at once.

It imports nothing slow, so that an interruption during the other imports ends the command at once.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from threading import current_thread, main_thread
from typing import Any

# exit statuses: 128 and the number of the signal, as in shells
INTERRUPTED = 130
TERMINATED = 143
WORDS: dict[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
GOES_ON = ": the same command goes on from here"
received = dict[int, float]()  # signals, with their times; Ray raises a KeyboardInterrupt for any
TWICE = 1.0  # seconds within which a repeated signal counts once (`timeout` sends two)


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt if a signal was received, in case a library has swallowed it."""
    if received:
        raise KeyboardInterrupt


def listen(before: dict[int, Any], *, goes_on: bool) -> None:
    """Let signals that have their default handler interrupt the command; `before` keeps these.

    `goes_on`: as of `stopped`.
    """
    if current_thread() is not main_thread():
        return
    for number in WORDS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            if not before:
                received.clear()
            before[number] = signal.getsignal(number)
            signal.signal(number, _interrupt)
    sys.unraisablehook = partial(_unraisable, goes_on)


def restore(before: dict[int, Any]) -> None:
    """Give signals the handlers `before`."""
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


def _unraisable(goes_on: bool, lost: Any) -> None:
    """End the process for an interruption inside `__del__`, which Python would print and ignore."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        os._exit(stopped(goes_on=goes_on))
    sys.__unraisablehook__(lost)


def stopped(*, goes_on: bool) -> int:
    """Print that the command was stopped, and return its exit status.

    `goes_on`: whether the same command goes on from here, rather than begin again.
    """
    number = next(iter(received), signal.SIGINT)
    exec("")  # else Python ends by SIGINT if the interruption came from inside an `exec`
    with suppress(OSError):  # the terminal may be gone
        print(WORDS[number] + (GOES_ON if goes_on else ""), file=sys.stderr, flush=True)
    return 128 + number

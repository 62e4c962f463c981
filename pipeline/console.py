"""Terminal behaviour of every command of the project: readable output, quiet exits.

Imports nothing of weight, so that an interruption while the rest is imported is caught as well.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

TRACEBACK = "HYDRA_FULL_ERROR" in os.environ  # wanted by the user
INTERRUPTED, CLOSED, TERMINATED = 130, 141, 143  # 128 and the signal's number, as in shells

Handler = Callable[[int, FrameType | None], None]
_received = list[int]()  # signals that were raised as KeyboardInterrupt


def starting() -> None:
    """Let Ctrl-C and SIGTERM end the process at once, with a line, while there is nothing to tidy.

    An exception could be lost: imports and Hydra's composition catch many. `terminal` ends this.
    """
    _handle(_leave)


@contextmanager
def terminal() -> Iterator[None]:
    """Run a command: no traceback for an interruption or a reader that has gone (``| head``).

    SIGTERM (of kill, a batch system, a container that stops) interrupts as Ctrl-C does. Characters
    that the output can't encode are printed as escapes.

    Raises:
        SystemExit: with the status of an interrupted, ended or cut-off command.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    before = _handle(_interrupt)
    try:
        yield
        check_interruption()
        print(end="", flush=True)
    except BrokenPipeError:
        _discard_output()
        raise SystemExit(CLOSED) from None
    except KeyboardInterrupt:
        number = _received[-1] if _received else signal.SIGINT
        _received.clear()
        print(_line(number), file=sys.stderr)
        raise SystemExit(128 + number) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def check_interruption() -> None:
    """Raise an interruption that a library has caught.

    Raises:
        KeyboardInterrupt: a signal came since the command began.
    """
    if _received:
        raise KeyboardInterrupt


def _handle(handler: Handler) -> dict[int, Any]:
    """Handle both signals by `handler`; return the handlers until now.

    Handlers of a launcher stay, and signals that the shell ignores (nohup) stay ignored.
    """
    if current_thread() is not main_thread():
        return {}
    ours = (signal.SIG_DFL, signal.default_int_handler, _leave, _interrupt)
    now = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before: dict[int, Any] = {number: old for number, old in now.items() if old in ours}
    for number in before:
        signal.signal(number, handler)
    return before


def _interrupt(number: int, _: FrameType | None) -> None:
    _received.append(number)
    raise KeyboardInterrupt


def _leave(number: int, _: FrameType | None) -> None:
    try:
        print(_line(number), file=sys.stderr, flush=True)
    finally:
        os._exit(128 + number)


def _line(number: int) -> str:
    how = "terminated" if number == signal.SIGTERM else "interrupted"
    return f"{how}: the same command goes on from here"


@contextmanager
def command(usage: str, text: str | None, arguments: Sequence[str]) -> Iterator[None]:
    """Run a command as `told` does, or print its help.

    Args:
        usage: how it is called, printed with `text` where `arguments` ask for help.
        text: what it does.
        arguments: of the command line.

    Raises:
        SystemExit: with status 0 after help; as of `told`.
    """
    with told():
        if {"-h", "--help"} & set(arguments):
            print(f"usage: {usage}\n\n{(text or '').replace('``', '`').strip()}")
            raise SystemExit(0)
        yield


@contextmanager
def told() -> Iterator[None]:
    """Run a command in a terminal; an error of a user's making, or of the machine's, is one line.

    Raises:
        SystemExit: with a line for each problem.
    """
    with terminal():
        try:
            yield
        except BrokenPipeError:
            raise
        except Exception as error:
            from pipeline.plan.explain import EXPECTED_ERRORS, explain

            check_interruption()  # which a library took for something else
            if TRACEBACK or not isinstance(error, EXPECTED_ERRORS):
                raise
            raise SystemExit("error: " + explain(error).replace("\n", "\nerror: ")) from None


def _discard_output() -> None:
    """Send the remaining output nowhere, or Python would complain when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())

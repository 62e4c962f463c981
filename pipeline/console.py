"""Terminal behaviour of every command of the project: readable output, quiet exits.

Imports nothing of weight, so that an interruption while the rest is imported is caught as well.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType

TRACEBACK = "HYDRA_FULL_ERROR" in os.environ  # wanted by the user
INTERRUPTED, CLOSED, TERMINATED = 130, 141, 143  # 128 and the signal's number, as in shells


class Terminated(KeyboardInterrupt):
    """SIGTERM came. Whatever tidies up after Ctrl-C tidies up after it."""


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
    # a handler of a launcher stays, and so does this one within itself
    mine = current_thread() is main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if mine:
        signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
        print(end="", flush=True)
    except BrokenPipeError:
        _discard_output()
        raise SystemExit(CLOSED) from None
    except KeyboardInterrupt as interrupt:
        ended = isinstance(interrupt, Terminated)
        what = "terminated" if ended else "interrupted"
        print(f"{what}: the same command goes on from here", file=sys.stderr)
        raise SystemExit(TERMINATED if ended else INTERRUPTED) from None
    finally:
        if mine:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(_: int, __: FrameType | None) -> None:
    raise Terminated


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

            if TRACEBACK or not isinstance(error, EXPECTED_ERRORS):
                raise
            if interrupt := interruption(error):
                raise interrupt from None
            raise SystemExit("error: " + explain(error).replace("\n", "\nerror: ")) from None


def interruption(error: BaseException | None) -> KeyboardInterrupt | None:
    """Return the interruption that an error arose from, which a library took for something else."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error


def _discard_output() -> None:
    """Send what is still printed nowhere: Python would complain of it when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())

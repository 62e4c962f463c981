"""Processes that this one starts: they end when it ends, however it ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from threading import Thread, current_thread, main_thread

from pipeline.errors import PipelineError

LOOKS = 1.0  # seconds between two looks at the parent


@contextmanager
def processes(count: int, label: str) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of `count` processes. An error, or an interruption, ends them at once.

    Raises:
        PipelineError: the system ended one of them; `label` names what is computed.
    """
    others = set(active_children())
    with _uninterrupted():  # starts multiprocessing's own process, which counts semaphores
        pool = ProcessPoolExecutor(count, get_context("spawn"), _begin, (os.getpid(),))
    try:
        with _uninterrupted():
            for _ in range(count):  # each starts one, as long as none is ready for more
                pool.submit(int)
        yield pool
    except BaseException as error:
        for child in {*active_children()} - others:
            child.terminate()
        if isinstance(error, BrokenProcessPool):
            raise PipelineError(
                f"{label}: the system ended one of the processes that help (for want of memory, "
                "most often): free some, and give the same command again; what is finished is kept"
            ) from None
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let processes that are started within ignore Ctrl-C from their first import on."""
    if current_thread() is not main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _begin(parent: int) -> None:
    """Begin a process of a pool; an interruption from the keyboard is its parent's matter."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)


def end_with_parent(parent: int) -> None:
    """End this process when `parent`, which started it, ends."""
    Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOKS)
    os._exit(1)

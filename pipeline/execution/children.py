"""Processes that this one starts: they end when it ends, however it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from threading import Thread, current_thread, main_thread

from pipeline.errors import PipelineError


@contextmanager
def processes(count: int, label: str) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of `count` processes. An error, or an interruption, ends them at once.

    Raises:
        PipelineError: the system ended one of them; `label` names what is computed.
    """
    others = set(active_children())
    with _uninterrupted():  # starts multiprocessing's own process, which counts semaphores
        pool = ProcessPoolExecutor(count, get_context("spawn"), _begin)
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
                f"{label}: the system killed a helper process, most often for lack of memory: "
                "free some and run the same command again; finished work is kept"
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


def _begin() -> None:
    """Begin a process of a pool; an interruption from the keyboard is its parent's matter."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)

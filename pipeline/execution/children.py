"""Processes that this one starts: they end when it ends, however it ends."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from threading import Thread, current_thread, main_thread

from pipeline.errors import PipelineError

PR_SET_PDEATHSIG = 1  # of prctl(2)
LOOKS = 1.0  # seconds between two looks at the parent, where the kernel does not end its children
KEEPER = """
import os, signal, sys
from contextlib import suppress

def ender(pid):  # a handle stays of this process, though its number may be given to another
    if not hasattr(os, "pidfd_open"):
        return lambda: os.kill(pid, signal.SIGKILL)
    handle = os.pidfd_open(pid)
    return lambda: signal.pidfd_send_signal(handle, signal.SIGKILL)

enders = []
for pid in sys.argv[1:]:
    with suppress(ProcessLookupError):
        enders.append(ender(int(pid)))
sys.stdin.read()
for end in enders:
    with suppress(ProcessLookupError):
        end()
"""


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
    """End this process when `parent`, which started it, ends.

    Linux's kernel does it, also while this process computes without looking at Python's threads.
    Where there is no such call, a thread looks at the parent.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOKS)
    os._exit(1)


def end_with_me(pids: Iterable[int]) -> None:
    """Let processes that are not this one's own code end when this one ends.

    A process of its own waits until the pipe to this one is closed, and kills them then.
    """
    command = [sys.executable, "-I", "-S", "-c", KEEPER, *map(str, pids)]
    keeper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    _keepers.append(keeper)


_keepers: list[subprocess.Popen[bytes]] = []  # their pipes stay open as long as this process lives

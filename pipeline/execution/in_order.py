"""Work on a stream with several threads: its results in order, few of them held at a time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")

MOST_THREADS = 8  # each holds a chunk: more would take more memory, and wait for the reader


def stream_threads(threads: int | None) -> int:
    """Return how many threads work on a stream, from the configuration key device.threads."""
    return min(threads or os.cpu_count() or 1, MOST_THREADS)


def in_order(work: Callable[[S], T], items: Iterable[S], threads: int) -> Iterator[T]:
    """Yield what `work` gives for each of `items`, in their order; what it raises is raised.

    The caller's thread reads `items`. At most `threads` + 1 of them are in work or wait.

    Example:
        >>> list(in_order(abs, [-1, 2, -3], threads=2))
        [1, 2, 3]
    """
    if threads == 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads, "stream") as pool:
        waiting: deque[Future[T]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # an error, or a reader that wants no more
            for future in waiting:
                future.cancel()

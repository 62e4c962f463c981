"""Work on streams, and on the rows of tensors, with several threads of a processor."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

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


def in_threads(work: Callable[[slice], T], rows: int, device: torch.device) -> list[T]:
    """Return what `work` gives for parts of `rows` rows, one part a thread, in their order.

    There are as many threads as torch has; inside `work` each runs torch's operations alone. On
    another device than the CPU all rows are one part. What a part raises is raised.
    """
    import torch

    threads = torch.get_num_threads()
    if device.type != "cpu" or min(rows, threads) < 2:
        return [work(slice(0, rows))]
    ends = [round(part * rows / threads) for part in range(threads + 1)]
    parts = [slice(*pair) for pair in pairwise(ends) if pair[0] < pair[1]]
    inference = torch.is_inference_mode_enabled()

    def alone(part: slice) -> T:
        with torch.inference_mode(inference):  # a mode of the thread
            return work(part)

    try:
        with ThreadPoolExecutor(len(parts), "rows", torch.set_num_threads, (1,)) as pool:
            return list(pool.map(alone, parts))
    finally:
        torch.set_num_threads(threads)  # what later threads begin with

"""Work on the rows of tensors with several threads of a processor."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


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

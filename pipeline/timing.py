"""Times the parts of a long stage."""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch

from pipeline.stage import Json

Mark = float | torch.cuda.Event


def mark(device: torch.device) -> Mark:
    """Return this moment: on the host, or on CUDA after the work that is queued."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(marks: Sequence[Mark]) -> list[float]:
    """Return the seconds from each of n marks to the next (n - 1,); waits for the last one."""
    if marks and not isinstance(marks[-1], float):
        marks[-1].synchronize()
    return [_seconds(begin, end) for begin, end in pairwise(marks)]


def _seconds(begin: Mark, end: Mark) -> float:
    if isinstance(begin, float) or isinstance(end, float):
        return end - begin  # type: ignore[operator]  # all are of one kind
    return begin.elapsed_time(end) / 1000


class Stopwatch:
    """Sums the seconds of named spans; on CUDA by events, without making the host wait."""

    def __init__(self, device: torch.device) -> None:
        """Time work on `device`."""
        self._device = device
        self._spans: list[tuple[str, Mark, Mark]] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time the body of the context."""
        begin = mark(self._device)
        yield
        self._spans.append((name, begin, mark(self._device)))

    def seconds(self) -> dict[str, float]:
        """Return the seconds of every span so far, by name; waits for the last one to end."""
        total: dict[str, float] = defaultdict(float)
        seconds_between([end for _, _, end in self._spans[-1:]])  # waits: the others ended before
        for name, begin, end in self._spans:
            total[name] += seconds_between([begin, end])[0]
        return {name: round(value, 4) for name, value in total.items()}


def peak_memory(device: torch.device) -> int:
    """Return the most bytes held so far: on the CUDA device, else by this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def describe_device(device: torch.device) -> Json:
    """Return the record's facts on the device."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch_threads": torch.get_num_threads(),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn_attention": torch.backends.cuda.cudnn_sdp_enabled(),
    }


def throughput(measured: Iterable[Json]) -> Json:
    """Return the total rows and seconds of finished shards, from those of each by span."""
    seconds: Counter[str] = Counter()
    tokens = 0
    for shard in measured:
        seconds.update(shard["seconds"])
        tokens += shard["rows"]
    return {
        "tokens": tokens,
        "tokens_per_second": round(tokens / seconds.total(), 1),
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
    }

"""Moments on the host or on CUDA, the device, and its memory."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

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
    pairs: Any = pairwise(marks)  # all are of one kind
    if marks and not isinstance(marks[-1], float):
        marks[-1].synchronize()
        return [begin.elapsed_time(end) / 1000 for begin, end in pairs]
    return [end - begin for begin, end in pairs]


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

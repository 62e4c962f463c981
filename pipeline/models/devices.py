"""The devices that models run on: choice, settings, memory, transfers, timing."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.core.errors import PipelineError
from pipeline.core.stage import Json
from pipeline.core.timings import own_threads, processor
from pipeline.models.products import weight_first

Mark = float | torch.cuda.Event  # a point in time, from `mark`


def choose_device(name: str) -> torch.device:
    """Return the torch device that the key device.name means."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise PipelineError(
            f"device.name={name}: torch finds no CUDA device here; "
            "give device.name=cpu, or install torch's CUDA build"
        )
    return torch.device(name)


def check_threads(threads: int | None) -> None:
    """Check the key device.threads: with far more threads than processors torch crashes."""
    cores = os.cpu_count() or 1
    if threads is not None and threads > cores:
        raise PipelineError(
            f"device.threads={threads} exceeds the {cores} processors of this machine: give "
            f"device.threads={cores} or less, or null"
        )


def set_up(device: torch.device, threads: int | None) -> None:
    """Make `device` current, set the CPU threads (None: torch's own choice), and keep TF32 off.

    With TF32, products in float32 would keep only 10 bits of the mantissa. CuDNN's attention is
    off too: it makes a plan for every shape, and decoding has a new shape at each step.
    """
    check_threads(threads)
    own = own_threads()  # before it is changed, so that null means the same in every job of a sweep
    if threads is not None or torch.get_num_threads() != own:
        torch.set_num_threads(own if threads is None else threads)
    if device.type == "cuda":
        # before the first allocation: batches of many sizes would leave holes between blocks
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        if device.index is not None:
            torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.enable_cudnn_sdp(False)


def to_numpy(*tensors: Tensor) -> list[NDArray[Any]]:
    """Return tensors as NumPy arrays, unconverted; NumPy has no bfloat16."""
    return [tensor.cpu().numpy() for tensor in tensors]


def to_device(values: Sequence[int] | NDArray[Any], device: torch.device) -> Tensor:
    """Return a list of integers, or an array, as a tensor on a device."""
    array = values if isinstance(values, np.ndarray) else np.array(values, dtype=np.int64)
    return torch.from_numpy(array).to(device)


def mark(device: torch.device) -> Mark:
    """Return the time now; on CUDA, an event after all work that is queued."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(marks: Sequence[Mark]) -> list[float]:
    """Return the n - 1 durations between n marks, in seconds; waits for the last one."""
    pairs: Any = pairwise(marks)  # all are of one kind
    if marks and not isinstance(marks[-1], float):
        marks[-1].synchronize()
        return [begin.elapsed_time(end) / 1000 for begin, end in pairs]
    return [end - begin for begin, end in pairs]


def peak_memory(device: torch.device) -> int:
    """Return the peak memory so far, in bytes: of the CUDA device, or else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def describe_machine(device: torch.device) -> Json:
    """Describe the machine that timings were just measured on, for `pipeline.core.timings`."""
    return {
        "processor": processor(),
        "device": str(device),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def describe_device(device: torch.device) -> Json:
    """Return what an artifact's record says of the device."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch_threads": torch.get_num_threads(),
        "weight_first": device.type == "cpu" and weight_first(),  # products of few rows
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn_attention": torch.backends.cuda.cudnn_sdp_enabled(),
    }

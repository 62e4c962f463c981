"""Where models run, how float32 is meant there, and how numbers come from there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.errors import PipelineError


def choose_device(name: str) -> torch.device:
    """Return the torch device of the configuration key device.name.

    Raises:
        PipelineError: CUDA is asked for and there is none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise PipelineError(
            f"device.name={name}: torch finds no CUDA device here; "
            "give device.name=cpu, or install torch's CUDA build"
        )
    return torch.device(name)


def check_threads(threads: int | None) -> None:
    """Check the configuration key device.threads: torch crashes with far more than there are cores.

    Raises:
        PipelineError: it exceeds the processors of this machine.
    """
    cores = os.cpu_count() or 1
    if threads is not None and threads > cores:
        raise PipelineError(
            f"device.threads={threads} exceeds the {cores} processors of this machine: give "
            f"device.threads={cores} or less, or null"
        )


def set_up(device: torch.device, threads: int | None) -> None:
    """Make `device` current, set the CPU threads (None leaves torch's choice), and keep TF32 off.

    With TF32, products of a float32 head (or of a float32 model) would keep 10 bits. CuDNN's
    attention is off too: it makes a plan for every shape, and decoding has a new one at each step.

    Raises:
        PipelineError: there are fewer processors than threads.
    """
    check_threads(threads)
    if threads is not None:
        torch.set_num_threads(threads)
    if device.type == "cuda":
        # before the first allocation: batches of many sizes would leave holes between blocks
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        if device.index is not None:
            torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.enable_cudnn_sdp(False)


def waits(device: torch.device) -> bool:
    """Say whether to read a number from a device is to wait for what it still computes."""
    return device.type != "cpu"


def read(*tensors: Tensor) -> list[NDArray[Any]]:
    """Return what the tensors of one device hold, bit for bit, with one copy and one wait.

    Raises:
        TypeError: NumPy has no such numbers (bfloat16).
    """
    if not tensors or not waits(tensors[0].device):
        return [tensor.numpy() for tensor in tensors]
    dtypes = [torch.empty(0, dtype=tensor.dtype).numpy().dtype for tensor in tensors]
    packed = torch.cat([_bytes(tensor) for tensor in tensors])
    parts = np.split(packed.cpu().numpy(), np.cumsum([t.nbytes for t in tensors])[:-1])
    return [
        np.frombuffer(part.tobytes(), dtype).reshape(tensor.shape)
        for part, dtype, tensor in zip(parts, dtypes, tensors, strict=True)
    ]


def _bytes(tensor: Tensor) -> Tensor:
    if not tensor.numel():  # of strides that no other type can have
        return tensor.new_empty(0, dtype=torch.uint8)
    return tensor.contiguous().view(-1).view(torch.uint8)


def send(values: Sequence[int] | NDArray[Any], device: torch.device) -> Tensor:
    """Return numbers as a tensor on a device, without waiting for what it still computes."""
    array = values if isinstance(values, np.ndarray) else np.array(values, dtype=np.int64)
    tensor = torch.from_numpy(array)
    if device.type == "cuda":  # only a copy from pinned memory does not wait
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)

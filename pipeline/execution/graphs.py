"""Passes of models as CUDA graphs: captured once, then replayed with one launch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from pipeline.execution.shards import out_of_memory

_failed: list[str] = []  # why a capture failed: after the first failure this process tries no other


@cache
def side_stream(device: torch.device, purpose: str) -> torch.cuda.Stream:  # noqa: ARG001 a key
    """Return the stream of `purpose` beside the main one, always the same.

    CUDA has 32 streams and gives them out in turn: a new one for every shard would some day be
    the one that another purpose uses.
    """
    return torch.cuda.Stream(device)


def captures(device: torch.device) -> bool:
    """Say whether a device has graphs at all."""
    return device.type == "cuda"


def captured(run: Callable[[], Tensor], label: str) -> Callable[[], Tensor] | None:
    """Return what replays `run`, or None, with a warning, where it can't be captured.

    A failed capture can leave the allocator in a state in which the next fails too: there is one
    attempt, then none for the process.

    Args:
        run: gives the same result when it is called again, in the same place.
        label: of the model, for the warning.

    Raises:
        RuntimeError: memory ran out.
    """
    if _failed:
        return None
    stream = torch.cuda.current_stream()
    try:
        return capture(run)
    except RuntimeError as error:
        torch.cuda.set_stream(stream)  # the capture's own may have stayed current
        if out_of_memory(error):
            raise
        _failed.append(str(error))
        warnings.warn(
            f"{label}: decoding goes on without a CUDA graph, slower: {error}", stacklevel=2
        )
        return None


def capture(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Return a function that replays `run` as a CUDA graph and returns its (overwritten) result.

    `run` must give the same result when it is called again.

    Raises:
        RuntimeError: it can't be captured, or the replay gives something else.
    """
    current = torch.cuda.current_stream()
    beside = side_stream(current.device, "warm-up")
    beside.wait_stream(current)
    with torch.cuda.stream(beside):
        for _ in range(2):  # libraries set themselves up at the first call
            expected = run()
    current.wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    # Another thread may be copying the last shard: its calls must not end the capture.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = run()

    def replay() -> Tensor:
        graph.replay()
        return result

    scale = float(expected.abs().max())  # bfloat16 kernels may differ by some of their spacings
    if not torch.allclose(replay(), expected, rtol=0.0, atol=0.03 * scale, equal_nan=True):
        raise RuntimeError("the replayed graph differs from the step it was captured from")
    return replay

"""Where memory runs out: a batch that does not fit is halved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pipeline.shards import Progress, Result, Worker

OUT_OF_MEMORY = (  # in the errors of what has no exception of its own for it
    "DefaultCPUAllocator: can't allocate",
    "DefaultCPUAllocator: not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
)


def out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that memory ran out, of CUDA or of torch's CPU allocator."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        words in str(error) for words in OUT_OF_MEMORY
    )


def attempt(worker: Worker, names: Sequence[str], progress: Progress) -> Result | None:
    """Return the result of a shard; None where it does not fit into the memory."""
    try:
        return worker.compute(names, progress)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
    torch.cuda.empty_cache()  # outside of `except`, where the error holds the batch's tensors
    return None


def halves(name: str, group: Sequence[str]) -> list[list[str]]:
    """Return the halves of a batch that does not fit: the second, of shorter prompts, may.

    Raises:
        PipelineError: it is a single item.
    """
    if len(group) == 1:
        raise PipelineError(
            f"{name}: {group[0]} alone does not fit into the memory: lower prompts.max_tokens or "
            "distributions.steps, or take a smaller model or dtype"
        )
    half = (len(group) + 1) // 2
    return [list(group[:half]), list(group[half:])]

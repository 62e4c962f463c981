"""Who computes the shards of a stage: a worker, which holds the models, in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch

from pipeline.errors import PipelineError
from pipeline.stage import Inputs, Json, Task

OUT_OF_MEMORY = (  # in the errors of what has no exception of its own for it
    "DefaultCPUAllocator: can't allocate",
    "DefaultCPUAllocator: not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
)

Result = tuple[Json, bytes]  # of a shard: what was measured, and its content
Progress = Callable[[int], object]  # told the steps that were done since


class Worker(Protocol):
    """The models of a stage, loaded, and the computation with them."""

    def batch(self) -> int:
        """Return how many items are computed together."""

    def compute(self, names: Sequence[str], progress: Progress) -> Result:
        """Compute the shard of some items."""

    def facts(self, measured: Sequence[Json]) -> Json:
        """Return the record's facts, from what was measured of all shards."""


OpenWorker = Callable[[Task, Inputs], Worker]  # of a module
Results = Iterator[tuple[list[str], Result]]  # each with its items


class Here:
    """The worker of a process, opened by the first call in the directory of the command."""

    engine: ClassVar[Json] = {"engine": "inline"}  # for the record

    def __init__(
        self, task: Task, inputs: Inputs, open_worker: OpenWorker, directory: Path
    ) -> None:
        self._task, self._inputs, self._open = task, inputs, open_worker
        self._directory = directory

    @cached_property
    def _worker(self) -> Worker:
        os.chdir(self._directory)  # of another process, paths are relative to it
        return self._open(self._task, self._inputs)

    def ask(self, method: str, *given: object) -> Any:
        """Call a method of the worker."""
        return getattr(self._worker, method)(*given)

    def compute(self, batches: list[list[str]], progress: Progress) -> Results:
        """Yield the results of batches, each with its items."""
        for names in batches:
            yield from self._parts(names, progress)

    def results(self, names: list[str]) -> tuple[list[tuple[list[str], Result]], int]:
        """Return the results of a batch, and how many steps it took: for another process."""
        steps = list[int]()
        return list(self._parts(names, steps.append)), sum(steps)

    def _parts(self, names: list[str], progress: Progress) -> Results:
        """Yield the result of a batch, or of its halves where it does not fit into the memory."""
        steps = list[int]()

        def count(done: int) -> None:
            steps.append(done)
            progress(done)

        result = attempt(self._worker, names, count)
        if result is not None:
            yield names, result
            return
        progress(-sum(steps))
        if len(names) == 1:
            raise PipelineError(
                f"{self._task.name}: {names[0]} alone does not fit into the memory: lower "
                "prompts.max_tokens or distributions.steps, or take a smaller model or dtype"
            )
        half = (len(names) + 1) // 2
        yield from self._parts(names[:half], progress)
        yield from self._parts(names[half:], progress)


def attempt(worker: Worker, names: Sequence[str], progress: Progress) -> Result | None:
    """Return the result of a batch; None where it does not fit into the memory."""
    try:
        return worker.compute(names, progress)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
    torch.cuda.empty_cache()  # outside of `except`, where the error holds the batch's tensors
    return None


def out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that memory ran out, of CUDA or of torch's CPU allocator."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        words in str(error) for words in OUT_OF_MEMORY
    )

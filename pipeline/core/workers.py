"""Workers, which load a stage's models and compute its shards, in this process or with Ray."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pipeline.core.errors import PipelineError, first_line
from pipeline.core.stage import Inputs, Json, Task

if TYPE_CHECKING:
    import pyarrow as pa

OUT_OF_MEMORY = (  # messages of RuntimeErrors; not all have an exception class of their own
    "DefaultCPUAllocator: can't allocate",
    "DefaultCPUAllocator: not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
)
DEATHS = 3  # a batch fails once so many workers have died computing it

Result = tuple[Json, "Sequence[pa.Table]"]  # of a shard: measurements, and a table for each item
Progress = Callable[[int], object]  # called with the number of steps done since the last call


class Worker(Protocol):
    """The loaded models of a stage, and what it computes with them.

    If only the models tell the names of the items, a worker also has `names()`.
    """

    def batch(self) -> int:
        """Return the number of items in a shard."""

    def compute(self, names: Sequence[str], progress: Progress) -> Result:
        """Compute the shard of these items."""

    def metadata(self, measured: Sequence[Json]) -> Json:
        """Return the metadata for the record; `measured` are the measurements of all shards."""


OpenWorker = Callable[[Task, Inputs], Worker]  # a stage's class of workers
Results = Iterator[tuple[list[str], Result]]  # each with the names of its items


class InlineExecutor:
    """Runs one worker in this process; it is created on first use, in the command's directory."""

    engine: ClassVar[Json] = {"engine": "inline"}  # for the record

    def __init__(
        self, task: Task, inputs: Inputs, open_worker: OpenWorker, directory: Path
    ) -> None:
        self._task = task
        self._inputs = inputs
        self._open = open_worker
        self._directory = directory

    @cached_property
    def _worker(self) -> Worker:
        os.chdir(self._directory)  # in another process, for relative paths
        return self._open(self._task, self._inputs)

    def ask(self, method: str, *arguments: object) -> Any:
        """Call a method of the worker."""
        return getattr(self._worker, method)(*arguments)

    def compute(self, batches: list[list[str]], progress: Progress) -> Results:
        """Yield the results of batches, each with its items."""
        for names in batches:
            yield from self._parts(names, progress)

    def results(self, names: list[str]) -> tuple[list[tuple[list[str], Result]], int]:
        """Return the results of a batch and its number of steps, for `RayExecutor`."""
        steps = list[int]()
        return list(self._parts(names, steps.append)), sum(steps)

    def _parts(self, names: list[str], progress: Progress) -> Results:
        """Yield the result of a batch, or of its halves if it does not fit into memory."""
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
    """Return the result of a batch; None if it does not fit into memory."""
    import torch

    try:
        return worker.compute(names, progress)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
    torch.cuda.empty_cache()  # not inside `except`, where the error keeps the batch's tensors
    return None


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on a GPU or CPU."""
    import torch

    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        words in str(error) for words in OUT_OF_MEMORY
    )


class RayExecutor:
    """Runs several workers with Ray, each an `InlineExecutor` in a process of its own."""

    def __init__(self, ray: Any, hosts: list[Any]) -> None:
        self._ray = ray
        self._hosts = hosts
        self.engine = {"engine": "ray", "workers": len(hosts)}

    def ask(self, method: str, *arguments: object) -> Any:
        """Call a method of the first worker."""
        return self._ray.get(self._hosts[0].ask.remote(method, *arguments))

    def compute(self, batches: list[list[str]], progress: Progress) -> Results:
        """Yield the results of batches as they are finished, each with its items."""
        pool = self._ray.util.ActorPool(self._hosts)
        for results, steps in pool.map_unordered(
            lambda on, names: on.results.remote(names), batches
        ):
            progress(steps)
            yield from results


@contextmanager
def ray_workers(task: Task, inputs: Inputs, open_worker: OpenWorker) -> Iterator[RayExecutor]:
    """Start the workers of a task, and stop them at the end of the context."""
    ray = connect()
    count, processors, gpus = allocate(ray.cluster_resources(), task.runtime.models[0])
    host = ray.remote(InlineExecutor).options(
        num_cpus=processors, num_gpus=gpus, max_restarts=-1, max_task_retries=DEATHS - 1
    )
    hosts = [host.remote(task, inputs, open_worker, Path.cwd()) for _ in range(count)]
    try:
        yield RayExecutor(ray, hosts)
    except ray.exceptions.RayTaskError as failed:
        raise failed.cause from None
    except ray.exceptions.RayError as error:
        raise PipelineError(
            f"{task.name}: {DEATHS} workers died one after the other ({first_line(error)}): "
            "check the machine's memory and Ray's logs; finished batches are kept"
        ) from None
    finally:
        for one in hosts:
            ray.kill(one)


def connect() -> Any:
    """Return the module ray, connected to RAY_ADDRESS, or to this machine alone."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else it sends usage reports
    try:
        import ray
    except ModuleNotFoundError:
        raise PipelineError('execution.engine=ray needs Ray: pip install -e ".[ray]"') from None
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS") or "local"
        ours = signal.getsignal(signal.SIGTERM)
        ray.init(address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        signal.signal(signal.SIGTERM, ours)  # Ray's handler would abort the process
    return ray


def allocate(resources: Mapping[str, float], spec: Any) -> tuple[int, int, int]:
    """Return the number of workers, by default one per GPU, and the CPUs and GPUs of each."""
    device = spec.device.name
    threads = spec.device.threads
    processors = int(resources.get("CPU", 0))
    gpus = int(resources.get("GPU", 0))
    on_gpus = device.startswith("cuda") or (device == "auto" and gpus > 0)
    most = gpus if on_gpus else processors // (threads or processors)
    count = spec.execution.workers or max(1, most)
    each = threads or max(1, processors // count)
    if count * each > processors or (on_gpus and count > gpus) or ":" in device:
        raise PipelineError(
            f"execution.workers={count} with {each} threads each and device.name={device}: Ray "
            f"finds {processors} processors and {gpus} GPUs, and gives every worker its own: lower "
            "execution.workers or device.threads, or give device.name=auto"
        )
    return count, each, int(on_gpus)

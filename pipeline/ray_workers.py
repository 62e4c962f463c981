"""Shards computed by processes that Ray starts, on this machine or on many.

Each holds the models and computes the next shard that is left; this process, which holds the
artifact's lock, keeps the results. So who computes a shard, and when, changes nothing.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import PipelineError, first_line
from pipeline.memory import attempt, halves
from pipeline.stage import Json, Task
from pipeline.store import Artifact

if TYPE_CHECKING:
    from pipeline.shards import OpenWorker, Result, Worker

DEATHS = 3  # of workers over one shard


class Host:
    """A process of Ray's that holds a worker."""

    def __init__(self, given: bytes, search: list[str], directory: str) -> None:
        self._given, self._search, self._directory = given, search, directory

    @cached_property
    def _worker(self) -> Worker:  # loaded by the first call, which can say what is wrong
        try:
            os.chdir(self._directory)
        except OSError as error:
            raise PipelineError(
                f"{os.uname().nodename} has no directory {self._directory} ({error.strerror}): "
                "every machine must see this directory, the models and outputs under the same paths"
            ) from None
        sys.path[:] = self._search
        open_worker, task, inputs = pickle.loads(self._given)
        worker: Worker = open_worker(task, inputs)
        return worker

    def batch(self) -> int:
        """Return how many items are computed together."""
        size: int = self._worker.batch()
        return size

    def facts(self, measured: Sequence[Json]) -> Json:
        """Return the record's facts."""
        facts: Json = self._worker.facts(measured)
        return facts

    def compute(self, names: Sequence[str]) -> Result | None:
        """Compute a shard; None where it does not fit into the memory."""
        return attempt(self._worker, names, lambda _: None)


class RayWorkers:
    """The workers of one task, in other processes."""

    def __init__(self, task: Task, inputs: Mapping[str, Artifact], open_worker: OpenWorker) -> None:
        self._name, self._ray = task.name, connect()
        count, processors, gpus = allocate(self._ray.cluster_resources(), task.runtime.models[0])
        above = {name: Artifact(a.directory.absolute(), a.columns) for name, a in inputs.items()}
        host = self._ray.remote(Host).options(
            num_cpus=processors, num_gpus=gpus, max_restarts=-1, max_task_retries=DEATHS - 1
        )
        given = (
            pickle.dumps((open_worker, task, above)),
            [str(Path(p).absolute()) for p in sys.path],
        )
        self._hosts = [host.remote(*given, str(Path.cwd())) for _ in range(count)]
        self.batch = int(self._get(self._hosts[0].batch.remote()))

    def compute(self, todo: list[list[str]], bar: Any) -> Iterator[tuple[list[str], Result]]:
        """Yield every batch with its result, as they are finished; one too large is halved."""
        steps = bar.total // max(1, sum(map(len, todo)))
        free, running = list(self._hosts), dict[Any, tuple[Any, list[str]]]()
        while todo or running:
            while todo and free:
                host, group = free.pop(), todo.pop(0)
                running[host.compute.remote(group)] = host, group
            (called,), _ = self._ray.wait(list(running), num_returns=1)
            host, group = running.pop(called)
            free.append(host)
            result = self._get(called)
            if result is None:
                todo[:0] = halves(self._name, group)
            else:
                bar.update(len(group) * steps)
                yield group, result

    def facts(self, measured: Sequence[Json]) -> Json:
        """Return the record's facts."""
        facts: Json = self._get(self._hosts[0].facts.remote(measured))
        return facts | {"engine": "ray", "workers": len(self._hosts)}

    def _get(self, called: Any) -> Any:
        try:
            return self._ray.get(called)
        except self._ray.exceptions.RayTaskError as failed:
            raise failed.cause if isinstance(failed.cause, Exception) else failed from None
        except self._ray.exceptions.RayError as error:
            raise PipelineError(
                f"{self._name}: {DEATHS} workers died one after the other ({first_line(error)}): "
                "check the machine's memory and Ray's logs; finished batches are kept"
            ) from None

    def __enter__(self) -> RayWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._hosts:
            self._ray.kill(host)


def connect() -> Any:
    """Return the module ray, connected to RAY_ADDRESS, else to this machine alone.

    Raises:
        PipelineError: Ray is not installed, or there is no such cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it reports to its makers otherwise
    try:
        import ray
    except ModuleNotFoundError:
        raise PipelineError(
            'execution.engine=ray needs Ray: pip install -e ".[ray]", or give '
            "execution.engine=inline"
        ) from None
    if not ray.is_initialized():
        try:
            ray.init(
                address=os.environ.get("RAY_ADDRESS") or "local",
                include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR,
            )  # fmt: skip
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise PipelineError(
                f"execution.engine=ray: Ray's cluster can't be joined ({first_line(error)}): give "
                "RAY_ADDRESS as `ray start --head` prints it, or none for this machine alone"
            ) from None
    return ray


def allocate(there: Mapping[str, float], spec: Any) -> tuple[int, int, int]:
    """Return how many workers there are, and the processors and GPUs of each.

    Args:
        there: processors ("CPU") and GPUs ("GPU") of all machines, as Ray counts them.
        spec: of a model. Without a number of workers there is one a GPU, or on processors
            alone one for every `threads` of them.

    Raises:
        PipelineError: there are fewer.
    """
    device, threads = spec.device.name, spec.device.threads
    processors, gpus = int(there.get("CPU", 0)), int(there.get("GPU", 0))
    on_gpus = device.startswith("cuda") or (device == "auto" and gpus > 0)
    count = spec.execution.workers or max(
        1, gpus if on_gpus else processors // (threads or processors)
    )
    each = threads or max(1, processors // count)
    if count * each > processors or (on_gpus and count > gpus) or ":" in device:
        raise PipelineError(
            f"execution.workers={count} with {each} threads each and device.name={device}: Ray "
            f"finds {processors} processors and {gpus} GPUs, and gives every worker its own: lower "
            "execution.workers or device.threads, or give device.name=auto"
        )
    return count, each, int(on_gpus)

"""Shards computed by Ray's processes, on this machine or on many; this one keeps the results."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError, first_line
from pipeline.stage import Inputs, Task
from pipeline.workers import Here, OpenWorker, Progress, Results

DEATHS = 3  # of workers over one batch


class There:
    """The workers of one task, each the `Here` of another process."""

    def __init__(self, ray: Any, hosts: list[Any]) -> None:
        self._ray, self._hosts = ray, hosts
        self.engine = {"engine": "ray", "workers": len(hosts)}

    def ask(self, method: str, *given: object) -> Any:
        """Call a method of a worker."""
        return self._ray.get(self._hosts[0].ask.remote(method, *given))

    def compute(self, batches: list[list[str]], progress: Progress) -> Results:
        """Yield the results of batches, each with its items, as they are finished."""
        pool = self._ray.util.ActorPool(self._hosts)
        for found, steps in pool.map_unordered(lambda on, names: on.results.remote(names), batches):
            progress(steps)
            yield from found


@contextmanager
def ray_workers(task: Task, inputs: Inputs, open_worker: OpenWorker) -> Iterator[There]:
    """Start the workers of a task; they end with the context."""
    ray = connect()
    count, processors, gpus = allocate(ray.cluster_resources(), task.runtime.models[0])
    host = ray.remote(Here).options(
        num_cpus=processors, num_gpus=gpus, max_restarts=-1, max_task_retries=DEATHS - 1
    )
    hosts = [host.remote(task, inputs, open_worker, Path.cwd()) for _ in range(count)]
    try:
        yield There(ray, hosts)
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
    """Return the module ray, connected to RAY_ADDRESS, else to this machine alone."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it reports to its makers otherwise
    try:
        import ray
    except ModuleNotFoundError:
        raise PipelineError('execution.engine=ray needs Ray: pip install -e ".[ray]"') from None
    if not ray.is_initialized():
        address, ours = os.environ.get("RAY_ADDRESS") or "local", signal.getsignal(signal.SIGTERM)
        ray.init(address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        signal.signal(signal.SIGTERM, ours)  # with Ray's own, the command ends in an abort
    return ray


def allocate(there: Mapping[str, float], spec: Any) -> tuple[int, int, int]:
    """Return the number of workers, by default one a GPU, and processors and GPUs of each."""
    device, threads = spec.device.name, spec.device.threads
    processors, gpus = int(there.get("CPU", 0)), int(there.get("GPU", 0))
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

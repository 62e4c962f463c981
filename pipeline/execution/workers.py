"""Workers that compute the shards of a long stage: this process, or processes of Ray.

A worker loads the models of its stage once and computes one shard after the other. It knows nothing
of the plan: which shards there are, which are finished and what is published is decided here, by
the process that holds the artifact's lock. A worker of Ray's writes a shard into the workspace of
the artifact, under a name of its own, and this process gives it its place. Ray starts a worker that
died again and repeats what it had begun. So who computes a shard, and when, changes nothing.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, Protocol
from uuid import uuid4

import torch

from pipeline.errors import PipelineError, first_line
from pipeline.execution.progress import progress_bar
from pipeline.execution.shard_plan import Plan, Shard, ShardMeasured
from pipeline.execution.shards import attempt, compute_unfinished, too_large
from pipeline.plan.specs import ModelSpec
from pipeline.plan.stage import models_of
from pipeline.store.artifacts import Artifact
from pipeline.store.durable import file_digest, sync
from pipeline.store.node import Node
from pipeline.store.plain import Plain

DEATHS = 3  # of workers over one shard


class Worker(Protocol):
    """The models of a stage, loaded, and the computation with them."""

    device: torch.device

    def cut(self, lengths: Sequence[int]) -> list[int]:
        """Return the sizes of the shards; see `pipeline.execution.shard_plan.ShardSizes`."""

    def compute(self, shard: Shard, path: Path, progress: Callable[[int], object]) -> ShardMeasured:
        """Compute a shard; see `pipeline.execution.shards.Compute`."""

    def facts(self, measured: Sequence[ShardMeasured]) -> Plain:
        """Return the record's facts on the models and the time of all shards."""


# Loads what a stage needs, from a node and the artifacts it is made from.
OpenWorker = Callable[[Node, Mapping[str, Sequence[Artifact]]], Worker]


class Here:
    """One worker, in this process."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.cut = worker.cut

    def compute_unfinished(self, plan: Plan, *, steps: int, label: str, unit: str = "step") -> None:
        """Compute one shard after the other; see `shards.compute_unfinished`."""
        worker = self._worker
        compute_unfinished(
            plan, worker.compute, steps=steps, label=label, device=worker.device, unit=unit
        )

    def facts(self, plan: Plan) -> Plain:
        """Return the record's facts on the run."""
        return self._worker.facts([shard.measured for shard in plan.shards]) | {"engine": "inline"}


class Host:
    """A process of Ray's that holds a worker."""

    def __init__(self, given: bytes, search: list[str], directory: str) -> None:
        """Keep the settings of the models, which are loaded when they are needed."""
        self._given, self._search, self._directory = given, search, directory

    @cached_property
    def _worker(self) -> Worker:
        try:
            os.chdir(self._directory)
        except OSError as error:
            raise PipelineError(
                f"{os.uname().nodename} has no directory {self._directory} ({error.strerror}): "
                "every machine must see this directory, the models and outputs under the same "
                "paths"
            ) from None
        sys.path[:] = self._search
        open_worker, node, upstream = pickle.loads(self._given)
        return open_worker(node, upstream)

    def cut(self, lengths: Sequence[int]) -> list[int]:
        """Let the worker cut the prompts into shards."""
        return self._worker.cut(lengths)

    def facts(self, measured: Sequence[ShardMeasured]) -> Plain:
        """Return the record's facts on the models and the time of all shards."""
        return self._worker.facts(measured)

    def compute(self, shard: Shard, folder: str) -> tuple[ShardMeasured, Path, str] | None:
        """Compute a shard and write it to a file of its own.

        Returns:
            What was measured, the file and its checksum; None when the memory does not suffice.
        """
        path = Path(folder) / f"{shard.name}.{uuid4().hex}.tmp"
        measured = attempt(shard, path, self._worker.compute, lambda _: None)
        if measured is None:
            return None
        sync(path)
        return measured, path, file_digest(path)


class RayWorkers:
    """The workers of one stage that Ray starts."""

    def __init__(
        self,
        open_worker: OpenWorker,
        node: Node,
        upstream: Mapping[str, Sequence[Artifact]],
        target: ModelSpec,
    ) -> None:
        """Connect to Ray; workers start when they are wanted.

        Raises:
            PipelineError: Ray is not there, or has less than is asked for.
        """
        self._label = f"{node.stage} {node.label}"
        self._ray = connect()
        self._count, processors, gpus = share_out(self._ray.cluster_resources(), target)
        above = {
            name: [Artifact(artifact.directory.absolute()) for artifact in artifacts]
            for name, artifacts in upstream.items()
        }
        self._given = (
            pickle.dumps((open_worker, node, above)),
            [str(Path(place).absolute()) for place in sys.path],
            str(Path.cwd()),
        )
        self._host = self._ray.remote(Host).options(
            num_cpus=processors,  # Ray sets OMP_NUM_THREADS to as many
            num_gpus=gpus,
            max_restarts=-1,
            max_task_retries=DEATHS - 1,
        )
        self._hosts: list[Any] = []

    def __enter__(self) -> RayWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers."""
        for host in self._hosts:
            self._ray.kill(host)

    def _started(self, shards: int) -> list[Any]:
        """Return the workers, no more than there are shards for."""
        while len(self._hosts) < min(self._count, shards):
            self._hosts.append(self._host.remote(*self._given))
        return self._hosts

    def cut(self, lengths: Sequence[int]) -> list[int]:
        """Let the workers cut the prompts into shards: afterwards all have loaded their models."""
        calls = [host.cut.remote(lengths) for host in self._started(len(lengths))]
        sizes, *_ = [self._get(call, "while they loaded their models") for call in calls]
        return list(sizes)

    def facts(self, plan: Plan) -> Plain:
        """Return the record's facts on the run."""
        measured = [shard.measured for shard in plan.shards]
        facts: Plain = self._get(self._started(1)[0].facts.remote(measured), "without a batch")
        return facts | {"engine": "ray", "workers": self._count}

    def compute_unfinished(self, plan: Plan, *, steps: int, label: str, unit: str = "step") -> None:
        """Let the workers compute the unfinished shards, each the next one that is left.

        Raises:
            PipelineError: as of a worker in this process; or workers die over the same shard.
        """
        todo = deque(plan.unfinished())
        total = sum(len(shard.prompts) for shard in todo) * steps
        free = deque(self._started(len(todo)))
        running: dict[Any, tuple[Any, Shard]] = {}
        with progress_bar(total, unit, label) as bar:
            while todo or running:
                while todo and free:
                    host, shard = free.popleft(), todo.popleft()
                    called = host.compute.remote(shard, str(plan.folder.absolute()))
                    running[called] = host, shard
                (called,), _ = self._ray.wait(list(running), num_returns=1)
                host, shard = running.pop(called)
                free.append(host)
                result = self._get(called, f"over batch {shard.name}")
                if result is not None:
                    plan.finish(shard, *result)
                    bar.update(len(shard.prompts) * steps)
                elif len(shard.prompts) == 1:
                    raise too_large(label, shard)
                else:
                    todo.extendleft(reversed(plan.halve(shard)))

    def _get(self, called: Any, over: str) -> Any:
        """Return the result of a call; raise the worker's exception.

        Raises:
            PipelineError: workers died `over` it again and again.
        """
        try:
            return self._ray.get(called)
        except self._ray.exceptions.RayTaskError as failed:
            raise failed.cause if isinstance(failed.cause, Exception) else failed from None
        except self._ray.exceptions.RayError as error:
            raise PipelineError(
                f"{self._label}: {DEATHS} workers died one after the other, the last {over} "
                f"({first_line(error)}): check the machine's memory and Ray's logs; "
                "finished batches are kept"
            ) from None


@contextmanager
def open_workers(
    open_worker: OpenWorker, node: Node, upstream: Mapping[str, Sequence[Artifact]]
) -> Iterator[Here | RayWorkers]:
    """Yield the workers that the configuration key execution.engine asks for.

    Args:
        open_worker: a function of a module, which another process can import.
        node: what is computed.
        upstream: what it is made from.
    """
    target = models_of(node)[0]
    if target.execution.engine == "inline":
        yield Here(open_worker(node, upstream))
        return
    with RayWorkers(open_worker, node, upstream, target) as workers:
        yield workers


def connect() -> Any:
    """Return the module ray, connected; the same connection serves the whole process.

    The cluster is that of Ray's variable RAY_ADDRESS, by default one of this machine alone.

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
    if ray.is_initialized():
        return ray
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=os.environ.get("RAY_ADDRESS") or "local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise PipelineError(
            f"execution.engine=ray: Ray's cluster can't be joined ({first_line(error)}): give "
            "RAY_ADDRESS as `ray start --head` prints it, or none for this machine alone"
        ) from None
    finally:  # Ray has put a handler of its own there
        if handler is not None and current_thread() is main_thread():
            signal.signal(signal.SIGTERM, handler)
    return ray


def share_out(there: Mapping[str, float], target: ModelSpec) -> tuple[int, int, int]:
    """Return the number of workers, and the processors and GPUs of each.

    Args:
        there: processors ("CPU") and GPUs ("GPU") of all machines, as Ray counts them.
        target: without a number of workers it has one a GPU, or on processors alone one for every
            `threads` of them; without threads the processors are shared out.

    Raises:
        PipelineError: there are fewer, or a GPU is named that Ray gives to whom it likes.
    """
    device, threads = target.device.name, target.device.threads
    processors, gpus = int(there.get("CPU", 0)), int(there.get("GPU", 0))
    if ":" in device:
        raise PipelineError(
            f"device.name={device} is not allowed with execution.engine=ray, which gives every "
            "worker a GPU of its own: give auto, cuda or cpu"
        )
    on_gpus = gpus > 0 and device != "cpu"
    one_each = gpus if on_gpus else processors // (threads or processors or 1)
    count = target.execution.workers or max(1, one_each)
    each = threads or max(1, processors // count)
    if count * each > processors or (on_gpus and count > gpus) or (device == "cuda" and not gpus):
        raise PipelineError(
            f"execution.workers={count} with {each} threads each and device.name={device}: Ray "
            f"finds {processors} processors and {gpus} GPUs: lower execution.workers or "
            "device.threads, or give device.name=auto"
        )
    return count, each, int(on_gpus)

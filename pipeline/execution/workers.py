"""Who computes the shards of a long stage: this process, or workers that Ray starts and watches.

A worker loads the models of its stage once and computes one shard after the other. It knows nothing
of the plan: which shards there are, which are finished and what is published is decided here, by
the process that holds the artifact's lock. A worker of Ray's writes a shard into the workspace of
the artifact, under a name of its own, and this process gives it its place. What a worker had in
hand when it died is given to another. So who computes a shard, and when, changes nothing.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError
from pipeline.execution.progress import progress_bar
from pipeline.execution.shard_plan import Plan, Shard, ShardMeasured
from pipeline.execution.shards import attempt, compute_unfinished, too_large
from pipeline.execution.worker import (
    OpenWorker,
    Worker,
    connect,
    execution_of,
    share_out,
    target_settings,
)
from pipeline.store.artifacts import Artifact
from pipeline.store.durable import file_digest, sync
from pipeline.store.node import Node

DEATHS = 3  # of workers over one shard, or before any was ready
WAITING = 1  # shards of a worker that are being written while it computes the next


class Here:
    """One worker, in this process."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def cut(self, lengths: Sequence[int]) -> list[int]:
        """Cut the prompts into shards."""
        return self._worker.cut(lengths)

    def compute_unfinished(self, plan: Plan, *, steps: int, label: str, unit: str = "step") -> None:
        """Compute one shard after the other; see `shards.compute_unfinished`."""
        one = self._worker
        compute_unfinished(
            plan, one.compute, steps=steps, label=label, device=one.device, unit=unit
        )

    def facts(self, plan: Plan) -> dict[str, Any]:
        """Return what the record says of the run."""
        return self._worker.facts([shard.measured for shard in plan.shards]) | {"engine": "inline"}


class Host:
    """A process that holds a worker. Ray calls its methods; `write` has a thread of its own."""

    def __init__(self) -> None:
        self._worker: Worker
        self._writer = ThreadPoolExecutor(max_workers=1)
        self._written: dict[str, Future[tuple[ShardMeasured, str]]] = {}

    def open(self, given: bytes, search: list[str], directory: str) -> int:
        """Load the models of a stage; return the id of this process."""
        try:
            os.chdir(directory)
        except OSError as error:
            raise PipelineError(
                f"{os.uname().nodename} has no directory {directory} ({error.strerror}): every "
                "machine has to see this directory, the models and outputs under the same paths"
            ) from None
        sys.path[:] = search
        open_worker, node, upstream = pickle.loads(given)
        self._worker = open_worker(node, upstream)
        return os.getpid()

    def cut(self, lengths: Sequence[int]) -> list[int]:
        """Let the worker cut the prompts into shards."""
        return self._worker.cut(lengths)

    def facts(self, measured: Sequence[ShardMeasured]) -> dict[str, Any]:
        """Return what the record says of the models and of what all shards took."""
        return self._worker.facts(measured)

    def compute(self, shard: Shard, path: str) -> bool:
        """Compute a shard and begin to write it; return whether it fitted into the memory."""
        computed = attempt(shard, Path(path), self._worker.compute, lambda _: None)
        if computed is None:
            return False
        self._written[path] = self._writer.submit(_write, Path(path), computed)
        return True

    def write(self, path: str) -> tuple[ShardMeasured, str]:
        """Wait until a shard is on the disk; return what was measured, and its checksum."""
        return self._written.pop(path).result()


def _write(
    path: Path, computed: ShardMeasured | Callable[[], ShardMeasured]
) -> tuple[ShardMeasured, str]:
    measured = computed() if callable(computed) else computed
    sync(path)
    return measured, file_digest(path)


@dataclass
class _Member:
    """A worker, as this process sees it."""

    actor: Any
    ready: bool = False
    computing: Shard | None = None
    writing: list[Shard] = field(default_factory=list)

    @property
    def free(self) -> bool:
        """Whether it takes another shard."""
        return self.ready and self.computing is None and len(self.writing) <= WAITING


# What a worker was asked: open, compute or write; of which shard, in which file.
_Call = tuple[_Member, str, Shard | None, Path]


class RayWorkers:
    """The workers of one stage that Ray starts."""

    def __init__(
        self,
        open_worker: OpenWorker,
        node: Node,
        upstream: Mapping[str, Sequence[Artifact]],
        asked: Mapping[str, Any],
    ) -> None:
        """Connect to Ray; workers start when they are wanted.

        Raises:
            PipelineError: Ray is not there, or has less than is asked for.
        """
        self._label = f"{node.stage} {node.label}"
        self._ray = connect(asked["address"])
        device = target_settings(node)
        self._share = share_out(
            self._ray.cluster_resources(), asked["workers"], device["device"], device["threads"]
        )
        above = {
            name: [Artifact(one.directory.absolute()) for one in artifacts]
            for name, artifacts in upstream.items()
        }
        self._given = (
            pickle.dumps((open_worker, node, above)),
            [str(Path(place).absolute()) for place in sys.path],
            str(Path.cwd()),
        )
        self._calls: dict[Any, _Call] = {}
        self._members: list[_Member] = []
        self._deaths: Counter[str] = Counter()

    def __enter__(self) -> RayWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers."""
        for member in self._members:
            self._ray.kill(member.actor)

    def cut(self, lengths: Sequence[int]) -> list[int]:
        """Let one worker cut the prompts into shards, while the others load their models."""
        self._fill(len(lengths))
        sizes: list[int] = self._ask("cut", lengths)
        return sizes

    def facts(self, plan: Plan) -> dict[str, Any]:
        """Return what the record says of the run."""
        found = self._ask("facts", [shard.measured for shard in plan.shards])
        return found | {"engine": "ray", "workers": self._share[0]}

    def compute_unfinished(self, plan: Plan, *, steps: int, label: str, unit: str = "step") -> None:
        """Let the workers compute the unfinished shards, each the next one that is left.

        Raises:
            PipelineError: as of a worker in this process; or workers die over the same shard.
        """
        todo = deque(plan.unfinished())
        total = sum(len(shard.prompts) for shard in todo) * steps
        with progress_bar(total, unit, label) as bar:
            while todo or any(what != "open" for _, what, *_ in self._calls.values()):
                self._fill(len(todo))
                for member in self._members:
                    if todo and member.free:
                        self._give(member, todo.popleft(), plan)
                (member, what, shard, path), result = self._next()
                if result is None:
                    todo.extendleft(self._bury(member))
                elif what == "compute" and shard and result is False:
                    if len(shard.prompts) == 1:
                        raise too_large(label, shard)
                    todo.extendleft(reversed(plan.halve(shard)))
                elif what == "write" and shard:
                    plan.finish(shard, result[0], path, result[1])
                    bar.update(len(shard.prompts) * steps)
        plan.check()

    def _fill(self, shards: int) -> None:
        """Start the workers that are missing, no more than there are shards left for."""
        idle = sum(member.computing is None for member in self._members)
        for _ in range(min(self._share[0] - len(self._members), shards - idle)):
            self._start()

    def _start(self) -> None:
        host = self._ray.remote(concurrency_groups={"writing": 1})(Host).options(
            num_cpus=self._share[1],  # Ray sets OMP_NUM_THREADS to as many
            num_gpus=self._share[2],
        )
        member = _Member(host.remote())
        self._members.append(member)
        self._calls[member.actor.open.remote(*self._given)] = (member, "open", None, Path())

    def _give(self, member: _Member, shard: Shard, plan: Plan) -> None:
        """Let a worker compute a shard."""
        path = plan.aside(shard).absolute()
        member.computing = shard
        called = member.actor.compute.remote(shard, str(path))
        self._calls[called] = (member, "compute", shard, path)

    def _next(self) -> tuple[_Call, Any]:
        """Return what a worker has answered first, and to what; None when it died."""
        (called,), _ = self._ray.wait(list(self._calls), num_returns=1)
        member, what, shard, path = call = self._calls.pop(called)
        result = self._get(called)
        if result is None:
            return call, None
        if what == "open":
            member.ready = True
        elif what == "compute":
            member.computing = None
            if result and shard:
                member.writing.append(shard)
                waiting = member.actor.write.options(concurrency_group="writing")
                self._calls[waiting.remote(str(path))] = (member, "write", shard, path)
        elif shard:
            member.writing.remove(shard)
        return call, result

    def _bury(self, member: _Member) -> list[Shard]:
        """Forget a worker that died; return the shards that it had in hand, the last first.

        Raises:
            PipelineError: workers die over the same shard, or before they are ready.
        """
        self._members.remove(member)
        self._calls = {ref: one for ref, one in self._calls.items() if one[0] is not member}
        over = f"over batch {member.computing.name}" if member.computing else "without a batch"
        over = over if member.ready else "while it loaded its models"
        left = [*member.writing, *([member.computing] if member.computing else [])]
        self._deaths[over] += 1
        if self._deaths[over] >= DEATHS:
            raise PipelineError(
                f"{self._label}: {DEATHS} workers died one after the other, each {over}: look at "
                "the memory of the machine, and at Ray's logs; finished batches are kept"
            )
        names = ", ".join(shard.name for shard in left)
        given = f"; {names} will be computed by another" if left else ""
        print(f"{self._label}: a worker died {over}{given}", flush=True)
        return left[::-1]

    def _ask(self, method: str, argument: Any) -> Any:
        """Return what a worker answers, while nothing is computed."""
        while True:
            self.wait_for(1)
            member = next(member for member in self._members if member.ready)
            result = self._get(getattr(member.actor, method).remote(argument))
            if result is not None:
                return result
            self._bury(member)

    def wait_for(self, count: int) -> None:
        """Wait, while nothing is computed, until so many workers have loaded their models."""
        while sum(member.ready for member in self._members) < count:
            while len(self._members) < count:
                self._start()
            (member, *_), result = self._next()
            if result is None:
                self._bury(member)

    def _get(self, called: Any) -> Any:
        """Return a result; None when the worker died. Raises what the worker raised."""
        error = self._ray.exceptions
        try:
            return self._ray.get(called)
        except error.RayActorError:
            return None
        except error.RayTaskError as failed:
            raise failed.cause if isinstance(failed.cause, Exception) else failed from None


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
    asked = execution_of(node)
    if asked["engine"] == "inline":
        yield Here(open_worker(node, upstream))
        return
    with RayWorkers(open_worker, node, upstream, asked) as workers:
        yield workers

"""Who computes the shards of a long stage: this process, or workers that Ray starts.

A worker loads the models of its stage once and computes one shard after the other. It knows nothing
of the plan: which shards there are, which are finished and what is published is decided here, by
the process that holds the artifact's lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from pipeline.execution.shard_plan import Plan
from pipeline.execution.shards import compute_unfinished
from pipeline.execution.worker import OpenWorker, Worker, execution_of
from pipeline.plan.stage import Node
from pipeline.store.artifacts import Artifact


class Workers(Protocol):
    """The workers of a stage."""

    def cut(self, lengths: Sequence[int]) -> list[int]:
        """Let one worker cut the prompts into shards."""

    def compute_unfinished(self, plan: Plan, *, steps: int, label: str, unit: str = "step") -> None:
        """Compute the unfinished shards; arguments and errors as of `shards.compute_unfinished`."""

    def facts(self, plan: Plan) -> dict[str, Any]:
        """Return what the record says of the run, when all shards are finished."""


class Here:
    """One worker, in this process."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def cut(self, lengths: Sequence[int]) -> list[int]:
        """Cut the prompts into shards."""
        return self._worker.cut(lengths)

    def compute_unfinished(self, plan: Plan, *, steps: int, label: str, unit: str = "step") -> None:
        """Compute one shard after the other."""
        one = self._worker
        compute_unfinished(
            plan, one.compute, steps=steps, label=label, device=one.device, unit=unit
        )

    def facts(self, plan: Plan) -> dict[str, Any]:
        """Return what the record says of the run."""
        return self._worker.facts([shard.measured for shard in plan.shards]) | {"engine": "inline"}


@contextmanager
def open_workers(
    open_worker: OpenWorker, node: Node, upstream: Mapping[str, Sequence[Artifact]]
) -> Iterator[Workers]:
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
    from pipeline.execution.ray_workers import RayWorkers

    with RayWorkers(open_worker, node, upstream, asked) as workers:
        yield workers

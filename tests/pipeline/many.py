"""Workers that Ray starts in the tests: they have to be importable by another process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch

from pipeline.errors import PipelineError
from pipeline.execution.shard_plan import Shard, ShardMeasured, at_most
from pipeline.plan.specs import APART, DistributionsSpec
from pipeline.stage import Task
from pipeline.store import Artifact

Upstream = Mapping[str, Sequence[Artifact]]


def die_once(shard: Shard, folder: Path) -> None:
    """Kill this process when the folder has a file of the shard's name; the file goes first."""
    name = folder / shard.name
    if name.exists():
        name.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def meet(folder: Path, count: int) -> None:
    """Wait until `count` processes are here."""
    (folder / str(os.getpid())).touch()
    begun = time.monotonic()
    while len(list(folder.iterdir())) < count:
        assert time.monotonic() - begun < 60, "nobody came"
        time.sleep(0.01)


@dataclass(frozen=True)
class ToySpec(DistributionsSpec):
    """What a toy does besides."""

    toy: Annotated[Mapping[str, Any], APART] = field(default_factory=dict)


@dataclass(frozen=True)
class MortalSpec(DistributionsSpec):
    """The folder with the names of shards over which a worker dies."""

    dies: Annotated[str, APART] = ""


class Toy:
    """Writes the prompts of a shard, after a while; what else it does its node says."""

    device = torch.device("cpu")

    def __init__(self, node: Task) -> None:
        self._asked = node.spec.toy
        if self._asked.get("broken"):
            raise PipelineError("the toy can't be loaded")

    def cut(self, lengths: Sequence[int]) -> list[int]:
        return at_most(2)(lengths)

    def compute(self, shard: Shard, path: Path, _: Callable[[int], object]) -> ShardMeasured:
        if "meet" in self._asked:
            meet(Path(self._asked["meet"]), self._asked["count"])
        if "dies" in self._asked:
            die_once(shard, Path(self._asked["dies"]))
        if shard.name in self._asked.get("always", ()):
            os.kill(os.getpid(), signal.SIGKILL)
        if len(shard.prompts) > self._asked.get("fits", 2):
            raise MemoryError
        time.sleep(0.05 * (len(shard.name) + int(shard.name[:4]) % 2))
        path.write_text(" ".join(shard.prompts))
        return {"process": os.getpid(), "threads": torch.get_num_threads(), "at": time.monotonic()}

    def facts(self, measured: Sequence[ShardMeasured]) -> dict[str, Any]:
        return {
            "processes": len({one["process"] for one in measured}),
            "threads": sorted({one["threads"] for one in measured}),
        }


def open_toy(node: Task, _: Upstream) -> Toy:
    return Toy(node)


class Mortal:
    """The worker of a stage, which dies when it is told to."""

    def __init__(self, worker: Any, folder: Path) -> None:
        self._worker, self._folder = worker, folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def compute(self, shard: Shard, path: Path, progress: Callable[[int], object]) -> Any:
        die_once(shard, self._folder)
        return self._worker.compute(shard, path, progress)


def open_mortal_decoder(node: Task, upstream: Upstream) -> Mortal:
    """The worker of stage distributions."""
    from pipeline.stages.distributions.compute import DistributionsWorker

    return Mortal(DistributionsWorker(node, upstream), Path(node.spec.dies))

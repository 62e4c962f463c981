"""Workers that Ray starts in the tests: they have to be importable by another process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pipeline.errors import PipelineError
from pipeline.stage import Inputs, Json, Task
from pipeline.workers import Progress, Result


def die_once(names: Sequence[str], folder: Path) -> None:
    """Kill this process when the folder has a file of an item's name; the file goes first."""
    for name in names:
        if (folder / name).exists():
            (folder / name).unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def meet(folder: Path, count: int) -> None:
    """Wait until `count` processes are here."""
    (folder / str(os.getpid())).touch()
    begun = time.monotonic()
    while len(list(folder.iterdir())) < count:
        assert time.monotonic() - begun < 60, "nobody came"
        time.sleep(0.01)


class Toy:
    """Writes the items of a shard, after a while; what else it does its task says."""

    def __init__(self, task: Task) -> None:
        self._asked = task.runtime.extra
        if self._asked.get("broken"):
            raise PipelineError("the toy can't be loaded")

    def batch(self) -> int:
        return 2

    def compute(self, names: Sequence[str], progress: Progress) -> Result:
        if "meet" in self._asked:
            meet(Path(self._asked["meet"]), self._asked["count"])
        if "dies" in self._asked:
            die_once(names, Path(self._asked["dies"]))
        if names[0] in self._asked.get("always", {}):
            (Path(self._asked["always"][names[0]]) / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if len(names) > self._asked.get("fits", 2):
            raise MemoryError
        time.sleep(0.1 * (1 + ord(names[0]) // 2 % 2))
        measured = {
            "process": os.getpid(),
            "threads": torch.get_num_threads(),
            "at": time.monotonic(),
        }
        progress(len(names))
        return measured, " ".join(names).encode()

    def facts(self, measured: Sequence[Json]) -> Json:
        return {
            "processes": len({one["process"] for one in measured}),
            "threads": sorted({one["threads"] for one in measured}),
        }


def open_toy(task: Task, _: Inputs) -> Toy:
    return Toy(task)


class Mortal:
    """The worker of a stage, which dies when it is told to."""

    def __init__(self, worker: Any, folder: Path) -> None:
        self._worker, self._folder = worker, folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def compute(self, names: Sequence[str], progress: Progress) -> Result:
        die_once(names, self._folder)
        result: Result = self._worker.compute(names, progress)
        return result


def open_mortal_decoder(task: Task, inputs: Inputs) -> Mortal:
    """The worker of stage distributions."""
    from pipeline.stages.distributions import DistributionsWorker

    return Mortal(DistributionsWorker(task, inputs), Path(task.runtime.extra["dies"]))

"""A pipeline of three stages without models, small enough to kill at every file operation."""

from __future__ import annotations

import os
import signal
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.shards import Progress, Result, compute_shards, join, tables_bytes
from pipeline.stage import Json, Stage, Task
from pipeline.store import Artifact, Out, Store

LOG = "TOY_LOG"  # the file of what was computed
OPERATIONS = (
    (os, "fsync"), (Path, "rename"), (Path, "unlink"), (shutil, "rmtree"), (Path, "mkdir"),
)  # fmt: skip


def note(what: str) -> None:
    """Add a line to the log."""
    with Path(os.environ[LOG]).open("a") as file:
        file.write(f"{what}\n")


def prompts(task: Task, _: Mapping[str, Artifact], out: Out) -> None:
    """Write prompts of rising tokens."""
    note("prompts")
    if task.runtime.fail:
        out.write_rows([])
        raise RuntimeError("half-way")
    noise = task.runtime.noise
    rows = [
        {"prompt_id": f"p{i}", "token_ids": [i + noise, i + 1]}
        for i in range(task.settings["count"])
    ]
    out.write_rows(rows)


@dataclass
class Sums:
    """A worker: numbers from the tokens."""

    task: Task
    tokens: dict[str, list[int]]

    def batch(self) -> int:
        """Return how many prompts are a shard."""
        return int(self.task.runtime.batch)

    def compute(self, names: Sequence[str], progress: Progress) -> Result:
        """Write a row a step."""
        note(f"shard {','.join(names)}")
        if len(names) > self.task.runtime.fits:
            raise MemoryError
        schema = self.task.stage.schema()

        def rows(name: str) -> pa.Table:
            values = [np.random.default_rng([s, *self.tokens[name]]).random() for s in range(3)]
            progress(3)
            return pa.table([[name] * 3, range(3), values], schema=schema)

        return {"rows": 3 * len(names)}, tables_bytes(map(rows, names), schema)

    def facts(self, measured: Sequence[Json]) -> Json:
        """Return the rows of all shards."""
        return {"counted": sum(one["rows"] for one in measured)}


def open_sums(task: Task, inputs: Mapping[str, Artifact]) -> Sums:
    """Open the worker."""
    table = inputs["prompts"].read().to_pydict()
    return Sums(task, dict(zip(table["prompt_id"], table["token_ids"], strict=True)))


def steps(task: Task, inputs: Mapping[str, Artifact], out: Out) -> None:
    """Write the numbers of all prompts."""
    names = inputs["prompts"].read(columns=["prompt_id"])["prompt_id"].to_pylist()
    shards = compute_shards(task, inputs, out, names[::-1], open_sums, steps=3)
    join(shards, names, out, task.stage.schema())


def totals(_: Task, inputs: Mapping[str, Artifact], out: Out) -> None:
    """Write the sum of the steps, and a file of timings."""
    note("totals")
    out.write_rows([{"sum": float(sum(inputs["steps"].read()["value"].to_pylist()))}])
    out.write_rows([{"process": os.getpid()}], "timings/runs")


def _nothing(*_: Any) -> list[Any]:
    return []


PROMPTS = Stage(
    "prompts", 1,
    {"data": {"prompt_id": ("string", "id"), "token_ids": ("list<int32>", "tokens")}},
    _nothing, prompts, _nothing,
)  # fmt: skip
STEPS = Stage(
    "steps", 1,
    {"data": {"prompt_id": ("string", "id"), "position": ("int32", "step"),
              "value": ("float64", "in [0, 1)")}},
    _nothing, steps, _nothing,
)  # fmt: skip
TOTALS = Stage(
    "totals", 1,
    {"data": {"sum": ("float64", "of the values")}, "timings/runs": {"process": ("int64", "its id")}},
    _nothing, totals, _nothing,
)  # fmt: skip


def tasks(
    count: int = 6, *, batch: int = 2, fits: int = 9, noise: int = 0, fail: bool = False,
    label: str = "toy",
) -> tuple[Task, Task, Task]:  # fmt: skip
    """Return a task of each stage."""
    execution = SimpleNamespace(engine="inline", workers=None)
    runtime = SimpleNamespace(batch=batch, fits=fits, noise=noise, fail=fail, execution=execution)
    first = Task(PROMPTS, label, {"count": count}, {}, runtime)
    second = Task(STEPS, label, {"steps": 3}, {"prompts": first}, runtime)
    return first, second, Task(TOTALS, label, {}, {"steps": second}, runtime)


def contents(root: Path) -> dict[str, str]:
    """Return the content of every artifact in a store, by stage and name."""
    found = {}
    for stage in (PROMPTS, STEPS, TOTALS):
        for path in (root / stage.name).glob("[!.]*"):
            found[f"{stage.name}/{path.name}"] = Artifact(path, stage.tables).content
    return found


def child(root: Path, kill_at: int | None = None, **settings: Any) -> int:
    """Bring the last stage up to date in another process; return its id.

    It kills itself before or after a file operation: number `kill_at` of twice as many.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        with (root.parent / "stdout").open("a") as sys.stdout:
            if kill_at is not None:
                _die(kill_at)
            Store(root).get(tasks(**settings)[-1])
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _die(at: int) -> None:
    count = 0

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*arguments, **options)
            count += 1
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return operation

    for owner, name in OPERATIONS:
        setattr(owner, name, watched(getattr(owner, name)))


def status(pid: int) -> int:
    """Wait for a process; return its exit status, negative if it was killed."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

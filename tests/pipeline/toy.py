"""A pipeline of three stages without models, small enough to kill at every file operation."""

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import filelock  # noqa: F401 (imported when needed: here once for all forks, as pandas)
import numpy as np
import pandas as pd  # noqa: F401
import pyarrow as pa
import pytest

from pipeline.core.columns import Column
from pipeline.core.environment import environment
from pipeline.core.shards import compute_shards, join
from pipeline.core.stage import Artifact, Json, Out, Stage, Task
from pipeline.core.store import Store
from pipeline.core.workers import Progress, Result

LOG = "TOY_LOG"  # the file of what was computed
OPERATIONS = (
    (os, "fsync"), (Path, "rename"), (Path, "unlink"), (shutil, "rmtree"), (Path, "mkdir"),
)  # fmt: skip


def note(what: str) -> None:
    with Path(os.environ[LOG]).open("a") as file:
        file.write(f"{what}\n")


def settings_of_toy(task: Task) -> dict[str, Any]:
    toy: dict[str, Any] = vars(task.runtime)["toy"]
    return toy


def prompts(task: Task, _: Mapping[str, Artifact], out: Out) -> None:
    note("prompts")
    if settings_of_toy(task)["fail"]:
        out.write_rows([])
        raise RuntimeError("half-way")
    noise = settings_of_toy(task)["noise"]
    rows = [
        {"prompt_id": f"p{i}", "token_ids": [i + noise, i + 1]}
        for i in range(task.settings["count"])
    ]
    out.write_rows(rows)


@dataclass
class Sums:
    task: Task
    tokens: dict[str, list[int]]

    def batch(self) -> int:
        return int(settings_of_toy(self.task)["batch"])

    def compute(self, names: Sequence[str], progress: Progress) -> Result:
        note(f"shard {','.join(names)}")
        if len(names) > settings_of_toy(self.task)["fits"]:
            raise MemoryError
        schema = self.task.stage.schema()

        def rows(name: str) -> pa.Table:
            values = [np.random.default_rng([s, *self.tokens[name]]).random() for s in range(3)]
            progress(3)
            return pa.table([[name] * 3, range(3), values], schema=schema)

        return {"rows": 3 * len(names)}, [rows(name) for name in names]

    def metadata(self, measured: Sequence[Json]) -> Json:
        return {"counted": sum(one["rows"] for one in measured)}


def open_sums(task: Task, inputs: Mapping[str, Artifact]) -> Sums:
    table = inputs["prompts"].read().to_pydict()
    return Sums(task, dict(zip(table["prompt_id"], table["token_ids"], strict=True)))


def steps(task: Task, inputs: Mapping[str, Artifact], out: Out) -> None:
    names = inputs["prompts"].read(columns=["prompt_id"])["prompt_id"].to_pylist()
    shards = compute_shards(task, inputs, out, names[::-1], open_sums, steps=3)
    join(shards, names, out)


def totals(_: Task, inputs: Mapping[str, Artifact], out: Out) -> None:
    note("totals")
    out.write_rows([{"sum": float(sum(inputs["steps"].read()["value"].to_pylist()))}])
    out.write_rows([{"process": os.getpid()}], "timings/runs")


def stage(compute: Callable[..., None], **tables: dict[str, str]) -> Stage:
    """A stage named after its function; `tables` have the type of each column."""
    columns = {
        name.replace("_", "/"): {label: Column(kind, f"of {name}") for label, kind in of.items()}
        for name, of in tables.items()
    }
    return Stage(compute.__name__, 1, (), columns, lambda _: [], compute)


PROMPTS = stage(prompts, data={"prompt_id": "string", "token_ids": "list<int32>"})
STEPS = stage(steps, data={"prompt_id": "string", "position": "int32", "value": "float64"})
TOTALS = stage(totals, data={"sum": "float64"}, timings_runs={"process": "int64"})


def tasks(
    count: int = 6, *, batch: int = 2, fits: int = 9, noise: int = 0, fail: bool = False,
    label: str = "toy",
) -> tuple[Task, Task, Task]:  # fmt: skip
    model = SimpleNamespace(execution=SimpleNamespace(engine="inline", workers=None))
    toy = {"batch": batch, "fits": fits, "noise": noise, "fail": fail}
    runtime: Any = SimpleNamespace(models=[model], toy=toy)
    first = Task(PROMPTS, label, {"count": count}, {}, runtime)
    second = Task(STEPS, label, {"steps": 3}, {"prompts": first}, runtime)
    return first, second, Task(TOTALS, label, {}, {"steps": second}, runtime)


def contents(root: Path) -> dict[str, str]:
    """The content of every artifact in a store, by stage and name."""
    found = Store(root).all((PROMPTS, STEPS, TOTALS))
    return {str(one.directory.relative_to(root)): one.content for one in found}


def flip(path: Path, at: int | None = None) -> None:
    """Change one bit of a file, in the middle without `at`; its times and inode stay."""
    state, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 1
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def child(root: Path, kill_at: int | None = None, **settings: Any) -> int:
    """Bring the last stage up to date in another process, which may kill itself; return its id."""
    environment()  # asks git: once, for all that are forked
    pid = os.fork()
    if pid:
        return pid
    try:
        setattr(os, "fsync", lambda _: None)  # noqa: B010  a kill loses nothing that was written
        with (root.parent / "stdout").open("a") as sys.stdout:
            if kill_at is not None:
                die_at(kill_at)
            Store(root).get(tasks(**settings)[-1])
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def die_at(at: int) -> None:
    """Make this process kill itself before or after one of its file operations."""
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*arguments: Any, **options: Any) -> Any:
            step()
            result = real(*arguments, **options)
            step()
            return result

        return operation

    for owner, name in OPERATIONS:
        setattr(owner, name, watched(getattr(owner, name)))


def status(pid: int) -> int:
    """Wait for a process; return its exit status, negative if it was killed."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Syncs:
    """Checks that all is on the disk before it is renamed.

    A file counts as synced when fsync saw its inode after its last change.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.named: list[Path] = []
        self._synced: dict[int, tuple[int, int]] = {}
        self._fsync, self._rename = os.fsync, Path.rename
        monkeypatch.setattr(os, "fsync", self._seen)
        monkeypatch.setattr(Path, "rename", lambda path, target: self._renamed(path, target))

    def _seen(self, descriptor: int) -> None:
        self._fsync(descriptor)
        found = os.fstat(descriptor)
        self._synced[found.st_ino] = (found.st_size, found.st_mtime_ns)

    def _renamed(self, path: Path, target: Path) -> Path:
        for part in [path, *path.rglob("*")] if path.is_dir() else [path]:
            found = part.stat()
            assert self._synced.get(found.st_ino) == (found.st_size, found.st_mtime_ns), part
        self.named.append(target)
        self._synced.pop(target.parent.stat().st_ino, None)
        return self._rename(path, target)

    def check_directories(self) -> None:
        """Check that every new name that is still there is on the disk as well."""
        for path in self.named:
            assert not path.exists() or path.parent.stat().st_ino in self._synced, path

"""The artifacts of all stages: found by what they are made from, published whole, checked, mended.

An artifact is ``<root>/<stage>/<label>-<key12>/``: Parquet files and record.json, which holds a
checksum of every file and of itself. It is made in ``.<key12>.<inputs>.partial/`` beside its place,
where finished shards outlive a killed run; other content of an input is another such directory.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.columns import Columns, arrow
from pipeline.errors import DamagedError, PipelineError
from pipeline.files import digest, file_digest, put, read_json, slug, sync, unreadable, write_json
from pipeline.paths import ROOT
from pipeline.stage import Inputs, Json, Stage, Task

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

RECORD = "record.json"
TIMED = ("timings/", "index.html")  # files that depend on the clock: no part of the content
VERDICT = "timings/verdict.md"  # of a report: a paragraph a target, the sentence first
REBUILDS = 3  # of an artifact that is damaged again and again
UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
PACKAGES = (
    *("numpy", "pyarrow", "pandas", "numba", "torch", "transformers", "datasets"),
    *("matplotlib", "hydra-core"),
)


@dataclass(frozen=True)
class Artifact:
    """A published artifact; `columns` are those of its stage's files."""

    directory: Path
    columns: Mapping[str, Columns]

    @cached_property
    def record(self) -> Json:
        """What was written when it was published.

        Raises:
            DamagedError: it is not what was written, or the record of another artifact.
        """
        record = read_json(self.directory / RECORD)
        if not self.directory.name.endswith(f"-{record['key'][:12]}"):
            raise DamagedError(self.directory, f"{self.directory / RECORD} is of another artifact")
        return record

    @property
    def facts(self) -> Json:
        """What its stage noted of the computation."""
        facts: Json = self.record["facts"]
        return facts

    @property
    def content(self) -> str:
        """Digest of the artifact's files, timings aside."""
        return str(self.record["content"])

    def check(self) -> None:
        """Read every file.

        Raises:
            DamagedError: one is missing, another than was written, or was added: who reads the
                directory as a data set would include it.
        """
        found = (path for path in self.directory.rglob("*") if path.is_file())
        names = {path.relative_to(self.directory).as_posix() for path in found} - {RECORD}
        for name in sorted(names | self.record["files"].keys()):
            path = self.directory / name
            try:
                same = file_digest(path) == self.record["files"].get(name)
            except OSError as error:
                raise unreadable(self.directory, path, error) from error
            if not same:
                raise DamagedError(self.directory, f"{path} is not what was written")

    def read(
        self, name: str = "data", columns: Sequence[str] | None = None, rule: str | None = None
    ) -> pa.Table:
        """Read a Parquet file; damage done since `check` is found by the checksums of its pages.

        Args:
            name: of the file.
            columns: that are read; None: all.
            rule: the label of a rule, whose row groups alone are read.

        Raises:
            DamagedError: it can't be read, or has other columns than its stage writes.
        """
        with self.open(name) as file:
            groups = list(range(file.num_row_groups))
            if rule is not None:
                at = file.schema_arrow.names.index("rule")
                of = [file.metadata.row_group(g).column(at).statistics.min for g in groups]
                groups = [g for g in groups if of[g] == rule]
            return file.read_row_groups(groups, None if columns is None else list(columns))

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Stream data.parquet in batches of at most `rows` rows; errors are those of `read`."""
        with self.open("data") as file:
            # one row group at a time: over all of them, what was read is kept until the end
            for group in range(file.num_row_groups):
                yield from file.iter_batches(rows, row_groups=[group], columns=list(columns))

    @contextmanager
    def open(self, name: str) -> Iterator[Any]:
        """Yield a Parquet file, its columns checked; errors are those of `read`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self.directory / f"{name}.parquet"
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                check_columns(self.columns[name], file.schema_arrow, path)
                yield file
        except (OSError, pa.ArrowException, ValueError) as error:
            raise DamagedError(self.directory, f"{path} can't be read ({error})") from error


def check_columns(columns: Columns, schema: pa.Schema, path: Path) -> None:
    """Check that a file has the columns, in order, and the types that its stage declares.

    Raises:
        ValueError: it has others.
    """
    wanted = {
        name: arrow(column.kind)
        for name, column in columns.items()
        if name in schema.names or not column.optional
    }
    found = dict(zip(schema.names, schema.types, strict=True))
    if found != wanted or [*found] != [*wanted]:
        raise ValueError(f"{path} has the columns {found}, expected {wanted}")


@dataclass
class Out:
    """Where a stage writes an artifact; `shards` outlives a run that is killed."""

    stage: Stage
    directory: Path
    shards: Path
    facts: Json = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def writer(self, name: str = "data", schema: pa.Schema | None = None) -> Iterator[Any]:
        """Yield a writer of a Parquet file with the columns that the stage declares."""
        import pyarrow.parquet as pq

        path = self.directory / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        schema = self.stage.schema(name) if schema is None else schema
        check_columns(self.stage.tables[name], schema, path)
        with pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
            yield writer
        self.rows[name] = pq.read_metadata(path).num_rows

    def write(self, table: pa.Table, name: str = "data") -> None:
        """Write a Parquet file in one piece."""
        with self.writer(name) as writer:
            writer.write_table(table.cast(self.stage.schema(name)))

    def write_rows(self, rows: Sequence[Json], name: str = "data") -> None:
        """Write a Parquet file from its rows."""
        import pyarrow as pa

        self.write(pa.Table.from_pylist(list(rows), schema=self.stage.schema(name)), name)

    def write_frame(self, frame: pd.DataFrame, name: str = "data") -> None:
        """Write a Parquet file from a frame that has its columns, among others."""
        import pyarrow as pa

        schema = self.stage.schema(name)
        table = pa.Table.from_pandas(frame[schema.names], schema, preserve_index=False)
        self.write(table.replace_schema_metadata(None), name)


class Store:
    """All artifacts below one directory, which is made when the first one is written."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, task: Task) -> Artifact | None:
        """Return the published artifact of a task, whatever its state, or None."""
        end = f"-{task.key[:12]}"
        with suppress(FileNotFoundError):
            for path in (self.root / task.stage.name).iterdir():
                if path.name.endswith(end) and path.name[0] != ".":
                    return Artifact(path, task.stage.tables)
        return None

    def fresh(self, task: Task, memo: dict[str, bool] | None = None) -> bool:
        """Say whether a task is published, and no input was rebuilt with other content since.

        An input that was deleted makes nothing stale: the key says what it was.

        Raises:
            DamagedError: a record is damaged.
        """
        memo = {} if memo is None else memo
        if task.key not in memo:
            memo[task.key] = self._fresh(task, memo)
        return memo[task.key]

    def _fresh(self, task: Task, memo: dict[str, bool]) -> bool:
        artifact = self.find(task)
        if artifact is None:
            return False
        if artifact.record["key"] != task.key:
            reason = f"{artifact.directory / RECORD} is of another artifact"
            raise DamagedError(artifact.directory, reason)
        for name, above in task.inputs.items():
            latest = self.find(above)
            if latest is None:
                continue
            if latest.content != artifact.record["inputs"][name] or not self.fresh(above, memo):
                return False
        return True

    def missing(self, tasks: Sequence[Task]) -> list[Task]:
        """Return the tasks that must be computed for `tasks`, inputs first."""
        memo: dict[str, bool] = {}
        needed: dict[str, Task] = {}

        def visit(task: Task) -> None:
            if task.key not in needed and not self.fresh(task, memo):
                for above in task.inputs.values():
                    visit(above)
                needed[task.key] = task

        try:
            for task in tasks:
                visit(task)
        except DamagedError as damage:
            self.set_aside(damage.directory)
            return self.missing(tasks)
        return list(needed.values())

    def all(self, stages: Iterable[Stage]) -> Iterator[Artifact]:
        """Yield every published artifact of some stages."""
        for stage in stages:
            for path in sorted((self.root / stage.name).glob("[!.]*-*")):
                if path.is_dir():
                    yield Artifact(path, stage.tables)

    def get(self, task: Task) -> Artifact:
        """Return the artifact of a task, whole and up to date; compute what is not there.

        Any number of processes may ask: one computes, the others wait and find it. Nothing is
        locked where nothing is computed, so that a read-only store serves what it has.

        Raises:
            PipelineError: a stage says what is wrong, or the disk is full or loses what it is
                given.
        """
        damaged = Counter[Path]()
        while True:
            try:
                artifact = self._found(task) or self._made(task)
                self._tidy(task)
                return artifact
            except DamagedError as damage:
                damaged[damage.directory] += 1
                if damaged[damage.directory] > REBUILDS:
                    raise PipelineError(
                        f"{damage.reason}, after {REBUILDS} rebuilds: check the disk"
                    ) from damage
                self.set_aside(damage.directory)

    def _found(self, task: Task) -> Artifact | None:
        artifact = self.find(task) if self.fresh(task) else None
        if artifact is not None:
            artifact.check()
        return artifact

    def _tidy(self, task: Task) -> None:
        """Remove what a run left that was killed after it had published a task."""
        left = list((self.root / task.stage.name).glob(f".{task.key[:12]}.*"))
        if left and os.access(self.root, os.W_OK):
            with suppress(OSError), self.lock(task):  # not held by who makes it anew
                if self.fresh(task):
                    for work in left:
                        shutil.rmtree(work, ignore_errors=True)

    def _made(self, task: Task) -> Artifact:
        inputs = {name: self.get(above) for name, above in task.inputs.items()}
        try:
            with self.lock(task):
                return self._found(task) or self._compute(task, inputs)
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            raise PipelineError(
                f"{task.name}: can't write below {self.root} ({os.strerror(error.errno)}): no "
                "incomplete file was kept; free space and run the same command again"
            ) from error

    def _compute(self, task: Task, inputs: Inputs) -> Artifact:
        print(f"{task.name}: computing", flush=True)
        begun = time.monotonic()
        contents = {name: artifact.content for name, artifact in inputs.items()}
        of_inputs = digest("\n".join(contents.values()).encode())[:8]
        work = self.root / task.stage.name / f".{task.key[:12]}.{of_inputs}.partial"
        shutil.rmtree(work / "artifact", ignore_errors=True)  # of a killed run
        out = Out(task.stage, work / "artifact", work / "shards")
        out.directory.mkdir(parents=True)
        try:
            task.stage.compute(task, inputs, out)
            for name, above in task.inputs.items():
                latest = self.find(above)
                if latest is not None and latest.content != contents[name]:
                    reason = f"{latest.directory} was replaced while it was read"
                    raise DamagedError(latest.directory, reason)
            made = self._publish(task, out, contents, time.monotonic() - begun)
        finally:
            drop_unfinished(work)
        print(
            f"{task.name}: {time.monotonic() - begun:.1f} s -> {relative(made.directory)}",
            flush=True,
        )
        return made

    def _publish(
        self, task: Task, out: Out, contents: Mapping[str, str], seconds: float
    ) -> Artifact:
        """Record, sync and rename a finished artifact to its place."""
        files = {}
        for path in sorted(out.directory.rglob("*")):
            if path.is_file():
                files[path.relative_to(out.directory).as_posix()] = file_digest(path)
            sync(path)
        lines = [f"{name} {of}\n" for name, of in files.items() if not name.startswith(TIMED)]
        record = {
            "stage": task.stage.name,
            "version": task.stage.version,
            "label": task.label,
            "key": task.key,
            "settings": task.settings,
            "inputs": dict(contents),
            "content": digest("".join(lines).encode()),
            "files": files,
            "rows": out.rows,
            "facts": out.facts,
            **environment(seconds),
        }
        write_json(out.directory / RECORD, record)
        place = self.root / task.stage.name / f"{slug(task.label)}-{task.key[:12]}"
        with self.moving():
            if (stale := self.find(task)) is not None:
                stale.directory.rename(out.directory.with_name(f"stale{time.time_ns()}"))
            put(out.directory, place)
        shutil.rmtree(out.directory.parent, ignore_errors=True)
        return Artifact(place, task.stage.tables)

    def set_aside(self, directory: Path) -> bool:
        """Move a damaged artifact out of the way and say so; return whether it was damaged.

        It is looked at again first: another process may have mended it meanwhile.
        """
        with self.moving():
            if not directory.is_dir():
                return False
            try:
                Artifact(directory, {}).check()
            except DamagedError as damage:
                place = self.root / "damaged" / f"{directory.name}.{time.time_ns()}"
                place.parent.mkdir(exist_ok=True)
                directory.rename(place)
                print(f"damaged: {damage.reason}; set aside in {relative(place)}", flush=True)
                return True
        return False

    def lock(self, task: Task) -> Any:
        """Hold the lock of a task."""
        return self._lock(f"{task.stage.name}-{task.key[:12]}", task.name)

    def moving(self) -> Any:
        """Hold the lock under which anything is moved to or from its place."""
        return self._lock("moving")

    @contextmanager
    def _lock(self, name: str, announced: str = "") -> Iterator[None]:
        """Hold a lock of the store; where another process holds it, say which one."""
        from filelock import FileLock, Timeout

        folder = self.root / ".locks"
        folder.mkdir(parents=True, exist_ok=True)
        lock, holder = FileLock(folder / f"{name}.lock"), folder / f"{name}.holder"
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if announced:
                with suppress(OSError):
                    announced += f" ({holder.read_text()})"
                print(f"{announced}: another process computes it, waiting", flush=True)
            lock.acquire()
        try:
            if announced:
                holder.write_text(f"process {os.getpid()} on {socket.gethostname()}")
            yield
        finally:
            lock.release()


def drop_unfinished(work: Path) -> None:
    """Remove what is half-written in a workspace; finished shards stay for the next run."""
    shutil.rmtree(work / "artifact", ignore_errors=True)
    for path in (work / "shards").glob("*.tmp"):
        path.unlink(missing_ok=True)
    if not any((work / "shards").glob("*")):
        shutil.rmtree(work, ignore_errors=True)


def relative(path: Path) -> str:
    """Return `path` as a user in the working directory would write it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def environment(seconds: float) -> Json:
    """Return the record's entries on the run and the machine."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "wall_seconds": round(seconds, 3),
        "argv": sys.argv,
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "processor": _processor(),
        "git": _git(),
    }


@cache
def _processor() -> str:
    """Return the processor's name: Linux tells it in a file, other systems to `platform`."""
    with suppress(OSError):
        named = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
        if named is not None:
            return named[1]
    return platform.processor() or platform.machine()


@cache
def _git() -> Json:
    def git(*arguments: str) -> str | None:
        try:
            return subprocess.run(
                ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
            ).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return None  # an export without history, or no git

    changed = git("status", "--porcelain", "--untracked-files=no")
    return {"commit": git("rev-parse", "HEAD"), "dirty": None if changed is None else bool(changed)}

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
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

from pipeline.core.errors import DamagedError, PipelineError
from pipeline.core.files import digest, file_digest, put, slug, sync, write_json
from pipeline.core.paths import ROOT
from pipeline.core.stage import RECORD, Artifact, Inputs, Json, Out, Stage, Task

TIMED = ("timings/", "index.html")  # files that depend on the clock: no part of the content
VERDICT = "timings/verdict.md"  # of a report: a paragraph a target, the sentence first
REBUILDS = 3  # of an artifact that is damaged again and again
UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
PACKAGES = ("numpy", "pyarrow", "pandas", "numba", "matplotlib", "torch", "transformers")


class Store:
    """All artifacts below one directory, which is made when the first one is written."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, task: Task) -> Artifact | None:
        """Return the published artifact of a task, whatever its state, or None."""
        paths = (self.root / task.stage.name).glob(f"[!.]*-{task.key[:12]}")
        return next((Artifact(path, task.stage.tables) for path in paths), None)

    def all(self, stages: Iterable[Stage]) -> Iterator[Artifact]:
        """Yield every published artifact of some stages."""
        for stage in stages:
            for path in sorted((self.root / stage.name).glob("[!.]*-*")):
                if path.is_dir():
                    yield Artifact(path, stage.tables)

    def fresh(self, task: Task) -> bool:
        """Say whether a task is published, and no input was rebuilt with other content since.

        An input that was deleted makes nothing stale: the key says what it was.

        Raises:
            DamagedError: a record is damaged.
        """
        artifact = self.find(task)
        if artifact is None:
            return False
        contents = artifact.record["inputs"]
        for name, above in task.inputs.items():
            latest = self.find(above)
            if latest and (latest.content != contents[name] or not self.fresh(above)):
                return False
        return True

    def missing(self, tasks: Sequence[Task]) -> list[Task]:
        """Return the tasks that must be computed for `tasks`, inputs first."""
        needed: dict[str, Task] = {}

        def visit(task: Task) -> None:
            if task.key not in needed and not self.fresh(task):
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
                if latest and latest.content != contents[name]:
                    reason = f"{latest.directory} was replaced while it was read"
                    raise DamagedError(latest.directory, reason)
            made = self._publish(task, out, contents, time.monotonic() - begun)
        finally:
            drop_unfinished(work)
        seconds = time.monotonic() - begun
        print(f"{task.name}: {seconds:.1f} s -> {relative(made.directory)}", flush=True)
        return made

    def _publish(
        self, task: Task, out: Out, contents: Mapping[str, str], seconds: float
    ) -> Artifact:
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
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "wall_seconds": round(seconds, 3),
            "argv": sys.argv,
            **environment(),
        }
        write_json(out.directory / RECORD, record)
        place = self.root / task.stage.name / f"{slug(task.label)}-{task.key[:12]}"
        with self.lock():
            if stale := self.find(task):
                stale.directory.rename(out.directory.with_name(f"stale{time.time_ns()}"))
            put(out.directory, place)
        shutil.rmtree(out.directory.parent, ignore_errors=True)
        return Artifact(place, task.stage.tables)

    def set_aside(self, directory: Path) -> bool:
        """Move a damaged artifact out of the way and say so; return whether it was damaged."""
        with self.lock():
            try:  # again: another process may have mended it meanwhile
                if directory.is_dir():
                    Artifact(directory, {}).check()
                return False
            except DamagedError as damage:
                place = self.root / "damaged" / f"{directory.name}.{time.time_ns()}"
                place.parent.mkdir(exist_ok=True)
                directory.rename(place)
                print(f"damaged: {damage.reason}; set aside in {relative(place)}", flush=True)
                return True

    @contextmanager
    def lock(self, task: Task | None = None) -> Iterator[None]:
        """Hold the lock of a task, or that under which anything is moved to or from its place."""
        from filelock import FileLock, Timeout

        name = f"{task.stage.name}-{task.key[:12]}" if task else "moving"
        lock = FileLock(self.root / ".locks" / f"{name}.lock")
        (self.root / ".locks").mkdir(parents=True, exist_ok=True)
        try:
            held = lock.acquire(timeout=0)
        except Timeout:
            if task:
                print(f"{task.name}: another process computes it, waiting", flush=True)
            held = lock.acquire()
        with held:
            yield


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


@cache
def environment() -> Json:
    """Return the record's entries on the machine, the packages and the checkout."""
    versions = {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}
    git = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True)
        commit = done.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = None  # an export without history, or no git
    return {
        "versions": versions,
        "platform": platform.platform(),
        "processor": _processor(),
        "git": commit,
    }


def _processor() -> str:
    """Return the processor's name: Linux tells it in a file, other systems to `platform`."""
    file = Path("/proc/cpuinfo")
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    named = re.search(r"model name\s*: (.+)", text)
    return named[1] if named else platform.processor() or platform.machine()

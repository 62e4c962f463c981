"""The store of artifacts: finds them by what they are made from, publishes, checks, repairs them.

An artifact is a directory ``<root>/<stage>/<label>-<key12>/`` with Parquet files and record.json,
which holds a checksum of every file and of itself. It is made in a workspace beside its place,
``.<key12>.<inputs>.v<version>.partial/``, where finished shards outlive a killed run; inputs with
other content and other timings have workspaces of their own. An artifact that was timed again lies
beside the first, as ``<label>.2-<key12>/``; `pipeline.core.timings` says which one is used.
"""

from __future__ import annotations

import errno
import math
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, count
from pathlib import Path

from pipeline.core.environment import environment
from pipeline.core.errors import DamagedError, PipelineError
from pipeline.core.files import digest, file_digest, put, remove, slug, sync, write_json
from pipeline.core.interruption import raise_if_interrupted
from pipeline.core.secrets import without_secrets
from pipeline.core.stage import RECORD, TIMINGS, Artifact, Inputs, Out, Stage, Task
from pipeline.core.timings import Asked, in_words, machines

TIMED = (TIMINGS, "index.html")  # files that depend on the clock, no part of the content
VERDICT = "timings/verdict.md"  # of a report: a paragraph per target, the sentence first
REBUILDS = 3  # how often a damaged artifact is computed again
REMEDIES = {  # by the system's error, if nothing can be written
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
        "no incomplete file was kept; free space and run the same command again",
    ),
    **dict.fromkeys(
        (errno.EROFS, errno.EACCES, errno.EPERM),
        "give outputs=DIRECTORY, one that you may write to",
    ),
    **dict.fromkeys(
        (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS),
        "this file system has no locks: give outputs=DIRECTORY, one on another",
    ),
}
ARTIFACT = re.compile(r"[^.].*-[0-9a-f]{12}")
WORKSPACE = re.compile(r"\.([0-9a-f]{12})\.[0-9a-f]{8}(?:\.v(\d+))?\.partial")
ABANDONED = 30  # days without a change after which a workspace is removed
DAY = 86_400.0  # seconds


class Store:
    """All artifacts below one directory, which is created with the first one."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, task: Task) -> Artifact | None:
        """Return the published artifact of a task, damaged or not.

        If there are several, it is the one whose timings suit best what the task asks for. None:
        there is none, or none whose timings suit.
        """
        artifacts = list(self.published(task))
        asked = task.asked
        if asked is None:
            return next(iter(artifacts), None)
        ranks = [_rank(asked, artifact) for artifact in artifacts]
        best = max(ranks, default=0)
        return artifacts[ranks.index(best)] if best else None

    def published(self, task: Task) -> Iterator[Artifact]:
        """Yield the published artifacts of a task, one for each time that it was timed."""
        for path in sorted((self.root / task.stage.name).glob(f"[!.]*-{task.key[:12]}")):
            yield Artifact(path, task.stage.tables)

    def all(self, stages: Iterable[Stage]) -> Iterator[Artifact]:
        """Yield every published artifact of some stages, and whatever has the name of one."""
        for stage in stages:
            for path in sorted((self.root / stage.name).glob("*")):
                if ARTIFACT.fullmatch(path.name):
                    yield Artifact(path, stage.tables)

    def fresh(self, task: Task) -> bool:
        """Whether a task is published, and no input has got other content or timings since.

        Deleting an input does not invalidate what was made from it. Only reports are made from
        timings.

        Raises:
            DamagedError: a record is damaged.
        """
        artifact = self.find(task)
        if artifact is None:
            return False
        contents = artifact.record["inputs"]
        timings = artifact.record.get("input_timings", {})
        for name, above in task.inputs.items():
            latest = self.find(above)
            if latest is None:
                continue
            same = (latest.content, latest.timings) == (contents[name], timings.get(name))
            if not same or not self.fresh(above):
                return False
        return True

    def missing(self, tasks: Sequence[Task]) -> list[Task]:
        """Return the tasks that must be computed for `tasks`, inputs first.

        An artifact with a damaged record is set aside, so that its task is among them.
        """
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
            self.set_aside(damage)
            return self.missing(tasks)
        return list(needed.values())

    def get(self, task: Task) -> Artifact:
        """Return the artifact of a task, whole and up to date; compute what is missing.

        If several processes ask for it, one computes it while the others wait. Nothing is locked
        unless something is computed, so a read-only store works, too.

        Raises:
            PipelineError: a stage refuses the task, the disk is full, or it damages what is
                written.
        """
        damaged = Counter[Path]()
        while True:
            raise_if_interrupted()
            try:
                artifact = self._found(task) or self._made(task)
                self._tidy(task, artifact)
                return artifact
            except DamagedError as damage:
                damaged[damage.directory] += 1
                if damaged[damage.directory] > REBUILDS:
                    raise PipelineError(
                        f"{damage.reason}, after {REBUILDS} rebuilds: check the disk"
                    ) from damage
                self.set_aside(damage)

    def _found(self, task: Task) -> Artifact | None:
        artifact = self.find(task) if self.fresh(task) else None
        if artifact is not None:
            artifact.check()
        return artifact

    def _workspace(self, task: Task, contents: Mapping[str, str]) -> Path:
        """Return the workspace of a task; `contents` are the digests of its inputs."""
        parts = list(contents.values())
        if task.asked is not None:
            parts.append(task.asked.mark)
        of_inputs = digest("\n".join(parts).encode())[:8]
        name = f".{task.key[:12]}.{of_inputs}.v{task.stage.version}.partial"
        return self.root / task.stage.name / name

    def _tidy(self, task: Task, artifact: Artifact) -> None:
        """Remove the workspace of a run that was killed after it published a task."""
        left = list((self.root / task.stage.name).glob(f".{task.key[:12]}.*"))
        if task.asked is not None:  # workspaces of other timings may be unfinished
            left = [
                work for work in left if work == self._workspace(task, artifact.record["inputs"])
            ]
        if left and os.access(self.root, os.W_OK):
            with suppress(OSError), self.lock(task):  # no process is computing it again
                if self.fresh(task):
                    for work in left:
                        remove(work)

    def _made(self, task: Task) -> Artifact:
        inputs = {name: self.get(above) for name, above in task.inputs.items()}
        try:
            with self.lock(task):
                made = self._found(task) or self._compute(task, inputs)
            self.remove_abandoned(task.stage)
            return made
        except OSError as error:
            if error.errno not in REMEDIES:
                raise
            raise PipelineError(
                f"{task.name}: can't write below {self.root} {_with_remedy(error)}"
            ) from error

    def _compute(self, task: Task, inputs: Inputs) -> Artifact:
        print(f"{task.name}: computing", flush=True)
        begun = time.monotonic()
        contents = {name: artifact.content for name, artifact in inputs.items()}
        work = self._workspace(task, contents)
        for folder in (work, work / "shards"):
            if not folder.is_dir():  # but something else
                remove(folder)
        remove(work / "artifact")  # of a killed run
        out = Out(task.stage, work / "artifact", work / "shards")
        out.directory.mkdir(parents=True)
        try:
            task.stage.compute(task, inputs, out)
            for name, above in task.inputs.items():
                latest = self.find(above)
                if latest and latest.content != contents[name]:
                    reason = f"{latest.directory} was replaced while it was read"
                    raise DamagedError(latest.directory, reason)
            timings = {name: artifact.timings for name, artifact in inputs.items()}
            made = self._publish(task, out, contents, timings, time.monotonic() - begun)
        finally:
            drop_unfinished(work)
        seconds = time.monotonic() - begun
        print(f"{task.name}: {seconds:.1f} s -> {relative(made.directory)}", flush=True)
        self._compare(task, made)
        return made

    def _compare(self, task: Task, made: Artifact) -> None:
        """Print how many answers differ from those of earlier timings of the same task."""
        for other in self.published(task):
            with suppress(PipelineError):
                if changed := _changed_answers(made, other):
                    print(
                        f"{task.name}: {changed} answers have other tokens than in "
                        f"{relative(other.directory)} ({in_words(machines(other.record))}), where "
                        "logits are nearly equal",
                        flush=True,
                    )

    def _publish(
        self,
        task: Task,
        out: Out,
        contents: Mapping[str, str],
        timings: Mapping[str, str | None],
        seconds: float,
    ) -> Artifact:
        files = {}
        for path in sorted(out.directory.rglob("*")):
            if path.is_file():
                files[path.relative_to(out.directory).as_posix()] = file_digest(path)
            sync(path)
        lines = [f"{name} {files[name]}\n" for name in files if not name.startswith(TIMED)]
        record = {
            "stage": task.stage.name,
            "version": task.stage.version,
            "label": task.label,
            "key": task.key,
            "settings": task.settings,
            "inputs": dict(contents),
            "input_timings": {
                name: of_input for name, of_input in timings.items() if of_input is not None
            },
            "asked": None if task.asked is None else task.asked.entries,
            "content": digest("".join(lines).encode()),
            "files": files,
            "rows": out.rows,
            "facts": out.metadata,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "wall_seconds": round(seconds, 3),
            "argv": [without_secrets(word) for word in sys.argv],
            **environment(),
        }
        write_json(out.directory / RECORD, record)
        with self.lock():
            if stale := self.find(task):
                stale.directory.rename(out.directory.with_name(f"stale{time.time_ns()}"))
            place = self._place(task)
            put(out.directory, place)
        shutil.rmtree(out.directory.parent, ignore_errors=True)
        return Artifact(place, task.stage.tables)

    def _place(self, task: Task) -> Path:
        """Return a free place for an artifact, beside those of the same task's other timings."""
        folder = self.root / task.stage.name
        label = slug(task.label)
        names = chain([label], (f"{label}.{number}" for number in count(2)))
        places = (folder / f"{name}-{task.key[:12]}" for name in names)
        return next(place for place in places if not os.path.lexists(place))

    def set_aside(self, damage: DamagedError) -> bool:
        """Move a damaged artifact out of the way and print why; return whether it is damaged.

        Raises:
            PipelineError: it is damaged and can't be moved.
        """
        directory = damage.directory
        place = self.root / "damaged" / f"{directory.name}.{time.time_ns()}"
        try:
            with self.lock():
                reason = _damage(directory)  # another process may have repaired it meanwhile
                if reason is None:
                    return False
                place.parent.mkdir(exist_ok=True)
                directory.rename(place)
        except OSError as error:
            raise PipelineError(
                f"damaged, not set aside: {damage.reason} {_with_remedy(error)}"
            ) from error
        print(f"damaged: {reason}; set aside in {relative(place)}", flush=True)
        return True

    def remove_abandoned(self, stage: Stage) -> list[Path]:
        """Remove the workspaces of a stage that no run will continue; return those that are left.

        They are of another version of the stage, or unchanged for `ABANDONED` days.
        """
        left = []
        for work in sorted((self.root / stage.name).glob(".*.partial")):
            named = WORKSPACE.fullmatch(work.name)
            current = named is not None and named[2] == str(stage.version)
            try:
                written = max(path.lstat().st_mtime for path in (work, *work.rglob("*")))
            except FileNotFoundError:  # another process is working there
                left.append(work)
                continue
            if named is None or (current and time.time() - written < ABANDONED * DAY):
                left.append(work)
                continue
            try:
                with self._held(f"{stage.name}-{named[1]}", wait=False):  # no process computes it
                    remove(work)
                print(f"removed: {relative(work)}, which no run would go on with", flush=True)
            except BrokenPipeError:
                raise
            except OSError:
                left.append(work)
        return left

    @contextmanager
    def lock(self, task: Task | None = None) -> Iterator[None]:
        """Hold the lock of a task, or the one for moving any artifact to or from its place."""
        from filelock import Timeout

        name = f"{task.stage.name}-{task.key[:12]}" if task else "moving"
        with ExitStack() as held:
            try:
                held.enter_context(self._held(name, wait=False))
            except Timeout:
                if task:
                    print(f"{task.name}: another process computes it, waiting", flush=True)
                held.enter_context(self._held(name))
            yield

    @contextmanager
    def _held(self, name: str, *, wait: bool = True) -> Iterator[None]:
        from filelock import FileLock

        (self.root / ".locks").mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.root / ".locks" / f"{name}.lock")
        try:
            held = lock.acquire(timeout=-1 if wait else 0)
        except NotImplementedError as error:  # some versions of filelock raise it
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from error
        with held:
            yield


def _rank(asked: Asked, artifact: Artifact) -> float:
    """Return `Asked.rank` of an artifact; if its record is damaged, inf, so that it is repaired."""
    try:
        return asked.rank(artifact.record)
    except PipelineError:
        return math.inf


def _with_remedy(error: OSError) -> str:
    """Return the system's message on a failed write, and its remedy."""
    remedy = REMEDIES.get(error.errno or 0)
    return f"({error.strerror or error})" + (f": {remedy}" if remedy else "")


def _damage(directory: Path) -> str | None:
    """Return how an artifact, or whatever has its name, is damaged; None if it is whole."""
    try:
        if directory.is_dir():
            Artifact(directory, {}).check()
        elif directory.is_symlink() or directory.exists():
            return f"{directory} is no directory"
    except DamagedError as damage:
        return damage.reason
    return None


def drop_unfinished(work: Path) -> None:
    """Remove what is half-written from a workspace; finished shards stay for the next run."""
    shutil.rmtree(work / "artifact", ignore_errors=True)
    for path in (work / "shards").glob("*.tmp"):
        remove(path)
    if not any((work / "shards").glob("*")):
        shutil.rmtree(work, ignore_errors=True)


def relative(path: Path) -> str:
    """Return `path` as a user in the working directory would write it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _changed_answers(made: Artifact, other: Artifact) -> int:
    """Return how many answers differ in tokens between two artifacts from the same inputs."""
    same = made.content == other.content or made.record["inputs"] != other.record["inputs"]
    if same or "token_ids" not in made.tables.get("data", ()):
        return 0
    answers, others = (one.read(columns=["token_ids"])["token_ids"] for one in (made, other))
    return sum(a != b for a, b in zip(answers.to_pylist(), others.to_pylist(), strict=False))

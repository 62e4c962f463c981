"""The artifact store: directories that are found by fingerprint and published whole.

An artifact is ``<store>/<stage>/<label>-<hash12>/`` with Parquet files and ``record.json``, which
holds a checksum of every file and of itself. It is made in ``.<hash12>.partial/artifact``, synced,
and renamed to its place. A stage that can be resumed keeps its finished shards in the partial
directory. A damaged artifact moves to ``quarantine/`` and is rebuilt.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.errors import DamagedError, PipelineError
from pipeline.store import columns as schemas
from pipeline.store.durable import file_digest, put, read_sealed, sync, write_sealed
from pipeline.store.node import RECORD, Node, content_digest, slug
from pipeline.store.plain import Plain, from_plain, to_plain
from pipeline.store.records import MadeFrom, Record

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
DAMAGE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO}  # others are the machine's matter
SCHEMA_VERSION = 2  # of record.json and of the columns
QUARANTINE = "quarantine"  # beside the stages; its artifacts lie one level deeper than theirs


@dataclass(frozen=True)
class Artifact:
    """A published artifact."""

    directory: Path

    @cached_property
    def record(self) -> Record:
        """The record written when the artifact was published.

        Raises:
            DamagedError: it is not what was written.
        """
        path = self.directory / RECORD
        try:
            return self._typed(Record, read_sealed(path))
        except ValueError as error:
            raise DamagedError(self.directory, f"{path} {error}") from error
        except OSError as error:
            raise self._unreadable(path, error) from error

    def facts(self, kind: type[T]) -> T:
        """Return facts of the computation, as a dataclass of which the record has all entries.

        Raises:
            DamagedError: it lacks one.
        """
        return self._typed(kind, self.record.facts)

    def _typed(self, kind: type[T], entries: Plain) -> T:
        try:
            return from_plain(kind, entries)
        except KeyError as error:
            reason = f"{self.directory / RECORD} lacks {error}"
            raise DamagedError(self.directory, reason) from error

    @property
    def content(self) -> str:
        """Digest of the artifact's content, timings and machine aside."""
        return self.record.content

    @cached_property
    def _checked(self) -> set[str]:
        return set()

    def _check(self, name: str) -> None:
        """Check a file against the record, once."""
        if name in self._checked:
            return
        path = self.directory / name
        if name not in self.record.files:
            raise DamagedError(self.directory, f"{path} is not in {RECORD}")
        try:
            digest = file_digest(path)
        except OSError as error:
            raise self._unreadable(path, error) from error
        if digest != self.record.files[name]:
            raise DamagedError(self.directory, f"{path} differs from its checksum in {RECORD}")
        self._checked.add(name)

    def _unreadable(self, path: Path, error: OSError) -> PipelineError:
        reason = f"{path} can't be read ({error.strerror or error})"
        damaged = error.errno in DAMAGE
        return DamagedError(self.directory, reason) if damaged else PipelineError(reason)

    def damage(self) -> list[str]:
        """Return the differences of all files from the record; an empty list where there are none.

        A file that was added is damage: who reads the directory as a data set would include it.
        """
        differences = []
        try:
            names = {*self.record.files}
        except DamagedError as error:
            return [error.reason]
        if not self.directory.name.endswith(f"-{self.record.fingerprint[:12]}"):
            differences.append(f"{self.directory / RECORD} is the record of another artifact")
        there = (path for path in self.directory.rglob("*") if path.is_file())
        names.update(path.relative_to(self.directory).as_posix() for path in there)
        for name in sorted(names - {RECORD}):
            try:
                self._check(name)
            except DamagedError as error:
                differences.append(error.reason)
        return differences

    def read(self, name: str = "data", columns: list[str] | None = None) -> pa.Table:
        """Read a Parquet file of the artifact, its checksum and schema checked.

        Raises:
            DamagedError: the file is not what was published.
        """
        with self._open(name) as file:
            return file.read(columns=columns)

    def batches(self, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Stream data.parquet in batches of at most `rows` rows; errors are those of `read`."""
        with self._open("data") as file:
            # one row group at a time: over all of them, what was read is kept until the end
            for group in range(file.num_row_groups):
                yield from file.iter_batches(rows, row_groups=[group], columns=columns)

    @contextmanager
    def _open(self, name: str) -> Iterator[Any]:
        """Open a checked Parquet file; damage done since is found by the checksums of its pages."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._check(f"{name}.parquet")
        path = self.directory / f"{name}.parquet"
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                schemas.check_schema(self.record.stage, name, file.schema_arrow, path)
                yield file
        except (OSError, pa.ArrowException, PipelineError) as error:
            raise DamagedError(self.directory, f"{path} can't be read ({error})") from error


class Pending:
    """An artifact in the making."""

    def __init__(
        self,
        directory: Path,
        stage: str,
        workspace: Path | None = None,
        made_from: MadeFrom | None = None,
    ) -> None:
        """Write the artifact into `directory`, which exists.

        Args:
            directory: all that is in it is published.
            stage: whose columns the files have.
            workspace: for what outlives an interruption, finished shards; default `directory`.
            made_from: the stage's version and the contents that the artifact is made from.
        """
        self.directory = directory
        self.stage = stage
        self.workspace = workspace or directory
        self.made_from = made_from or MadeFrom()
        self.facts: Plain = {}  # for the record
        self.rows: dict[str, int] = {}

    @contextmanager
    def writer(self, name: str, schema: pa.Schema) -> Iterator[Any]:
        """Yield a Parquet writer for `<name>.parquet`, checked against the stage's columns."""
        import pyarrow.parquet as pq

        path = self.directory / f"{name}.parquet"
        schemas.check_schema(self.stage, name, schema, path)
        with pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
            yield writer
        self.rows[name] = pq.read_metadata(path).num_rows

    def write(self, name: str, table: pa.Table) -> None:
        """Write `<name>.parquet` in one piece."""
        with self.writer(name, table.schema) as writer:
            writer.write_table(table)

    def drop(self) -> None:
        """Remove half-written files; finished shards stay for the next run."""
        shutil.rmtree(self.directory, ignore_errors=True)
        for path in self.workspace.rglob("*.tmp"):
            path.unlink(missing_ok=True)
        shards = self.workspace / "shards"
        if not (shards.is_dir() and any(shards.iterdir())):
            shutil.rmtree(self.workspace, ignore_errors=True)


class Store:
    """All artifacts below one directory."""

    def __init__(self, root: Path) -> None:
        """Open the store in `root`, which is made when the first artifact is written."""
        self.root = root

    def find(self, node: Node) -> Artifact | None:
        """Return the published artifact of `node`, fresh or not, or None."""
        return next(map(Artifact, self._places(node)), None)

    def has(self, node: Node) -> bool:
        """Say whether `node` is published, fresh or not."""
        return self.find(node) is not None

    def _places(self, node: Node) -> list[Path]:
        folder, end = self.root / node.stage, f"-{node.hash12}"
        if not folder.is_dir():
            return []
        return [path for path in folder.iterdir() if path.name.endswith(end)]

    def fresh(self, node: Node, memo: dict[str, bool] | None = None) -> bool:
        """Whether `node` is published and no upstream was rebuilt with other content since.

        An upstream that was deleted does not make an artifact stale: its fingerprint still
        says what it was made from.

        Raises:
            DamagedError: the record of `node` or of one above is damaged.
        """
        memo = {} if memo is None else memo
        if node.fingerprint not in memo:
            memo[node.fingerprint] = self._fresh(node, memo)
        return memo[node.fingerprint]

    def _fresh(self, node: Node, memo: dict[str, bool]) -> bool:
        artifact = self.find(node)
        if artifact is None:
            return False
        if artifact.record.fingerprint != node.fingerprint:
            raise DamagedError(artifact.directory, f"{artifact.directory / RECORD} is of another")
        used = {above["fingerprint"]: above["content"] for above in artifact.record.upstream}
        for above in node.upstream_nodes:
            latest = self.find(above)
            if latest is None:
                continue
            if latest.content != used[above.fingerprint] or not self.fresh(above, memo):
                return False
        return True

    @contextmanager
    def lock(self, name: str, announce: str = "") -> Iterator[None]:
        """Hold the store's lock `name`; say `announce` when another process holds it."""
        from filelock import FileLock, Timeout

        folder = self.root / ".locks"
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f"{name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if announce:
                print(announce, flush=True)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def workspace(self, node: Node) -> Path:
        """Where `node` is made."""
        return self.root / node.stage / f".{node.hash12}.partial"

    def pending(self, node: Node, upstream: Mapping[str, Artifact] | None = None) -> Pending:
        """Open the working directory of `node`, with the shards that a killed run left.

        Args:
            node: what is made.
            upstream: what it is made from, by fingerprint; by default what is found now.
        """
        if upstream is None:
            inputs = {above.fingerprint: self.find(above) for above in node.upstream_nodes}
            upstream = {name: artifact for name, artifact in inputs.items() if artifact is not None}
        workspace = self.workspace(node)
        directory = workspace / "artifact"
        if directory.exists():
            shutil.rmtree(directory)
        directory.mkdir(parents=True)
        contents = {name: artifact.content for name, artifact in upstream.items()}
        made_from = MadeFrom(node.fingerprint, node.version, contents)
        return Pending(directory, node.stage, workspace, made_from)

    def publish(self, node: Node, pending: Pending, environment: Plain | None = None) -> Artifact:
        """Record, sync and rename a finished artifact to its place."""
        files = {}
        for path in sorted(pending.directory.rglob("*")):
            if path.is_file():
                files[path.relative_to(pending.directory).as_posix()] = file_digest(path)
            sync(path)
        record = Record(
            stage=node.stage,
            label=node.label,
            fingerprint=node.fingerprint,
            version=node.version,
            config=node.config,
            upstream=[
                {"name": name, "content": pending.made_from.upstream[above.fingerprint]}
                | {key: getattr(above, key) for key in ("stage", "label", "fingerprint")}
                for name, nodes in node.upstream.items()
                for above in nodes
            ],
            content=content_digest(files),
            files=files,
            rows=pending.rows,
            artifact_schema=SCHEMA_VERSION,
            facts=pending.facts,
        )
        write_sealed(pending.directory / RECORD, to_plain(record) | (environment or {}))
        place = self.root / node.stage / f"{slug(node.label)}-{node.hash12}"
        with self.lock("moving"):
            for at, old in enumerate(self._places(node)):
                old.rename(pending.workspace / f"replaced-{at}")
            put(pending.directory, place)
        shutil.rmtree(pending.workspace, ignore_errors=True)
        return Artifact(place)

    def set_aside(self, directories: Sequence[Path]) -> list[Path]:
        """Move those of `directories` that are damaged to the quarantine, and say so.

        Each is looked at again, since another process may have mended it meanwhile.
        """
        moved = []
        with self.lock("moving"):
            for directory in directories:
                damage = Artifact(directory).damage() if directory.is_dir() else []
                if not damage:
                    continue
                folder = self.root / QUARANTINE / directory.parent.name
                folder.mkdir(parents=True, exist_ok=True)
                numbered = (folder / f"{directory.name}.{number}" for number in count())
                place = next(path for path in numbered if not path.exists())
                directory.rename(place)
                moved.append(directory)
                print(f"damaged: {'; '.join(damage)}; set aside in {place}", flush=True)
        return moved

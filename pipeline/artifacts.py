"""The artifact store: directories that are found by what they mean and published whole.

An artifact is ``<store>/<stage>/<label>-<hash12>/`` with Parquet files and ``record.json``.
It is written in ``.<hash12>.partial`` beside its place, synced, and renamed; the record is
written last. A stage that can be resumed keeps its finished shards in the partial directory.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import PipelineError
from pipeline.fingerprint import file_digest

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.stages import Node

RECORD = "record.json"
SCHEMA_VERSION = 1  # of record.json and of the columns
NOT_CONTENT = {RECORD, "plan.json", "timings"}  # what depends on the machine, not on the inputs


@dataclass(frozen=True)
class Artifact:
    """A published artifact."""

    directory: Path

    @cached_property
    def record(self) -> dict[str, Any]:
        """The record written when the artifact was published."""
        try:
            record = json.loads((self.directory / RECORD).read_text())
            lacking = {"stage", "content", "files", "upstream", "facts"} - set(record)
            if lacking:
                raise ValueError(f"it lacks {', '.join(sorted(lacking))}")
        except (OSError, ValueError, TypeError) as error:
            raise PipelineError(
                f"{self.directory / RECORD} can't be read ({error}): delete the directory "
                "and run the same command again"
            ) from error
        return dict(record)

    @property
    def content(self) -> str:
        """Digest of the artifact's content, timings and machine aside."""
        return str(self.record["content"])

    def read(self, name: str = "data", columns: list[str] | None = None) -> pa.Table:
        """Read a Parquet file of the artifact, its schema checked.

        Raises:
            PipelineError: the file is missing, damaged, or has other columns than its stage writes.
        """
        with self._open(name) as file:
            return file.read(columns=columns)

    def batches(
        self, name: str = "data", columns: list[str] | None = None, rows: int = 8192
    ) -> Iterator[pa.RecordBatch]:
        """Stream a Parquet file in batches of at most `rows` rows; errors are those of `read`."""
        with self._open(name) as file:
            # one row group at a time: over all of them, what was read is kept until the end
            for group in range(file.num_row_groups):
                yield from file.iter_batches(rows, row_groups=[group], columns=columns)

    @contextmanager
    def _open(self, name: str) -> Iterator[Any]:
        """Open a Parquet file, its schema checked; damage found while reading is named."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from pipeline import columns as known

        path = self.directory / f"{name}.parquet"
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                known.check(self.record["stage"], name, file.schema_arrow, path)
                yield file
        except (OSError, pa.ArrowException) as error:
            raise PipelineError(
                f"{path} can't be read ({error}): run `make verify`, delete what it names, "
                "and run the same command again"
            ) from error


class Draft:
    """An artifact in the making."""

    def __init__(self, directory: Path, stage: str) -> None:
        """Write below `directory`, which exists."""
        self.directory = directory
        self.stage = stage
        self.facts: dict[str, Any] = {}  # for the record: device, throughput, exclusions, ...
        self.rows: dict[str, int] = {}

    @contextmanager
    def writer(self, name: str, schema: pa.Schema) -> Iterator[Any]:
        """Yield a Parquet writer for `<name>.parquet`, checked against the stage's columns."""
        import pyarrow.parquet as pq

        from pipeline import columns as known

        path = self.directory / f"{name}.parquet"
        known.check(self.stage, name, schema, path)
        with pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
            yield writer
        self.rows[name] = pq.read_metadata(path).num_rows

    def write(self, name: str, table: pa.Table) -> None:
        """Write `<name>.parquet` in one piece."""
        with self.writer(name, table.schema) as writer:
            writer.write_table(table)


class Store:
    """All artifacts below one directory."""

    def __init__(self, root: Path) -> None:
        """Open the store in `root`, which is made when the first artifact is written."""
        self.root = root

    def find(self, node: Node) -> Artifact | None:
        """Return the published artifact of `node`, fresh or not, or None."""
        folder = self.root / node.stage
        if folder.is_dir():
            for path in folder.iterdir():
                if path.name.endswith(f"-{node.hash12}") and (path / RECORD).exists():
                    return Artifact(path)
        return None

    def fresh(self, node: Node, known: dict[str, bool] | None = None) -> bool:
        """Whether `node` is published and no upstream was rebuilt with other content since.

        An upstream that was deleted does not make an artifact stale: its fingerprint still
        says what it was made from.
        """
        known = {} if known is None else known
        if node.fingerprint not in known:
            known[node.fingerprint] = self._fresh(node, known)
        return known[node.fingerprint]

    def _fresh(self, node: Node, known: dict[str, bool]) -> bool:
        artifact = self.find(node)
        if artifact is None:
            return False
        used = {item["fingerprint"]: item["content"] for item in artifact.record["upstream"]}
        for above in node.upstream_nodes:
            found = self.find(above)
            if found is None:
                continue
            if found.content != used[above.fingerprint] or not self.fresh(above, known):
                return False
        return True

    @contextmanager
    def lock(self, name: str, announce: str) -> Iterator[None]:
        """Hold the store's lock `name`; say `announce` when another process holds it."""
        from filelock import FileLock, Timeout

        folder = self.root / ".locks"
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f"{name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            print(announce, flush=True)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def draft(self, node: Node, resumable: bool) -> Draft:
        """Open the working directory of `node`, with what a killed run left if resumable."""
        folder = self.root / node.stage
        directory = folder / f".{node.hash12}.partial"
        for leftover in folder.glob(f".{node.hash12}.old-*"):
            shutil.rmtree(leftover)
        if not resumable and directory.exists():
            shutil.rmtree(directory)
        directory.mkdir(parents=True, exist_ok=True)
        return Draft(directory, node.stage)

    def publish(self, node: Node, draft: Draft, environment: Mapping[str, Any]) -> Artifact:
        """Record, sync and rename a finished draft to its place."""
        files = {}
        for path in sorted(draft.directory.rglob("*")):
            if path.is_file() and path.name != RECORD:
                files[path.relative_to(draft.directory).as_posix()] = file_digest(path)
                _sync(path)
        record = {
            "stage": node.stage,
            "label": node.label,
            "fingerprint": node.fingerprint,
            "version": node.version,
            "config": node.config,
            "upstream": [
                {
                    "name": name,
                    "stage": above.stage,
                    "label": above.label,
                    "fingerprint": above.fingerprint,
                    "content": self._content(above),
                }
                for name, nodes in node.upstream.items()
                for above in nodes
            ],
            "content": content_digest(files),
            "files": files,
            "rows": draft.rows,
            "artifact_schema": SCHEMA_VERSION,
            "facts": draft.facts,
            **environment,
        }
        beside = draft.directory / RECORD
        beside.write_text(json.dumps(record, indent=1) + "\n")
        _sync(beside)
        _sync(draft.directory)
        place = draft.directory.parent / f"{slug(node.label)}-{node.hash12}"
        self._retire(node)
        draft.directory.rename(place)
        _sync(place.parent)
        return Artifact(place)

    def _content(self, node: Node) -> str:
        found = self.find(node)
        if found is None:
            raise PipelineError(
                f"{node.stage} {node.label} disappeared while it was in use: "
                "run the same command again"
            )
        return found.content

    def _retire(self, node: Node) -> None:
        """Remove what lies in the place of `node`, a directory without a record included."""
        for old in (self.root / node.stage).glob(f"*-{node.hash12}"):
            away = old.parent / f".{node.hash12}.old-{os.getpid()}"
            old.rename(away)
            shutil.rmtree(away)


def content_digest(files: Mapping[str, str]) -> str:
    """Return the digest of an artifact's files, by name and checksum."""
    lines = [
        f"{name} {digest}\n"
        for name, digest in sorted(files.items())
        if name.split("/")[0] not in NOT_CONTENT
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def slug(label: str) -> str:
    """Return `label` as a file name."""
    return re.sub(r"[^A-Za-z0-9.=_-]+", "_", label)[:100]  # a file name has at most 255 bytes


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

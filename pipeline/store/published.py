"""A published artifact, checked against its record whenever it is read."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import DamagedError, PipelineError
from pipeline.store.durable import read_sealed
from pipeline.store.fingerprint import file_digest

if TYPE_CHECKING:
    import pyarrow as pa

RECORD = "record.json"
# what depends on the machine, not on the inputs: the page of a report shows measured speeds
NOT_CONTENT = {RECORD, "timings", "index.html"}
GONE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}


@dataclass(frozen=True)
class Artifact:
    """A published artifact."""

    directory: Path

    @cached_property
    def record(self) -> dict[str, Any]:
        """The record written when the artifact was published.

        Raises:
            DamagedError: it is not what was written.
        """
        path = self.directory / RECORD
        try:
            return read_sealed(path)
        except ValueError as error:
            raise DamagedError(self.directory, f"{path} {error}") from error
        except OSError as error:
            raise self._unreadable(path, error) from error

    @property
    def content(self) -> str:
        """Digest of the artifact's content, timings and machine aside."""
        return str(self.record["content"])

    @cached_property
    def _checked(self) -> set[str]:
        return set()

    def _check(self, name: str) -> None:
        """Check a file against the record, once."""
        if name in self._checked:
            return
        path = self.directory / name
        if name not in self.record["files"]:
            raise DamagedError(self.directory, f"{path} is not in {RECORD}")
        try:
            digest = file_digest(path)
        except OSError as error:
            raise self._unreadable(path, error) from error
        if digest != self.record["files"][name]:
            raise DamagedError(self.directory, f"{path} differs from its checksum in {RECORD}")
        if name.endswith(".parquet"):
            self._check_columns(name)
        self._checked.add(name)

    def _check_columns(self, name: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from pipeline.store import columns as known

        path = self.directory / name
        try:
            known.check_schema(
                self.record["stage"], name.removesuffix(".parquet"), pq.read_schema(path), path
            )
        except (pa.ArrowException, PipelineError) as error:
            raise DamagedError(self.directory, str(error)) from error

    def _unreadable(self, path: Path, error: OSError) -> PipelineError:
        if error.errno in GONE:
            return DamagedError(self.directory, f"{path} is missing")
        if error.errno == errno.EIO:
            return DamagedError(self.directory, f"{path} can't be read ({error.strerror})")
        return PipelineError(f"{path} can't be read ({error.strerror or error})")

    def damage(self) -> list[str]:
        """Return what differs from the record, of every file; an empty list when nothing does."""
        found = []
        try:
            names = sorted(self.record["files"])
        except DamagedError as error:
            return [error.reason]
        if not self.directory.name.endswith(f"-{self.record['fingerprint'][:12]}"):
            found.append(f"{self.directory / RECORD} is the record of another artifact")
        for name in names:
            try:
                self._check(name)
            except DamagedError as error:
                found.append(error.reason)
        present = {
            path.relative_to(self.directory).as_posix()
            for path in self.directory.rglob("*")
            if path.is_symlink() or not path.is_dir()
        }
        strangers = sorted(present - set(names) - {RECORD})
        return found + [f"{self.directory / name} is not in {RECORD}" for name in strangers]

    def read(self, name: str = "data", columns: list[str] | None = None) -> pa.Table:
        """Read a Parquet file of the artifact, its checksum and schema checked.

        Raises:
            DamagedError: the file is not what was published.
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
        """Open a checked Parquet file; damage done since is found by the checksums of its pages."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._check(f"{name}.parquet")
        path = self.directory / f"{name}.parquet"
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                yield file
        except (OSError, pa.ArrowException) as error:
            raise DamagedError(self.directory, f"{path} can't be read ({error})") from error


def content_digest(files: Mapping[str, str]) -> str:
    """Return the digest of an artifact's files, by name and checksum."""
    lines = [
        f"{name} {digest}\n"
        for name, digest in sorted(files.items())
        if name.split("/")[0] not in NOT_CONTENT
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()

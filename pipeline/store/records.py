"""The record of an artifact, which lies beside its files."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.store.plain import Plain


@dataclass(frozen=True)
class UpstreamRecord:
    """An artifact that another was made from; `name` is that of its part there."""

    name: str
    stage: str
    label: str
    fingerprint: str
    content: str


@dataclass(frozen=True)
class Record:
    """What an artifact is, what it was made from, and the checksums of its files.

    Attributes:
        stage: that made it.
        label: of its node.
        fingerprint: of its node.
        version: of the stage.
        config: the specification of its node, as plain values.
        upstream: what it was made from.
        content: digest of its files, timings apart.
        files: the checksum of each.
        rows: of each Parquet file.
        artifact_schema: the version of this record and of the columns.
        facts: of the computation, as plain values; see `Artifact.facts`.
    """

    stage: str
    label: str
    fingerprint: str
    version: int
    config: Plain
    upstream: list[UpstreamRecord]
    content: str
    files: dict[str, str]
    rows: dict[str, int]
    artifact_schema: int
    facts: Plain


@dataclass(frozen=True)
class MadeFrom:
    """What an unfinished artifact is made from: its node, and the contents of its upstream."""

    fingerprint: str = ""
    version: int = 0
    upstream: dict[str, str] = field(default_factory=dict)  # content by fingerprint


@dataclass(frozen=True)
class GitState:
    """The commit of this repository, and whether files differ from it; None without a clone."""

    commit: str | None
    dirty: bool | None


@dataclass(frozen=True)
class Environment:
    """The run that made an artifact, and its machine; part of the record, never read again."""

    wall_seconds: float
    argv: list[str]
    versions: dict[str, str]
    platform: str
    git: GitState

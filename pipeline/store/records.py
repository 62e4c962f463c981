"""The record of an artifact, which lies beside its files."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.store.plain import Plain


@dataclass(frozen=True)
class Record:
    """An artifact's node and upstream, and the checksums of its files.

    record.json also holds the run and the machine that made it, which are never read.
    """

    stage: str
    label: str
    fingerprint: str
    version: int  # of the stage
    config: Plain  # the specification
    upstream: list[dict[str, str]]  # name there, stage, label, fingerprint and content of each
    content: str  # digest of the files, timings apart
    files: dict[str, str]  # the checksum of each
    rows: dict[str, int]  # of each Parquet file
    artifact_schema: int  # version of this record and of the columns
    facts: Plain  # of the computation; see `Artifact.facts`


@dataclass(frozen=True)
class MadeFrom:
    """The node of an unfinished artifact, and the contents of its upstream by fingerprint."""

    fingerprint: str = ""
    version: int = 0
    upstream: dict[str, str] = field(default_factory=dict)

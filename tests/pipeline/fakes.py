"""A stage without a model: writes its configuration as a prompts artifact and counts its calls."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pytest

from pipeline.plan.specs import APART
from pipeline import columns
from pipeline.store import Artifact, Out
from pipeline.files import file_digest, write_sealed
from pipeline.stage import Task
from pipeline.plan.plain import As, to_plain
from pipeline.store.records import Record

calls: list[str] = []


def table(text: str) -> pa.Table:
    """One row of the prompts schema."""
    row = {
        "prompt_id": "a",
        "source": "s",
        "source_row": 0,
        "text": text,
        "token_ids": [1],
        "n_tokens": 1,
    }
    return pa.Table.from_pylist([row], schema=columns.schema("prompts"))


@dataclass(frozen=True)
class Plain:
    """A specification of any entries."""

    config: Annotated[dict[str, Any], As(inline=True)]
    noise: Annotated[str, APART] = ""


def compute(node: Task, inputs: Inputs, out: Out) -> None:
    """Write one row; fail half-way when the configuration says so."""
    calls.append(node.label)
    above = [artifact.content for artifacts in upstream.values() for artifact in artifacts]
    if node.spec.config.get("fail"):
        pending.write("data", table("half"))
        raise RuntimeError("killed half-way")
    pending.write("data", table(f"{node.spec.config} {above} {node.spec.noise}"))


def node(label: str, upstream: tuple[Task, ...] = (), **config: Any) -> Task:
    """A node of stage prompts, which the tests map to this module."""
    noise = config.pop("noise", "")
    spec = Plain(config, noise)
    return Node("prompts", label, spec, {"above": upstream} if upstream else {})


def record(folder: Path, stage: str, facts: dict[str, Any] | None = None) -> None:
    """Write a record that makes `folder`, complete but for it, readable as artifact of `stage`."""
    files = {
        path.relative_to(folder).as_posix(): file_digest(path)
        for path in folder.rglob("*")
        if path.is_file()
    }
    made = Record(
        stage, label="", fingerprint="", version=0, config={}, upstream=[], content="", files=files,
        rows={}, artifact_schema=0, facts=facts or {},
    )  # fmt: skip
    write_sealed(folder / "record.json", to_plain(made))


class Syncs:
    """Checks that all is on the disk before it is renamed.

    A file counts as synced when fsync saw its inode after its last change.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Watch from now on."""
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

"""A stage without a model: writes its configuration as a prompts artifact and counts its calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline import columns
from pipeline.artifacts import Artifact, Draft
from pipeline.durable import write_sealed
from pipeline.fingerprint import file_digest
from pipeline.stages import Node

calls: list[str] = []


def table(text: str) -> pa.Table:
    """One row of the prompts schema."""
    row = {
        "prompt_id": "a",
        "source": "s",
        "source_row": 0,
        "text": text,
        "later_turns": [],
        "token_ids": [1],
        "n_tokens": 1,
    }
    return pa.Table.from_pylist([row], schema=columns.schema("prompts"))


def compute(node: Node, upstream: dict[str, list[Artifact]], draft: Draft) -> None:
    """Write one row; fail half-way when the configuration says so."""
    calls.append(node.label)
    above = [artifact.content for artifacts in upstream.values() for artifact in artifacts]
    if node.config.get("fail"):
        draft.write("data", table("half"))
        raise RuntimeError("killed half-way")
    draft.write("data", table(f"{node.config} {above} {node.settings.get('noise', '')}"))


def node(label: str, upstream: tuple[Node, ...] = (), **config: Any) -> Node:
    """A node of stage prompts, which the tests map to this module."""
    settings = {"noise": config.pop("noise", "")}
    return Node("prompts", label, config, {"above": upstream} if upstream else {}, settings)


def record(folder: Path, stage: str, config: dict[str, Any] | None = None, **facts: Any) -> None:
    """Write a record that makes `folder`, complete but for it, readable as artifact of `stage`."""
    files = {
        path.relative_to(folder).as_posix(): file_digest(path)
        for path in folder.rglob("*")
        if path.is_file()
    }
    content = {"stage": stage, "config": config or {}, "content": "", "files": files}
    write_sealed(folder / "record.json", content | {"upstream": [], "facts": facts})

"""Answers as an engine serves them, and the distributions along them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.hub import Identity
from pipeline.plan.specs import FileSpec, ServedPrompts
from pipeline.store.durable import file_digest
from pipeline.store.node import Node
from tests.pipeline import tiny

IDS = [20, 21, 22, 23]
ASKED = {"messages": [{"role": "user", "content": "a question"}], "temperature": 0}


def lines(path: Path, *rows: Any) -> Path:
    path.write_text(
        "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)
    )
    return path


def chat(name: str, ids: list[int] | None, text: str = "ab", **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text},
              "finish_reason": "stop", "token_ids": ids}  # fmt: skip
    return {"id": name, "object": "chat.completion", "model": "m", "choices": [choice | more]}


def node(model: Path, *files: Path, batch: int | None = 4, **changes: Any) -> Node:
    """The distributions along the answers of files."""
    answers = tuple(
        FileSpec(str(file), Identity(content=file_digest(file)), reader=1) for file in files
    )
    drawn = tiny.prompts_node(model, files[0]).spec
    spec = ServedPrompts(Identity(), answers, drawn.settings, target=drawn.target)
    prompts = Node("prompts", "tiny", spec)
    return tiny.dump_node(model, prompts, batch, served=True, **changes)

"""The answers of an engine's log, as prompts: their texts and tokens are not in it."""

from __future__ import annotations

import pyarrow as pa

from pipeline.formats.engine_logs import read_log
from pipeline.plan.stage import Node
from pipeline.store import columns
from pipeline.store.artifacts import Pending
from pipeline.store.identity import local_path


def write_answers(node: Node, pending: Pending) -> None:
    """Write a row for each trajectory of the log."""
    asked = node.config["log"]
    path = local_path(node.settings["source"])
    assert path is not None
    log = read_log(path, asked["part"], 1, asked["error"])
    size = len(log.trajectories)
    table = {
        "prompt_id": [item.prompt_id for item in log.trajectories],
        "source": [path.name] * size,
        "source_row": [item.line for item in log.trajectories],
        "text": [""] * size,
        "later_turns": [[]] * size,
        "token_ids": [[]] * size,
        "n_tokens": [0] * size,
    }
    pending.facts |= {"answers": log.answers, "excluded": log.excluded}
    pending.write("data", pa.table(table, schema=columns.schema("prompts")))

"""A long stage that is stopped in its middle."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.execution import runner
from pipeline.execution.shard_plan import Plan
from pipeline.store.artifacts import Store
from pipeline.store.node import Node


def interrupt(node: Node, store: Store, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Stop a long stage when two of its shards are finished."""
    finish, count = Plan.finish, 0

    def stopping(*arguments: Any) -> None:
        nonlocal count
        finish(*arguments)
        count += 1
        if count == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Plan, "finish", stopping)
        with pytest.raises(KeyboardInterrupt):
            runner.ensure([node], store)
    return Plan.load(store.workspace(node) / "plan.json")

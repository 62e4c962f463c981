"""What is stopped in its middle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pipeline.execution import runner
from pipeline.execution.shard_plan import Plan
from pipeline.stage import Task
from pipeline.store import Store


@contextmanager
def stopped_after(
    calls: int, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Within, a function of `owner` interrupts its caller when its given call has returned."""
    function, made = getattr(owner, name), 0

    def stopping(*arguments: Any) -> Any:
        nonlocal made
        found = function(*arguments)
        made += 1
        if made == calls:
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, stopping)
        with pytest.raises(KeyboardInterrupt):
            yield


def interrupt(node: Task, store: Store, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Stop a long stage when two of its shards are finished."""
    with stopped_after(2, Plan, "finish", monkeypatch):
        runner.ensure([node], store)
    return Plan.load(store.workspace(node) / "plan.json")

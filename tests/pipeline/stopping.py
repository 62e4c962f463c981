"""What is stopped in its middle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline import shards
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


def interrupt(task: Task, store: Store, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stop a long stage when two of its shards are finished; return its workspace."""
    with stopped_after(2, shards, "write_checked", monkeypatch):
        store.get(task)
    [work] = (store.root / task.stage.name).glob(f".{task.key[:12]}.*.partial")
    return work

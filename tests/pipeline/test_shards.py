"""Shards whose writing is left for later: overlap, order, errors, and what a stop leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from pipeline.execution.shard_plan import Plan, Shard, at_most
from pipeline.execution.shards import Compute, compute_unfinished, join, write_groups
from pipeline.store import columns
from pipeline.store.artifacts import Pending
from tests.pipeline import fakes

SCHEMA = columns.schema("prompts")
PROMPTS = ["c", "a", "d", "b"]


def table(name: str) -> pa.Table:
    row = {"prompt_id": name, "source": "s", "source_row": 0, "text": name, "token_ids": [1],
           "n_tokens": 1}  # fmt: skip
    return pa.Table.from_pylist([row], schema=SCHEMA)


def run(folder: Path, compute: Compute) -> list[str]:
    folder.mkdir(exist_ok=True)
    pending = Pending(folder, "prompts")
    plan = Plan.open(pending, dict.fromkeys(PROMPTS, 1), at_most(1))
    compute_unfinished(plan, compute, steps=1, label="test", device=torch.device("cpu"))
    join(plan, sorted(PROMPTS), pending, SCHEMA)
    return pq.read_table(folder / "data.parquet")["prompt_id"].to_pylist()


def later(finish: Callable[[str], None]) -> Compute:
    """Return a Compute that leaves everything for later; `finish` is called before the writing."""

    def compute(shard: Shard, path: Path, progress: Callable[[int], object]) -> Any:
        def write() -> dict[str, Any]:
            finish(shard.prompts[0])
            write_groups(path, map(table, shard.prompts), SCHEMA)
            return {"rows": 1}

        return write

    return compute


def test_one_shard_is_written_while_the_next_is_computed(tmp_path: Path) -> None:
    """Were writing not beside computing, the first barrier would break; were more than one shard
    waiting, the third would begin before the first is finished."""
    both, finished = threading.Barrier(2, timeout=20), []

    def compute(shard: Shard, path: Path, progress: Callable[[int], object]) -> Any:
        at = PROMPTS.index(shard.prompts[0])
        assert len(finished) >= at - 1
        if at == 1:
            both.wait()

        def write() -> dict[str, Any]:
            if at == 0:
                both.wait()
            write_groups(path, map(table, shard.prompts), SCHEMA)
            finished.append(at)
            return {}

        return write

    assert run(tmp_path, compute) == sorted(PROMPTS)
    assert finished == [0, 1, 2, 3]


def test_error_while_writing_stops_the_run_and_keeps_what_was_finished(tmp_path: Path) -> None:
    calls: list[str] = []

    def failing(name: str) -> None:
        calls.append(name)
        if name == "a":
            raise ValueError("the disk is full")

    with pytest.raises(ValueError, match="the disk is full"):
        run(tmp_path, later(failing))
    assert calls[:2] == ["c", "a"]
    assert "b" not in calls  # computed, if at all, after the error was known
    assert (tmp_path / "shards" / "0000.shard").exists()
    assert not (tmp_path / "shards" / "0001.shard").exists()
    before, calls[:] = set(calls) - {"a"}, []
    assert run(tmp_path, later(calls.append)) == sorted(PROMPTS)
    assert not before & set(calls)


def test_stopped_run_finishes_the_shard_it_is_writing(tmp_path: Path) -> None:
    writing = threading.Event()

    def compute(shard: Shard, path: Path, progress: Callable[[int], object]) -> Any:
        if shard.prompts == ["a"]:
            assert writing.wait(20)
            raise KeyboardInterrupt
        return later(lambda _: writing.set())(shard, path, progress)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, compute)
    assert [path.name for path in (tmp_path / "shards").iterdir()] == ["0000.shard"]


def test_a_shard_and_the_plan_are_on_the_disk_before_they_get_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = fakes.Syncs(monkeypatch)
    run(tmp_path, later(lambda _: None))
    names = {path.name for path in watch.named}
    assert names == {"plan.json", "0000.shard", "0001.shard", "0002.shard", "0003.shard"}
    watch.check_directories()

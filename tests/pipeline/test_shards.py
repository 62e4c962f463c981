"""Shards: their order, and what an error or a stop leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from pipeline.execution import shard_plan
from pipeline.execution.shard_plan import Plan, Shard, at_most
from pipeline.execution.shards import Compute, compute_unfinished, join, write_groups
from pipeline import columns
from pipeline.store import Pending
from pipeline.files import file_digest, put
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


def noting(begin: Callable[[str], None]) -> Compute:
    """Return a Compute that calls `begin` with its prompt before it writes."""

    def compute(shard: Shard, path: Path, _: Callable[[int], object]) -> dict[str, Any]:
        begin(shard.prompts[0])
        write_groups(path, map(table, shard.prompts), SCHEMA)
        return {"rows": 1}

    return compute


def test_error_while_writing_stops_the_run_and_keeps_what_was_finished(tmp_path: Path) -> None:
    calls: list[str] = []

    def failing(name: str) -> None:
        calls.append(name)
        if name == "a":
            raise ValueError("the disk is full")

    with pytest.raises(ValueError, match="the disk is full"):
        run(tmp_path, noting(failing))
    assert calls == ["c", "a"]
    assert (tmp_path / "shards" / "0000.shard").exists()
    assert not (tmp_path / "shards" / "0001.shard").exists()
    calls.clear()
    assert run(tmp_path, noting(calls.append)) == sorted(PROMPTS)
    assert calls == ["a", "d", "b"]


def test_a_shard_and_the_plan_are_on_the_disk_before_they_get_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = fakes.Syncs(monkeypatch)
    run(tmp_path, noting(lambda _: None))
    names = {path.name for path in watch.named}
    assert names == {"plan.json", "0000.shard", "0001.shard", "0002.shard", "0003.shard"}
    watch.check_directories()


def test_the_plan_on_the_disk_knows_a_shard_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in between, a run never leaves a whole shard that the next one takes for foreign."""
    seen = []

    def watched(beside: Path, path: Path) -> None:
        [shard] = [
            planned
            for planned in Plan.load(tmp_path / "plan.json").shards
            if planned.name == path.stem
        ]
        seen.append(shard.checksum == file_digest(beside))
        put(beside, path)

    monkeypatch.setattr(shard_plan, "put", watched)
    run(tmp_path, noting(lambda _: None))
    assert seen == [True] * 4


def test_halves_come_in_the_order_of_the_prompts_the_longer_ones_first(tmp_path: Path) -> None:
    lengths = {"c": 9, "a": 7, "d": 5, "b": 3, "e": 1}
    plan = Plan.open(Pending(tmp_path, "prompts"), lengths, at_most(5))
    assert [half.prompts for half in plan.halve(plan.shards[0])] == [["c", "a", "d"], ["b", "e"]]
    first, second = plan.shards
    plan.halve(second)
    plan.halve(first)
    names = {"0000aa": ["c", "a"], "0000ab": ["d"], "0000ba": ["b"], "0000bb": ["e"]}
    for read in (plan, Plan.load(plan.path)):
        assert {shard.name: shard.prompts for shard in read.shards} == names
        assert [shard.name for shard in read.shards] == list(names)

"""Shards: finished ones are taken by their owner alone, whatever directory they lie in."""

import hashlib
import json
import re
import shutil
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.errors import PipelineError
from pipeline.core.files import BLANK, SEAL, read_sealed
from pipeline.core.shards import _finished, _keep, nested, write_tables
from pipeline.core.stage import Out
from pipeline.core.store import Store
from pipeline.core.timings import Asked
from tests.pipeline import toy
from tests.pipeline.toy import LOG, tasks


@pytest.fixture
def log(tmp_path, monkeypatch):
    monkeypatch.setenv(LOG, str(tmp_path / "log"))
    return tmp_path / "log"


def interrupted(root, task):
    """A store in which a task was killed when all its shards were finished; its workspace."""
    store = Store(root)

    def compute(*arguments):
        toy.steps(*arguments)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.get(replace(task, stage=replace(task.stage, compute=compute)))
    [work] = (root / "steps").glob(f".{task.key[:12]}.*partial")
    return store, work


def other_settings(task):
    return replace(task, settings={"steps": 4})


def other_version(task):
    return replace(task, stage=replace(task.stage, version=2))


def other_prompts(_):
    return tasks(noise=1)[1]


def other_timings(task):
    return replace(task, asked=Asked(None, 2))


OWNERS = [other_settings, other_version, other_prompts, other_timings]


@pytest.mark.parametrize("change", OWNERS)
def test_a_shard_of_another_workspace_is_computed_again(change, tmp_path, log, capsys):
    """Both have the same names of items, and so of files."""
    task = tasks()[1]
    store, work = interrupted(tmp_path / "one", task)
    _, other = interrupted(tmp_path / "other", change(task))
    names = sorted(path.name for path in (work / "shards").iterdir())
    assert names == sorted(path.name for path in (other / "shards").iterdir())
    shutil.copy(other / "shards" / names[0], work / "shards" / names[0])
    log.unlink()
    capsys.readouterr()
    made = store.get(task)
    assert len(log.read_text().splitlines()) == 1  # the others are its own
    told = capsys.readouterr().out
    assert f"{work / 'shards' / names[0]}: of another artifact, computed again" in told
    assert made.content == Store(tmp_path / "fresh").get(task).content


def test_a_shard_of_version_1_0_is_computed_again(tmp_path, log, capsys):
    """It had a line with a checksum, a line of JSON, and rows."""
    task = tasks()[1]
    store, work = interrupted(tmp_path / "one", task)
    shard = sorted((work / "shards").iterdir())[1]
    header = {"owner": {"key": task.key}, "names": ["p1", "p0"], "measured": {"rows": 6}}
    content = f"{json.dumps(header)}\n".encode() + shard.read_bytes()
    shard.write_bytes(f"{hashlib.sha256(content).hexdigest()}\n".encode() + content)
    log.unlink()
    capsys.readouterr()
    store.get(task)
    assert len(log.read_text().splitlines()) == 1
    assert f"damaged: {shard}: computed again" in capsys.readouterr().out


def test_a_shard_is_parquet_that_says_what_it_is(tmp_path, log):
    task = tasks()[1]
    _, work = interrupted(tmp_path / "one", task)
    [path] = [shard.path for shard in _finished(work / "shards") if shard.names == ["p1", "p0"]]
    table = pq.read_table(path, page_checksum_verification=True)
    assert table.schema.names == task.stage.schema().names
    assert table["prompt_id"].to_pylist() == ["p1"] * 3 + ["p0"] * 3
    metadata = pq.read_metadata(path).metadata
    assert json.loads(metadata[b"names"]) == ["p1", "p0"]
    assert json.loads(metadata[b"measured"]) == {"rows": 6}
    assert json.loads(metadata[b"owner"])["key"] == task.key


def test_any_byte_of_a_shard_that_differs_is_found(tmp_path, log):
    _, work = interrupted(tmp_path / "one", tasks()[1])
    [path, *_] = (work / "shards").iterdir()
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content)
        toy.flip(path, at)
        assert read_sealed(path) is None, at
    for changed in (content[:-1], content + b"\0", b""):
        path.write_bytes(changed)
        assert read_sealed(path) is None
    path.write_bytes(content)
    assert read_sealed(path) == content


def test_a_shard_damaged_after_it_was_found_is_not_read(tmp_path, log):
    """By the checksums of its pages, when its rows are read."""
    _, work = interrupted(tmp_path / "one", tasks()[1])
    [shard, *_] = _finished(work / "shards")
    content = shard.path.read_bytes()
    toy.flip(shard.path, content.index(shard.names[0].encode()))
    with pytest.raises(PipelineError, match=re.escape(str(shard.path))), shard.open() as file:
        file.read()
    assert len(list(_finished(work / "shards"))) == 2


def test_items_named_as_the_checksum_is_are_no_hindrance(tmp_path):
    name = SEAL + BLANK
    kept = _keep(tmp_path, {}, [name], ({}, [pa.table({"prompt_id": [name]})]))
    [found] = _finished(tmp_path)
    assert (found, found.names) == (kept, [name])


def test_rows_of_several_tables_come_back_as_they_were(tmp_path):
    """Nulls, NaN, and an item without rows in a table included."""
    kinds = {"prompt_id": "string", "value": "float64", "token_ids": "list<int32>"}
    made = toy.stage(toy.steps, data=kinds, failures={"prompt_id": "string", "reason": "string"})
    rows = [
        {"prompt_id": "p0", "value": 1, "token_ids": []},
        {"prompt_id": "p0", "value": None, "token_ids": (3, 4)},
        {"prompt_id": "p1", "value": -0.1, "token_ids": None},
    ]
    items = [
        {"data": rows[:2], "of another stage": [{"x": 1}]},
        {"failures": [{"prompt_id": "p2", "reason": "none"}]},
        {"data": rows[2:], "failures": []},
    ]
    task = replace(tasks()[1], stage=made)
    shards = [
        _keep(tmp_path, {}, [f"p{at}"], ({}, [nested(made, item)])) for at, item in enumerate(items)
    ]
    out = Out(made, tmp_path, tmp_path)
    write_tables(task, out, shards, "prompt")
    assert out.rows == {"data": 3, "failures": 1}
    wanted = pa.Table.from_pylist(rows, made.schema())
    assert pq.read_table(tmp_path / "data.parquet").equals(wanted)
    meanings = [field.metadata for field in pq.read_schema(tmp_path / "data.parquet")]
    assert meanings == [field.metadata for field in made.schema()]

"""The store: found by meaning, published whole, checked when read, mended; its columns."""

import errno
import multiprocessing
import os
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from filelock import FileLock

from pipeline import verify
from pipeline.core import stage as stage_module
from pipeline.core import store as store_module
from pipeline.core.columns import Column, check_schema
from pipeline.core.errors import DamagedError, PipelineError
from pipeline.core.files import digest, json_digest
from pipeline.core.stage import Artifact
from pipeline.core.store import Store
from pipeline.study import STAGES
from tests.pipeline import toy
from tests.pipeline.toy import PROMPTS, Syncs, flip, tasks

ALL = ["prompts", "shard", "shard", "shard", "totals"]


def log(store):
    """What was computed since the last call."""
    path = store.root.parent / "log"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return [line.split()[0] for line in lines]


def remove(store, task):
    shutil.rmtree(store.find(task).directory)


def test_a_key_is_of_meaning_and_not_of_order_label_or_runtime():
    assert json_digest({"a": 1, "b": [1.5, None]}) == json_digest({"b": (1.5, None), "a": 1})
    assert json_digest({"a": 1}) != json_digest({"a": 1.5})
    assert tasks(label="x", batch=3)[-1].key == tasks(label="y")[-1].key
    assert len({task.key for task in (*tasks(), *tasks(5))}) == 6
    with pytest.raises(ValueError, match="JSON"):
        json_digest({"key": float("nan")})


def test_computed_once_and_found_under_another_label(store):
    first = store.get(tasks(label="a")[-1])
    assert log(store) == ALL
    assert store.get(tasks(label="b")[-1]).directory == first.directory
    assert log(store) == []
    assert store.get(tasks(5)[-1]).directory != first.directory
    assert first.record["rows"] == {"data": 1, "timings/runs": 1}
    assert {"git", "versions", "argv", "platform", "wall_seconds"} <= first.record.keys()
    steps = store.get(tasks()[1])
    assert steps.metadata == {"counted": 18, "engine": "inline", "shards": 3, "batch": 2}
    assert steps.read().schema.field("value").metadata == {b"meaning": b"of data"}


def test_content_leaves_timings_out(store, tmp_path):
    one, other = store.get(tasks()[-1]), Store(tmp_path / "other")
    process = multiprocessing.get_context("fork").Process(target=other.get, args=(tasks()[-1],))
    process.start()
    process.join()
    there = other.find(tasks()[-1])
    assert there.content == one.content
    assert there.record["files"] != one.record["files"]


def test_an_input_rebuilt_with_other_content_makes_stale(store):
    first, _, third = tasks()
    store.get(third)
    log(store)
    remove(store, first)
    store.get(third)  # a deleted input is not needed
    assert log(store) == []
    store.get(first)  # rebuilt with the same content
    assert store.fresh(third)
    assert store.missing([third]) == []
    remove(store, first)
    log(store)
    store.get(tasks(noise=1)[0])
    assert not store.fresh(third)  # though what is directly above it is as it was
    assert [task.stage.name for task in store.missing([third])] == ["steps", "totals"]
    store.get(third)
    assert log(store) == ALL
    assert not list(store.root.rglob(".*partial"))


@pytest.mark.parametrize("replaced", [True, False])
def test_an_input_that_another_process_moves_is_read_again(store, replaced):
    """A run that replaces it by other content, or verify, which sets it aside."""
    first, second, _ = tasks()
    count = list[int]()

    def meanwhile(*arguments):
        count.append(1)
        if len(count) == 1:
            remove(store, first)
            if replaced:
                store.get(tasks(noise=1)[0])
        toy.steps(*arguments)

    made = store.get(replace(second, stage=replace(second.stage, compute=meanwhile)))
    assert len(count) == 2
    assert made.record["inputs"] == {"prompts": store.find(first).content}
    assert not list(store.root.rglob(".*partial"))


def test_finished_shards_are_those_of_the_same_inputs(store, tmp_path):
    first, second, _ = tasks()

    def interrupted(*arguments):
        toy.steps(*arguments)
        raise KeyboardInterrupt

    stopped = replace(second, stage=replace(second.stage, compute=interrupted))
    with pytest.raises(KeyboardInterrupt):
        store.get(stopped)
    kept = shutil.copytree(store.root, tmp_path / "kept")
    log(store)
    assert len(list(store.root.rglob("*.shard"))) == 3
    store.get(second)
    assert log(store) == []
    other = Store(kept)
    remove(other, first)
    made = other.get(tasks(noise=1)[1])
    assert log(store) == ["prompts", *["shard"] * 3]
    assert made.content == Store(tmp_path / "fresh").get(tasks(noise=1)[1]).content
    assert not list(other.root.rglob(".*partial"))


def test_verify_names_what_it_can_not_set_aside(store, monkeypatch, capsys):
    def refused(*_):
        raise OSError(errno.EROFS, "Read-only file system", ".locks/moving.lock")

    monkeypatch.setattr(verify, "STAGES", {"prompts": PROMPTS})
    data = store.get(tasks()[0]).directory / "data.parquet"
    flip(data)
    outputs = store.root.parent
    with monkeypatch.context() as patch:
        patch.setattr(Store, "lock", refused)
        assert verify.main([str(outputs)]) == 1
    told = capsys.readouterr()
    assert f"damaged, not set aside: {data} is not what was written (Read-only" in told.err
    assert verify.main([str(outputs)]) == 1
    assert verify.main([str(outputs)]) == 0
    assert "0 artifacts verified, 0 damaged; 0 unfinished" in capsys.readouterr().out


DAMAGES = {
    "a bit": lambda data, _: flip(data),
    "missing": lambda data, _: data.unlink(),
    "added": lambda data, _: (data.parent / "more.parquet").write_bytes(data.read_bytes()),
    "record: a bit": lambda _, record: flip(record),
    "record: a blank": lambda _, record: record.write_text(record.read_text() + "\n"),
    "record: no text": lambda _, record: record.write_bytes(b"\xff\xfe"),
    "record: a list": lambda _, record: record.write_text("[]"),
    "record: missing": lambda _, record: record.unlink(),
}


def replace_by(make):
    """A damage: something else lies in the place of a file."""

    def damage(path, _):
        path.unlink()
        make(path)

    return damage


DAMAGES |= {
    "a folder": replace_by(Path.mkdir),
    "a FIFO": replace_by(os.mkfifo),
    "a circle of links": replace_by(lambda path: path.symlink_to(path.name)),
    "a link to nothing": replace_by(lambda path: path.symlink_to("nothing")),
    "a FIFO added": lambda data, _: os.mkfifo(data.with_name("more.parquet")),
    "record: a FIFO": lambda _, record: replace_by(os.mkfifo)(record, _),
    "record: a folder": lambda _, record: replace_by(Path.mkdir)(record, _),
    "record: a circle": lambda _, record: replace_by(lambda p: p.symlink_to(p.name))(record, _),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_found_set_aside_and_mended(store, kind, capsys):
    first, second, _ = tasks()
    made = store.get(first)
    for times, reader in enumerate((first, second), 1):
        log(store)
        DAMAGES[kind](made.directory / "data.parquet", made.directory / "record.json")
        store.get(reader)
        assert log(store)[0] == "prompts"
        [said] = [line for line in capsys.readouterr().out.splitlines() if "set aside" in line]
        assert str(made.directory) in said
        assert store.find(first).content == made.content
        assert len(list((store.root / "damaged").iterdir())) == times


@pytest.mark.parametrize("make", [
    Path.touch, os.mkfifo, lambda path: path.symlink_to("nothing"),
    lambda path: path.symlink_to(path.name),
])  # fmt: skip
def test_what_lies_in_the_place_of_an_artifact_is_moved_aside(store, make, monkeypatch, capsys):
    first, second, _ = tasks()
    monkeypatch.setattr(verify, "STAGES", {"prompts": PROMPTS})
    place = store.get(first).directory
    for reader in (first, second, None):
        shutil.rmtree(place)
        make(place)
        if reader is None:
            assert verify.main([str(store.root.parent)]) == 1
        else:
            store.get(reader)
        [said] = [line for line in capsys.readouterr().out.splitlines() if "set aside" in line]
        assert str(place) in said
    assert len(list((store.root / "damaged").iterdir())) == 3
    store.get(first).check()


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo, lambda path: path.symlink_to(path.name)])
@pytest.mark.parametrize("name", ["", "shards", "artifact", "shards/0.shard", "shards/1.tmp"])
def test_what_lies_in_the_place_of_a_workspace_is_removed(store, name, make):
    task = tasks()[1]
    above = store.get(tasks()[0])
    of_inputs = digest(above.content.encode())[:8]
    work = store.root / "steps" / f".{task.key[:12]}.{of_inputs}.v1.partial"
    (work / name).parent.mkdir(parents=True)
    make(work / name)
    store.get(task).check()
    assert not list(store.root.rglob(".*partial"))


def test_a_folder_among_shards_is_removed(store, capsys):
    task = tasks()[1]
    of_inputs = digest(store.get(tasks()[0]).content.encode())[:8]
    work = store.root / "steps" / f".{task.key[:12]}.{of_inputs}.v1.partial" / "shards"
    for name in ("0.shard", "1.tmp", "2"):
        (work / name / "inside").mkdir(parents=True)
    store.get(task).check()
    assert "0.shard: computed again" in capsys.readouterr().out
    assert not list(store.root.rglob(".*partial"))


def interrupted_workspace(store, task):
    def compute(*arguments):
        toy.steps(*arguments)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.get(replace(task, stage=replace(task.stage, compute=compute)))
    [work] = (store.root / task.stage.name).glob(f".{task.key[:12]}.*.partial")
    return work


def test_workspaces_that_no_run_goes_on_with_are_removed(store, capsys):
    """Of another version at once, of other settings when they have lain for long."""
    task, other = tasks()[1], tasks(5)[1]
    newer = replace(task, stage=replace(task.stage, version=2))
    old, waiting = interrupted_workspace(store, task), interrupted_workspace(store, other)
    for work in [old, waiting]:
        assert work in store.remove_abandoned(task.stage)
    waiting = waiting.rename(str(waiting).replace(".v1.", ".v2."))
    with FileLock(store.root / ".locks" / f"steps-{task.key[:12]}.lock"):
        assert old in store.remove_abandoned(newer.stage)  # another process works there
    store.get(newer)
    assert not old.exists()
    assert waiting.exists()
    assert f"removed: {old}" in capsys.readouterr().out
    days = store_module.ABANDONED * store_module.DAY
    for age, stays in ((days - 60, True), (days + 60, False)):
        for path in [waiting, *waiting.rglob("*")]:
            os.utime(path, times=(0, time.time() - age))
        store.remove_abandoned(newer.stage)
        assert waiting.exists() == stays


def test_verify_takes_the_key_outputs_and_names_what_it_does_not_take(
    store, monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(verify, "STAGES", {"prompts": PROMPTS})
    store.get(tasks()[0])
    outputs = str(store.root.parent)
    for words in ([f"outputs={outputs}"], [f"outputs='{outputs}'"], [outputs]):
        assert verify.main(words) == 0
        assert "1 artifacts verified, 0 damaged; 0 unfinished" in capsys.readouterr().out
    for words, named in (
        ([outputs, "study=mini"], "study=mini"),
        (["study=mini", f"outputs={outputs}"], "study=mini"),
        (["study=mini"], "study=mini"),
        ([f"outputs={outputs}", "elsewhere"], "elsewhere"),
        ([outputs, outputs], outputs),
        ([f"outputs={tmp_path}/nowhere"], f"{tmp_path}/nowhere/artifacts"),
        (["outputs="], "outputs=''"),
    ):
        with pytest.raises(SystemExit, match=f"error: {re.escape(named)}[: ]"):
            verify.main(words)


def test_verify_goes_on_behind_what_can_not_be_read(store, monkeypatch, capsys):
    monkeypatch.setattr(verify, "STAGES", {"prompts": PROMPTS, "steps": toy.STEPS})
    data = [store.get(task).directory / "data.parquet" for task in tasks()[:2]]
    flip(data[1])
    read = stage_module.file_digest

    def denied(path):
        if path == data[0]:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(stage_module, "file_digest", denied)
    assert verify.main([str(store.root.parent)]) == 1
    told = capsys.readouterr()
    assert f"{data[0]} can't be read (Permission denied)" in told.err
    assert f"damaged: {data[1]}" in told.out
    assert "0 artifacts verified, 1 damaged, 1 unreadable" in told.out


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOLCK, "has no locks: give outputs="),
        (errno.EOPNOTSUPP, "has no locks: give outputs="),
        (errno.EROFS, "give outputs=DIRECTORY, one that you may write to"),
        (errno.EACCES, "give outputs=DIRECTORY, one that you may write to"),
        (errno.ENOSPC, "free space"),
    ],
)
def test_where_nothing_can_be_written_the_remedy_is_said_and_damage_named(
    store, number, remedy, monkeypatch
):
    data = store.get(tasks()[0]).directory / "data.parquet"

    def refused(self, *_, **__):
        raise OSError(number, os.strerror(number), self.lock_file)

    monkeypatch.setattr(FileLock, "acquire", refused)
    with pytest.raises(PipelineError, match=f"steps toy: can't write below .*{remedy}"):
        store.get(tasks()[1])
    flip(data)
    with pytest.raises(PipelineError, match=f"damaged, not set aside: {data} .*{remedy}"):
        store.get(tasks()[1])


def test_a_disk_that_damages_all_it_is_given_is_named(store, monkeypatch):
    publish = Store._publish

    def damaging(*arguments):
        artifact = publish(*arguments)
        flip(artifact.directory / "data.parquet")
        return artifact

    monkeypatch.setattr(Store, "_publish", damaging)
    with pytest.raises(PipelineError, match=r"after 3 rebuilds: check the disk"):
        store.get(tasks()[1])


def test_all_is_on_the_disk_before_it_gets_its_name(store, monkeypatch):
    watch = Syncs(monkeypatch)
    artifact = store.get(tasks()[1])
    assert watch.named[-1] == artifact.directory
    assert sum(path.suffix == ".shard" for path in watch.named) == 3
    watch.check_directories()


def test_records_that_changed_places_are_damaged(store):
    two = (tasks()[0], tasks(5)[0])
    one, other = (store.get(task).directory for task in two)
    wanted = [store.get(task).content for task in two]
    one.rename(one.with_name("third"))
    other.rename(one)
    one.with_name("third").rename(other)
    for task in two:
        with pytest.raises(DamagedError, match=r"record\.json is of another"):
            store.fresh(task)
    assert [store.get(task).content for task in two] == wanted


def test_what_fails_leaves_nothing(store, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "write_json", full)
        with pytest.raises(PipelineError, match="can't write below"):
            store.get(tasks()[0])
    with pytest.raises(RuntimeError, match="half-way"):
        store.get(tasks(fail=True)[-1])
    assert not list((store.root / "prompts").iterdir())
    store.get(tasks()[0])
    with pytest.raises(PipelineError, match="p5 alone does not fit into the memory"):
        store.get(tasks(fits=0)[-1])


def test_a_process_waits_for_who_computes_and_locks_nothing_complete(store):
    task = tasks()[0]
    (store.root / ".locks").mkdir(parents=True)
    with FileLock(store.root / ".locks" / f"prompts-{task.key[:12]}.lock"):
        waiter = multiprocessing.get_context("fork").Process(target=store.get, args=(task,))
        waiter.start()
        waiter.join(0.3)
        assert waiter.is_alive()
    waiter.join(10)
    assert waiter.exitcode == 0
    with FileLock(store.root / ".locks" / f"prompts-{task.key[:12]}.lock"):
        store.get(task)


def test_every_column_has_a_meaning_and_optional_ones_may_be_missing():
    for stage in STAGES.values():
        for name, columns in stage.tables.items():
            assert all(column.meaning.strip() for column in columns.values())
            fields = stage.schema(name)
            there = pa.schema([field for field in fields if not columns[field.name].optional])
            check_schema(columns, there, Path("x"))
            for field in fields:  # lists have no fixed length
                assert not pa.types.is_fixed_size_list(field.type)


def test_other_columns_and_types_are_refused(store):
    made = store.get(tasks()[1])
    with pytest.raises(DamagedError, match="columns"):
        Artifact(made.directory, {"data": {"step": Column("int32", "")}}).read()
    stage = STAGES["certificates"]
    good, columns = stage.schema(), stage.tables["data"]
    check_schema(columns, good, Path("x"))
    other = good.set(good.get_field_index("lower"), pa.field("lower", pa.float32()))
    for wrong in (good.remove(0), other, pa.schema([*good][::-1])):
        with pytest.raises(ValueError, match=r"x has the columns .*, expected"):
            check_schema(columns, wrong, Path("x"))

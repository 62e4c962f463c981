"""The store: found by meaning, published whole, checked when read, computed once."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from filelock import FileLock

from pipeline import verify
from pipeline.errors import CLOSED, DamagedError, PipelineError
from pipeline.execution import runner
from pipeline.stages import prompts
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.durable import read_sealed, sync
from pipeline.store.node import fingerprint
from tests.pipeline import fakes

FAKED = replace(prompts.STAGE, module="tests.pipeline.fakes")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(prompts, "STAGE", FAKED)
    fakes.calls.clear()
    return Store(tmp_path)


def test_fingerprint_is_of_meaning_and_not_of_order_or_label() -> None:
    assert fingerprint({"a": 1, "b": [1.5, None]}) == fingerprint({"b": (1.5, None), "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 1.5})
    assert fakes.node("x", t=1).fingerprint == fakes.node("y", t=1, noise="z").fingerprint
    # the value pins the format: changing it orphans every artifact anyone has
    assert fingerprint({"a": 1})[:12] == "015abd7f5cc5"


@pytest.mark.parametrize("value", [{1, 2}, object(), float("nan"), {1: 2}, b"x"])
def test_what_has_no_deterministic_form_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="can't be fingerprinted"):
        fingerprint({"key": value})


def test_computed_once_and_found_under_another_label(store: Store) -> None:
    first = runner.ensure([fakes.node("a", t=1)], store)[0]
    again = runner.ensure([fakes.node("b", t=1)], store)[0]
    other = runner.ensure([fakes.node("a", t=2)], store)[0]
    assert fakes.calls == ["a", "a"]
    assert first.directory == again.directory != other.directory
    assert first.record.rows == {"data": 1}


def test_failure_leaves_nothing(store: Store) -> None:
    with pytest.raises(RuntimeError):
        runner.ensure([fakes.node("a", fail=True)], store)
    assert not list((store.root / "prompts").iterdir())


def test_what_a_kill_left_is_removed_by_the_next_run(store: Store) -> None:
    node = fakes.node("a")
    pending = store.pending(node)  # killed while it was made
    (pending.directory / "leftover.parquet").write_bytes(b"old")
    artifact = runner.ensure([node], store)[0]
    assert set(artifact.record.files) == {"data.parquet"}
    store.workspace(node).mkdir()  # killed when it had just been published
    runner.ensure([node], store)
    assert list((store.root / "prompts").iterdir()) == [artifact.directory]
    assert fakes.calls == ["a"]


def test_verify_removes_what_a_kill_left_but_not_finished_shards(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = {name: fakes.node(name, t=at) for at, name in enumerate(("bare", "half", "shards"))}
    for name, node in nodes.items():
        pending = store.pending(node)
        (pending.directory / "leftover.parquet").write_bytes(b"old")
        if name != "bare":
            (pending.workspace / "shards").mkdir()
            (pending.workspace / "shards" / "0001.ab.tmp").write_bytes(b"half-written")
    (store.workspace(nodes["shards"]) / "shards" / "0000.shard").write_bytes(b"finished")
    root = store.root / "artifacts"
    root.mkdir()
    (store.root / "prompts").rename(root / "prompts")
    with FileLock(mkdir(root / ".locks") / "prompts-0123456789ab.lock"):  # someone computes
        assert verify.main([str(store.root)]) == 0
    assert capsys.readouterr().out == "0 artifacts verified, 0 damaged; 3 unfinished\n"
    assert len(list(root.rglob("*.tmp"))) == 2
    assert verify.main([str(store.root)]) == 0
    assert capsys.readouterr().out == "0 artifacts verified, 0 damaged; 1 unfinished\n"
    kept = [path for path in (root / "prompts").rglob("*") if path.is_file()]
    assert [path.name for path in kept] == ["0000.shard"]


def mkdir(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    return path


def test_what_verify_prints_into_a_closed_pipe_is_no_damage(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Store, "set_aside", raising(BrokenPipeError()))
    (store.root / "artifacts").mkdir()
    with pytest.raises(SystemExit) as end:
        verify.main([str(store.root)])
    assert end.value.code == CLOSED
    assert capsys.readouterr().err == ""


def raising(error: Exception) -> Any:
    def function(*_: object) -> None:
        raise error

    return function


def test_a_sync_that_fails_names_the_file() -> None:
    with pytest.raises(OSError, match=r"Invalid argument: '/dev/null'"):
        sync(Path(os.devnull))


def test_rebuilt_upstream_with_other_content_makes_downstream_stale(store: Store) -> None:
    low = fakes.node("low", t=1)
    middle = fakes.node("middle", (low,), t=2)
    top = fakes.node("top", (middle,), t=3)
    made = runner.ensure([top], store)[0]
    assert fakes.calls == ["low", "middle", "top"]
    assert made.record.upstream[0]["fingerprint"] == middle.fingerprint
    assert made.record.config == {"t": 3}
    assert {"git", "versions", "argv", "platform", "wall_seconds"} <= set(
        read_sealed(made.directory / "record.json")
    )
    shutil.rmtree(store.find(low).directory)  # type: ignore[union-attr]
    runner.ensure([top], store)  # a deleted upstream is not needed
    assert fakes.calls == ["low", "middle", "top"]
    runner.ensure([low], store)  # rebuilt with the same content
    assert store.fresh(top)
    shutil.rmtree(store.find(low).directory)  # type: ignore[union-attr]
    other = fakes.node("low", t=1, noise="other BLAS")
    runner.ensure([other], store)
    assert not store.fresh(top)  # though what is directly above it is as it was
    runner.ensure([top], store)
    assert fakes.calls == ["low", "middle", "top", "low", "low", "middle", "top"]


def test_an_upstream_replaced_while_it_is_read_is_read_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    low = fakes.node("low", t=1)
    top = fakes.node("top", (low,), t=2)
    runner.ensure([low], store)
    compute = fakes.compute

    def replacing(node: Any, *arguments: Any) -> None:
        compute(node, *arguments)
        if fakes.calls.count("top") == 1 and node.label == "top":  # another process, meanwhile
            shutil.rmtree(store.find(low).directory)  # type: ignore[union-attr]
            runner.ensure([fakes.node("low", t=1, noise="other BLAS")], store)

    published, publish = list[str](), Store.publish

    def noted(*given: Any) -> Any:
        published.append(given[1].label)
        return publish(*given)

    monkeypatch.setattr(fakes, "compute", replacing)
    monkeypatch.setattr(Store, "publish", noted)
    made = runner.ensure([top], store)[0]
    assert fakes.calls == ["low", "top", "low", "top"]
    assert published == ["low", "top"]  # what was made from both contents never was
    assert made.record.upstream[0]["content"] == store.find(low).content  # type: ignore[union-attr]


def flip(path: Path, at: int | None = None) -> None:
    """Change one bit in the middle of a file, or at a place; its times and inode stay."""
    state = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 1
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def damages(directory: Path) -> dict[str, Any]:
    data, record = directory / "data.parquet", directory / "record.json"
    return {
        "a byte": lambda: flip(data),
        "truncated": lambda: data.write_bytes(data.read_bytes()[:-9]),
        "empty": lambda: data.write_bytes(b""),
        "missing": data.unlink,
        "added": lambda: (directory / "more.parquet").write_bytes(data.read_bytes()),
        "other rows": lambda: pq.write_table(fakes.table("other"), data),
        "record: a byte": lambda: flip(record),
        "record: a blank": lambda: record.write_text(record.read_text() + "\n"),
        "record: a number": lambda: record.write_text(record.read_text().replace("1", "2", 1)),
        "record: no text": lambda: record.write_bytes(b"\xff\xfe"),
        "record: missing": record.unlink,
    }


@pytest.mark.parametrize("kind", damages(Path()))
def test_damage_is_found_set_aside_and_mended(
    store: Store, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    low = fakes.node("low", t=1)
    top = fakes.node("top", (low,), t=2)
    root = tmp_path / "artifacts"
    store = Store(root)
    made = {node.label: runner.ensure([node], store)[0] for node in (low, top)}
    (made["low"].directory.parent / "notes.txt").write_text("of the user")  # no artifact
    capsys.readouterr()
    assert verify.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("2 artifacts verified, 0 damaged")
    with pytest.raises(SystemExit, match="elsewhere/artifacts does not exist"):
        verify.main([str(tmp_path / "elsewhere")])
    for found_by in ("the run that asks for it", "the run that reads it", "verify"):
        damages(made["low"].directory)[kind]()
        calls = len(fakes.calls)
        capsys.readouterr()
        if found_by == "verify":
            assert verify.main([str(tmp_path)]) == 1
            assert verify.main([str(tmp_path)]) == 0
            runner.ensure([top], store)  # cached, and valid
            assert len(fakes.calls) == calls
        if found_by == "the run that reads it":
            fresh = fakes.node("fresh", (low,), at=calls)
            runner.ensure([fresh], store)
            assert fakes.calls[calls:] == ["low", "fresh"]
        else:
            runner.ensure([low], store)
            assert fakes.calls[calls:] == ["low"]
        printed = capsys.readouterr()
        said = [line for line in printed.out.splitlines() if "set aside" in line]
        assert len(said) == 1
        assert str(made["low"].directory) in said[0]
        assert store.find(low).content == made["low"].content  # type: ignore[union-attr]
        assert store.fresh(top)
        assert verify.main([str(tmp_path)]) == 0
    assert len(list((root / "quarantine/prompts").iterdir())) == 3


def test_a_disk_that_damages_all_it_is_given_is_named(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = Store.publish

    def damaging(*arguments: Any) -> Any:
        artifact = publish(*arguments)
        flip(artifact.directory / "data.parquet")
        return artifact

    monkeypatch.setattr(Store, "publish", damaging)
    with pytest.raises(PipelineError, match=r"after 3 rebuilds: check the disk"):
        runner.ensure([fakes.node("top", (fakes.node("a"),))], store)


def test_all_is_on_the_disk_before_it_gets_its_name(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = fakes.Syncs(monkeypatch)
    artifact = runner.ensure([fakes.node("a")], store)[0]
    assert watch.named[-1] == artifact.directory
    watch.check_directories()


def _slow(root: Path, done: Path) -> None:
    prompts.STAGE = FAKED
    real = fakes.compute

    def compute(*arguments: object) -> None:
        time.sleep(0.5)
        (done / f"{time.monotonic_ns()}").touch()
        real(*arguments)  # type: ignore[arg-type]

    fakes.compute = compute  # type: ignore[assignment]
    runner.ensure([fakes.node("a")], Store(root))


def test_two_processes_compute_an_artifact_once(tmp_path: Path) -> None:
    done = tmp_path / "done"
    done.mkdir()
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=_slow, args=(tmp_path / "store", done)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(30)
    assert [process.exitcode for process in both] == [0, 0]
    assert len(list(done.iterdir())) == 1


def test_records_that_changed_places_are_damaged(store: Store) -> None:
    nodes = [fakes.node("a", t=1), fakes.node("b", t=2)]
    places = [artifact.directory for artifact in runner.ensure(nodes, store)]
    wanted = [artifact.content for artifact in runner.ensure(nodes, store)]
    places[0].rename(store.root / "third")
    places[1].rename(places[0])
    (store.root / "third").rename(places[1])
    for node in nodes:
        with pytest.raises(DamagedError, match=r"record\.json is of another"):
            store.fresh(node)
    assert [artifact.content for artifact in runner.ensure(nodes, store)] == wanted
    places[0].rename(store.root / "third")
    places[1].rename(places[0])
    (store.root / "third").rename(places[1])
    assert all(Artifact(place).damage() for place in places)

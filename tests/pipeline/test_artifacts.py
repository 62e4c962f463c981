"""The store: found by meaning, published whole, checked when read, computed once."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import runner, stages, verify
from pipeline.artifacts import Store
from pipeline.errors import PipelineError
from pipeline.fingerprint import fingerprint
from tests.pipeline import fakes


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setitem(stages.MODULES, "prompts", "tests.pipeline.fakes")
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
    assert first.record["rows"] == {"data": 1}


def test_failure_leaves_nothing_published_and_a_later_run_starts_clean(store: Store) -> None:
    with pytest.raises(RuntimeError):
        runner.ensure([fakes.node("a", fail=True)], store)
    assert store.find(fakes.node("a", fail=True)) is None
    partial = list((store.root / "prompts").glob(".*.partial"))
    assert len(partial) == 1
    (partial[0] / "leftover.parquet").write_bytes(b"old")
    draft = store.draft(fakes.node("a", fail=True), resumable=False)
    assert not list(draft.directory.iterdir())


def test_rebuilt_upstream_with_other_content_makes_downstream_stale(store: Store) -> None:
    low = fakes.node("low", t=1)
    top = fakes.node("top", (low,), t=2)
    runner.ensure([top], store)
    assert fakes.calls == ["low", "top"]
    found = store.find(low)
    assert found is not None
    shutil.rmtree(found.directory)
    runner.ensure([top], store)  # a deleted upstream is not needed
    assert fakes.calls == ["low", "top"]
    runner.ensure([low], store)  # rebuilt with the same content
    assert store.fresh(top)
    shutil.rmtree(store.find(low).directory)  # type: ignore[union-attr]
    runner.ensure([fakes.node("low", t=1, noise="other BLAS")], store)
    assert not store.fresh(top)
    runner.ensure([top], store)
    assert fakes.calls == ["low", "top", "low", "low", "top"]


def test_reading_checks_the_schema(store: Store) -> None:
    artifact = runner.ensure([fakes.node("a")], store)[0]
    assert artifact.read(columns=["n_tokens"]).num_rows == 1
    path = artifact.directory / "data.parquet"
    pq.write_table(pa.table({"prompt_id": ["a"]}), path)
    with pytest.raises(PipelineError, match="has the columns"):
        artifact.read()
    path.write_bytes(b"PAR1 not parquet")
    for reading in (artifact.read, lambda: list(artifact.batches())):
        with pytest.raises(PipelineError, match="make verify"):
            reading()


def test_a_changed_value_is_noticed_when_it_is_read(store: Store) -> None:
    path = runner.ensure([fakes.node("a")], store)[0].directory / "data.parquet"
    column = pq.ParquetFile(path).metadata.row_group(0).column(3)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 3] ^= 1
    path.write_bytes(content)
    artifact = store.find(fakes.node("a"))
    assert artifact is not None
    with pytest.raises(PipelineError, match=r"data\.parquet can't be read"):
        list(artifact.batches())


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"stage": "prompts"}'])
def test_a_damaged_record_is_named(store: Store, content: str) -> None:
    artifact = runner.ensure([fakes.node("a")], store)[0]
    (artifact.directory / "record.json").write_text(content)
    with pytest.raises(PipelineError, match=r"record\.json can't be read"):
        runner.ensure([fakes.node("top", (fakes.node("a"),))], store)


def test_a_directory_that_lost_its_record_is_replaced(store: Store) -> None:
    artifact = runner.ensure([fakes.node("a")], store)[0]
    (artifact.directory / "record.json").unlink()
    assert runner.ensure([fakes.node("a")], store)[0].record["rows"] == {"data": 1}
    assert fakes.calls == ["a", "a"]


def test_verify_finds_flipped_bytes_missing_files_and_strangers(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "artifacts"
    artifact = runner.ensure([fakes.node("a")], Store(root))[0]
    assert verify.main([str(tmp_path)]) == 0
    with pytest.raises(SystemExit, match="elsewhere/artifacts does not exist"):
        verify.main([str(tmp_path / "elsewhere")])
    path = artifact.directory / "data.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert verify.main([str(tmp_path)]) == 1
    message = capsys.readouterr().err
    assert str(path) in message
    assert "delete" in message
    path.unlink()
    assert any("missing" in problem for problem in verify.problems(artifact))
    (artifact.directory / "stranger").write_text("")
    assert any("stranger" in problem for problem in verify.problems(artifact))


def _slow(root: Path, done: Path) -> None:
    stages.MODULES["prompts"] = "tests.pipeline.fakes"
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


def test_record_says_what_the_artifact_is_made_from(store: Store) -> None:
    low = fakes.node("low", t=1)
    runner.ensure([fakes.node("top", (low,), t=2)], store)
    top = store.find(fakes.node("top", (low,), t=2))
    assert top is not None
    record = json.loads((top.directory / "record.json").read_text())
    assert record["upstream"][0]["fingerprint"] == low.fingerprint
    assert record["upstream"][0]["content"] == store.find(low).content  # type: ignore[union-attr]
    assert record["config"] == {"t": 2}
    assert set(record["files"]) == {"data.parquet"}
    assert {"git", "versions", "argv", "platform", "wall_seconds"} <= set(record)

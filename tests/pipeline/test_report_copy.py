"""The copy of a report: what the artifact holds, whole, and nothing left beside it."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline import report_copy
from pipeline.execution import runner
from pipeline.store.artifacts import Artifact, Store
from tests.pipeline import fakes


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Store, Artifact]:
    monkeypatch.setitem(runner.MODULES, "prompts", "tests.pipeline.fakes")
    store = Store(tmp_path / "artifacts")
    return store, runner.ensure([fakes.node("a")], store)[0]


def test_the_copy_is_what_the_artifact_holds(
    report: tuple[Store, Artifact], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, artifact = report
    place = tmp_path / "report" / "mini [1]"
    left = place.with_name(f".{place.name}.4711")  # of a killed run

    def kill() -> None:
        left.mkdir(parents=True)
        (left / "half").write_text("")

    def damaged() -> None:
        (place / "data.parquet").write_bytes(b"")

    def swapped() -> None:
        shutil.rmtree(place)
        kill()

    for change in (kill, damaged, lambda: (place / "data.parquet").unlink(),
                   swapped, lambda: None):  # fmt: skip
        change()
        report_copy.serve(artifact, place, store)
        wanted = (artifact.directory / "data.parquet").read_bytes()
        assert (place / "data.parquet").read_bytes() == wanted
        assert [path.name for path in place.parent.iterdir()] == [place.name]
        assert not (place / "record.json").exists()
    said = capsys.readouterr().out
    assert said.count("replaces the report that was there") == 2
    assert said.count("index.html") == 5


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_where_the_copy_cant_be_written_the_report_itself_is_named(
    report: tuple[Store, Artifact], tmp_path: Path, number: int,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    store, artifact = report

    def full(*_: Any) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(shutil, "copyfile", full)
    report_copy.serve(artifact, tmp_path / "report" / "mini", store)
    said = capsys.readouterr().out
    assert str(artifact.directory / "index.html") in said
    assert "can't be written" in said
    assert not list((tmp_path / "report").iterdir())

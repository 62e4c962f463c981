"""What no command refers to is listed and removed, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import gc
from pipeline.execution import runner
from pipeline.store.artifacts import Store
from tests.pipeline import fakes


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setitem(runner.MODULES, "prompts", "tests.pipeline.fakes")
    return Store(tmp_path / "artifacts")


def names(store: Store) -> set[str]:
    return {path.name.split("-")[0] for path in (store.root / "prompts").iterdir()}


def test_only_what_nothing_refers_to_is_removed(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    low = fakes.node("low", t=1)
    nodes = {name: fakes.node(name, (low,), t=at) for at, name in enumerate(("a", "b", "old"))}
    runner.ensure(nodes.values(), store)
    gc.refer("study=a", [nodes["old"]], store)
    gc.refer("study=a", [nodes["a"]], store)  # the same command, of a new version say
    gc.refer("study=b", [nodes["b"]], store)
    partial = store.pending(fakes.node("unfinished", t=5))
    kept = fakes.node("going on", t=6)
    gc.refer("study=c", [kept], store)
    store.pending(kept)
    (store.find(nodes["b"]).directory / "record.json").write_text("")  # type: ignore[union-attr]
    aside = store.set_aside([store.find(nodes["b"]).directory])  # type: ignore[union-attr]
    runner.ensure([nodes["b"]], store)
    capsys.readouterr()

    gc.main([str(tmp_path)])
    said = capsys.readouterr().out
    assert said.count("free: ") == 3
    assert f"{store.find(nodes['old']).directory}\n" in said  # type: ignore[union-attr]
    assert str(partial.workspace) in said
    assert f"quarantine/prompts/{aside[0].name}" in said
    assert "3 directories" in said
    assert {"low", "a", "b", "old"} <= names(store)

    gc.main([str(tmp_path), "--delete"])
    assert names(store) == {"low", "a", "b", store.workspace(kept).name}
    assert not list((store.root / "quarantine").glob("*/*"))
    gc.main([str(tmp_path), "--forget", "study=b", "--delete"])
    assert names(store) == {"low", "a", store.workspace(kept).name}
    gc.main([str(tmp_path), "--forget", "study=", "--delete"])
    assert names(store) == set()


def test_nothing_is_removed_when_a_note_is_damaged(store: Store, tmp_path: Path) -> None:
    node = fakes.node("a")
    runner.ensure([node], store)
    gc.refer("study=a", [node], store)
    [note] = (store.root / ".commands").iterdir()
    note.write_text(note.read_text().replace("study=a", "study=b"))
    with pytest.raises(SystemExit, match="what its command refers to is not known"):
        gc.main([str(tmp_path), "--delete"])
    assert names(store) == {"a"}
    gc.main([str(tmp_path), "--forget", note.stem])
    assert names(store) == {"a"}

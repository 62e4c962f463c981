"""What identifies inputs: content by exact path, remembered only when that is safe."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.store import identity
from pipeline.store.durable import file_digest
from pipeline.store.identity import Identities, split_patterns


def test_a_split_is_no_pattern() -> None:
    assert split_patterns("train[1]")[0] == "*train[[]1].jsonl"
    assert split_patterns("train_sft")[0] == "*train_sft.jsonl"
    assert split_patterns(None)[0] == "**.jsonl"


def test_a_change_that_keeps_size_and_time_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "SETTLED", -1)  # all files count as old
    source, memo = tmp_path / "p.jsonl", tmp_path / "memo.json"
    source.write_text("one")
    state = source.stat()
    first = Identities(memo)
    assert first.source(str(source), None, "key") == {"content": file_digest(source)}
    first.save()
    source.write_text("two")
    os.utime(source, ns=(state.st_atime_ns, state.st_mtime_ns))  # as rsync and cp -p do
    assert Identities(memo).source(str(source), None, "key") == {"content": file_digest(source)}


def test_a_file_written_just_now_is_not_remembered(tmp_path: Path) -> None:
    source, memo = tmp_path / "p.jsonl", tmp_path / "memo.json"
    source.write_text("one")
    identities = Identities(memo)
    identities.source(str(source), None, "key")
    identities.save()
    assert not memo.exists()


def test_a_damaged_memory_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "SETTLED", -1)
    source, memo = tmp_path / "p.jsonl", tmp_path / "memo.json"
    source.write_text("one")
    wanted = {"content": file_digest(source)}
    identities = Identities(memo)
    identities.source(str(source), None, "key")
    identities.save()
    digest = wanted["content"]
    memo.write_text(memo.read_text().replace(digest, digest[::-1]))
    assert Identities(memo).source(str(source), None, "key") == wanted

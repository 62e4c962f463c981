"""What identifies inputs: content by exact path, remembered only when that is safe."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline import hub
from pipeline.files import file_digest
from pipeline.hub import Identities, Identity


def test_digests_are_remembered_only_where_that_is_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of a file written just now, nor of one whose size and time alone stayed."""
    source, memo = tmp_path / "p.jsonl", tmp_path / "memo.json"

    def checked() -> None:
        wanted = Identity(content=file_digest(source))
        assert Identities(memo).source(str(source), None, "key") == wanted

    source.write_text("one")
    checked()
    assert not memo.exists()
    monkeypatch.setattr(hub, "SETTLED", -1)  # all files count as old
    checked()
    state = source.stat()
    source.write_text("two")
    os.utime(source, ns=(state.st_atime_ns, state.st_mtime_ns))  # as rsync and cp -p do
    checked()
    digest = file_digest(source)
    memo.write_text(memo.read_text().replace(digest, digest[::-1]))  # damaged: made anew
    checked()

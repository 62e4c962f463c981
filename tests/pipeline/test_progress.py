"""How far a stage is, in a log: a line a minute, and none of what a terminal needs."""

from __future__ import annotations

import re

import pytest

from pipeline import shards


def count(bar_of: int) -> None:
    with shards.progress_bar(bar_of, "step", "drafts a") as bar:
        for _ in range(bar_of // 5):
            bar.update(5)
            bar.set_postfix_str("1.0 GiB", refresh=False)


def test_a_log_gets_lines_of_a_long_stage_and_a_terminal_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count(10)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(shards, "MINUTE", 1e-9)
    count(10)
    lines = capsys.readouterr().err.split("\n")
    assert lines.pop() == ""
    assert re.match(r"drafts a: 5 of 10 steps, 00:00 so far, about 00:", lines[0])
    lines = [line for line in lines if line]  # tqdm ends with an empty one
    counted = [line.partition(",")[0] for line in lines]
    assert list(dict.fromkeys(counted)) == ["drafts a: 5 of 10 steps", "drafts a: 10 of 10 steps"]
    assert all("\r" not in line and line.endswith(" left") for line in lines)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    count(10)
    assert "\r" in capsys.readouterr().err

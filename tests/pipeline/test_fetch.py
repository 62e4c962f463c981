"""Fetching without a hub: quick to fail, and the error says what to do; what is local is enough."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from huggingface_hub import constants

from pipeline import fetch, identity
from pipeline.errors import PipelineError
from pipeline.paths import ROOT


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def test_paper_study_without_a_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the user runs it, against an address that refuses: what was wanted, and the way out."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "pipeline.fetch", "study=paper"], cwd=ROOT,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert time.monotonic() - begun < 15
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    for part in ("error: targets.qwen3_1_7b.path=Qwen/Qwen3-1.7B: ", "model*.safetensors",
                 "make fetch", "local copy: targets.qwen3_1_7b.path=DIRECTORY"):  # fmt: skip
        assert part in line


def test_hub_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall that drops what it gets: one wait for each question, and no retries."""
    monkeypatch.setattr(identity, "HUB_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        begun = time.monotonic()
        for revision in (None, "0" * 40):  # a moving one, and a commit
            with pytest.raises(PipelineError, match=r"prompts.source=some-one/chat: .*parquet"):
                identity.hub_files("some-one/chat", revision, ["*.parquet"], "prompts.source",
                                   "dataset")  # fmt: skip
        assert time.monotonic() - begun < 10


def test_embedded_study_is_local(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    fetch.main(["study=mini"])
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 4  # two targets, the drafter, the prompts
    for line in printed:
        assert Path(line.split(" -> ")[1]).is_relative_to(ROOT / "assets" / "mini")

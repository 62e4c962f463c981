"""Fetching without a hub: quick to fail, and the error says what to do; what is local is enough."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from huggingface_hub import constants, utils

from pipeline import fetch
from pipeline.errors import PipelineError
from pipeline.store import identity


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.mark.parametrize("revision", [None, "0" * 40], ids=["moving", "commit"])
def test_hub_that_never_answers(monkeypatch: pytest.MonkeyPatch, revision: str | None) -> None:
    """A firewall that drops what it gets: one question, and it is the client who hangs up."""
    waits: list[tuple[bytes, bool]] = []  # what was asked, and whether the client hung up

    def serve(server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return  # the end of the test
            with connection:
                connection.settimeout(60)
                asked = connection.recv(1 << 16)
                try:
                    waits.append((asked, connection.recv(1) == b""))
                except TimeoutError:
                    waits.append((asked, False))

    monkeypatch.setattr(identity, "HUB_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        with pytest.raises(PipelineError, match=r"prompts.source=some-one/chat: .*parquet"):
            identity.hub_files("some-one/chat", revision, ["*.parquet"], "prompts.source",
                               "dataset")  # fmt: skip
        utils.close_session()
        server.shutdown(socket.SHUT_RDWR)
    thread.join()
    questions = [hung_up for asked, hung_up in waits if b"/datasets/some-one/chat/" in asked]
    assert questions == [True]  # what else the client asks is its own affair


def test_of_the_embedded_study_nothing_is_fetched(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    fetch.main(["study=mini"])
    assert capsys.readouterr().out == ""

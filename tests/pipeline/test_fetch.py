"""Fetching against a hub on loopback, sound and with faults: files that are whole, or one line."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants, utils

from pipeline import fetch
from pipeline.errors import PipelineError
from pipeline.store import hub_errors
from pipeline.store.hub import MODEL_FILES, cached_commit, hub_files
from pipeline.store.identity import Identity
from tests.pipeline import hub_faults as faults
from tests.pipeline import tiny
from tests.pipeline.hub import Hub, Repository, connect
from tests.pipeline.hub_faults import hang, status, times
from tests.pipeline.hub_study import MODELS, SPLITS, ULTRACHAT, ultrachat

NAME, KEY = "Qwen/Qwen3-1.7B", "targets.qwen3_1_7b.path"
WEIGHTS = bytes(range(256)) * 1000
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS, "README.md": b"# A model\n",
         "vocab.json": b"{}\n", "pytorch_model.bin": b"not wanted"}  # fmt: skip


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the repositories of study=paper, whose models are bytes; its cache is empty."""
    served = Hub(*(Repository("models", name, FILES) for name in MODELS), ultrachat())
    with served.serving():
        connect(served, tmp_path, monkeypatch)
        yield served
    utils.close_session()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits that were made, none of which takes time."""
    seconds: list[float] = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    return seconds


def taken(hub: Hub) -> Path:
    """The files of a model, fetched."""
    return hub_files(NAME, None, MODEL_FILES, KEY)


def refused(hub: Hub, message: str) -> None:
    with pytest.raises(PipelineError) as error:
        taken(hub)
    assert "\n" not in str(error.value)
    assert re.search(message, str(error.value)), str(error.value)


def test_study_paper_is_fetched_once(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of UltraChat one split of four; again, nothing; files of a new commit, once it is there."""
    fetch.main(["study=paper"])
    printed = capsys.readouterr().out
    commits = {name: repository.main for (_, name), repository in hub.repositories.items()}
    for name, commit in commits.items():
        assert f"{name} at commit {commit} -> {tmp_path}" in printed
        kind = "dataset" if name == ULTRACHAT else "model"
        assert cached_commit(name, None, kind) == commit
    whole = {path.name: path.read_bytes() for path in taken(hub).iterdir()}
    assert whole == {name: FILES[name] for name in FILES if not name.endswith((".md", ".bin"))}
    texts = hub.repositories["datasets", ULTRACHAT].commits[commits[ULTRACHAT]]
    wanted = {f"lfs/{file.sha256}" for path, file in texts.items() if "/train_sft-" in path}
    blobs = {f"lfs/{file.sha256}" for file in texts.values()} & set(hub.asked("lfs"))
    assert (blobs, len(blobs)) == (wanted, SPLITS["train_sft"][0])
    hub.requests.clear()
    fetch.main(["study=paper"])
    assert not hub.asked("lfs") + hub.asked("resolve-cache")
    newer = hub.repositories["models", NAME].commit(FILES | {"model.safetensors": WEIGHTS * 2})
    hub.faults.append(("lfs", faults.flipped))  # not before its files are there
    with pytest.raises(SystemExit, match=r"the sha256 of model.safetensors, for one"):
        fetch.main(["study=paper"])
    assert cached_commit(NAME, None, "model") == commits[NAME]
    hub.faults.clear()
    fetch.main(["study=paper"])
    assert cached_commit(NAME, None, "model") == newer


@pytest.mark.parametrize("gone", ["offline", "gone", "out of order"])
def test_a_full_cache_needs_no_hub(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], gone: str
) -> None:
    """`make fetch` ends well; files that the cache lacks are an error."""
    fetch.main(["study=paper"])
    capsys.readouterr()
    reason = "HF_HUB_OFFLINE is set"
    if gone == "offline":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    elif gone == "gone":
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
        reason = "it can't be reached (ConnectError: [Errno 111] Connection refused)"
    else:
        hub.faults.append(("api", status(503)))
        reason = "503, the hub is out of order"
    fetch.main(["study=paper"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    for line in lines:
        assert line.endswith(f" (all from the cache: {reason})")
        assert re.search(r"at commit [0-9a-f]{40} -> /", line)
    split = f"prompts.source={ULTRACHAT}: the hub did not give data/test_sft-*: {reason}. "
    with pytest.raises(SystemExit, match=re.escape(split)):
        fetch.main(["study=paper", "prompts.split=test_sft"])


def test_prompts_of_a_hub_need_no_hub_afterwards(
    hub: Hub, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows by number, of the split's files in order; of the pinned commit, not of a later one."""
    repository = hub.repositories["datasets", ULTRACHAT]
    commit = repository.main

    def node(count: int, split: str = "train_sft", commit: str = commit) -> Any:
        made = tiny.prompts_node(
            model, tmp_path / "none", split=split, count=count, max_tokens=9999, source=ULTRACHAT
        )
        source = Identity(hub=ULTRACHAT, commit=commit)
        return replace(made, spec=replace(made.spec, source=source))

    rows = tiny.built(node(5), tmp_path / "store").read().to_pylist()
    assert len(rows) == 5
    for row in rows:
        assert row["text"].startswith(f"Question {row['source_row']} of train_sft: ")
        assert row["prompt_id"] == hashlib.sha256(row["text"].encode()).hexdigest()
        assert row["source"] == ULTRACHAT
    files = {path: file.data for path, file in repository.commits[commit].items()}
    repository.commit({path: files[path.replace("train_sft-00000", "train_sft-00001")]
                       for path in files})  # fmt: skip
    hub.faults.append(("", hang))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    more = tiny.built(node(120), tmp_path / "store").read()["source_row"].to_pylist()
    assert sorted(more) == list(range(120))
    with pytest.raises(PipelineError, match=r"give one of train_sft, test_sft, train_gen, test_"):
        tiny.built(node(5, "train"), tmp_path / "store")
    with pytest.raises(PipelineError, match=r"did not give data/test_sft-\*: HF_HUB_OFFLINE is"):
        tiny.built(node(5, "test_sft"), tmp_path / "store")


@pytest.mark.parametrize("card", [None, "# No metadata\n", "---\nlicense: mit\n---\n"])
def test_splits_without_a_card_go_by_the_names_of_files(hub: Hub, card: str | None) -> None:
    from pipeline.formats.prompt_files import source_files

    names = ["train[1]-0-of-1.jsonl", "train[1].jsonl", "more/train[1]/a.jsonl",
             "train[1]-x/b.jsonl", "train1.jsonl", "my_train[1].jsonl"]  # fmt: skip
    files = {name: json.dumps({"text": name}).encode() for name in names}
    files |= {} if card is None else {"README.md": card.encode()}
    hub.repositories["datasets", "some-one/chat"] = Repository("datasets", "some-one/chat", files)
    got = source_files("some-one/chat", None, "train[1]")
    assert {path.read_bytes().decode() for path in got} == {
        files[name].decode() for name in names[:4]
    }


@pytest.mark.parametrize(("part", "fault", "message"), [
    ("api", status(401), "401, no public repository has this name, or the token is not valid. "
     "Check the name; for a private repository run `hf auth login`. Or take a local copy"),
    ("api", status(403, X_Error_Code="GatedRepo"), "403, it is given only to those who accept "
     "its conditions. Accept them at http://127.0.0.1:[0-9]+/Qwen/Qwen3-1.7B, then run `hf auth"),
    ("resolve/", status(403, X_Error_Code="GatedRepo"), "403, it is given only to those who"),
    ("api", status(403), "403, the token may not read it. Run `hf auth login` with one that may"),
    ("api", status(404, X_Error_Code="RepoNotFound"), "404, no such repository or file. Check the"),
    ("api", status(404, X_Error_Code="RevisionNotFound"),
     r"404, it has no such revision. Check targets.qwen3_1_7b.revision"),
    ("api", status(500), r"did not give config.json, .* \(revision main\): 500, the hub is out of "
     "order. Try again later"),
    ("lfs", status(500), r"did not give \*.json, .*: 500, the hub is out of order. Try again"),
    ("api", status(418), "HTTP status 418. Try again later"),
    ("lfs", faults.truncated, "Consistency check failed: file should be of size 256000 but has "
     "size 128000 .*. Give the same command again"),
    ("lfs", faults.flipped, "1 files were damaged on their way, and are removed: the sha256 of "
     "model.safetensors, for one, is [0-9a-f]{12}..., the hub lists [0-9a-f]{12}.... Give the"),
    ("resolve-cache", faults.flipped, "2 files were damaged .* the git-sha1 of config.json"),
    ("resolve-cache", faults.of_another_commit, "the hub served config.json as of another commit"),
], ids=lambda value: value if isinstance(value, str) and "/" not in value else "")  # fmt: skip
def test_a_fault_is_one_line_and_the_next_command_mends_it(
    hub: Hub, waits: list[float], part: str, fault: Any, message: str
) -> None:
    hub.faults.append((part, fault))
    refused(hub, f"^{KEY}={NAME}: .*{message}")
    hub.faults.clear()
    assert (taken(hub) / "model.safetensors").read_bytes() == WEIGHTS


def test_a_busy_hub_is_waited_for(hub: Hub, waits: list[float]) -> None:
    hub.faults.append(("api", times(2, status(429, Retry_After="7"))))
    hub.faults.append(("lfs", times(1, status(429, Retry_After="5"))))
    assert (taken(hub) / "model.safetensors").read_bytes() == WEIGHTS
    assert [wait for wait in waits if wait in (5, 6, 7)] == [7, 7, 6]  # the client adds a second


@pytest.mark.parametrize(("headers", "wait", "count"), [
    ({"Retry_After": "7"}, 7, 3), ({}, 8, 3), ({"Retry_After": "301"}, 301, 0),
    ({"RateLimit": '"api";r=0;t=55'}, 55, 3),
])  # fmt: skip
def test_a_hub_that_stays_busy(
    hub: Hub, waits: list[float], headers: dict[str, str], wait: int, count: int
) -> None:
    hub.faults.append(("api", status(429, **headers)))
    refused(hub, f"429, too many requests. Wait {wait} s, then give the same command")
    assert waits == [wait] * count


def test_a_download_that_breaks_off_is_resumed(
    hub: Hub, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.faults.append(("lfs", faults.cut))
    assert (taken(hub) / "model.safetensors").read_bytes() == WEIGHTS
    ranges = [each.headers.get("Range") for each in hub.requests if each.path.startswith("lfs")]
    assert ranges == [None, f"bytes={len(WEIGHTS) // 2}-"]


@pytest.mark.parametrize("part", ["api/models/Qwen/Qwen3-1.7B/revision", "tree", "resolve/", "lfs"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_hub_that_hangs_is_left(
    hub: Hub, waits: list[float], monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(hub_errors, "SECONDS", 0.1)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
    hub.faults.append((part, hang))
    refused(hub, "it does not answer. Check the network and try again later")
    if "revision" in part:
        assert len(hub.requests) == 1  # the client would try for a minute


def test_of_the_embedded_study_nothing_is_fetched(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    fetch.main(["study=mini"])
    assert capsys.readouterr().out == ""

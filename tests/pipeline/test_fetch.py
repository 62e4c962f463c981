"""Fetching against a hub on loopback, sound and with faults: files that are whole, or one line."""

import os
import re
import time
from dataclasses import replace

import pytest
from huggingface_hub import constants, utils

from pipeline import fetch
from pipeline.core.errors import PipelineError
from pipeline.inputs import hub_commits, integrity
from pipeline.inputs.hub import hub_files
from pipeline.inputs.hub_commits import cached_commit
from pipeline.inputs.local_files import MODEL_FILES
from tests.pipeline import hub as hubs
from tests.pipeline import tiny
from tests.pipeline.hub import MODELS, SPLITS, ULTRACHAT, flipped, hang, status

NAME, KEY = "Qwen/Qwen3-1.7B", "targets.qwen3_1_7b.path"
WEIGHTS = bytes(range(256)) * 1000
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS, "README.md": b"# A model\n",
         "vocab.json": b"{}\n", "pytorch_model.bin": b"not wanted"}  # fmt: skip


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with the repositories of study=paper, whose models are bytes; its cache is empty."""
    models = [hubs.Repository("models", name, FILES) for name in MODELS]
    served = hubs.Hub(*models, hubs.ultrachat())
    with served.serving():
        hubs.connect(served, tmp_path, monkeypatch)
        yield served
    utils.close_session()


@pytest.fixture
def waits(monkeypatch):
    """The waits that were made, none of which takes time."""
    seconds = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    return seconds


def taken(_):
    """The files of a model, fetched."""
    return hub_files(NAME, None, MODEL_FILES, KEY)


def refused(hub, message):
    """One line that names the key, the model and what the client said."""
    with pytest.raises(PipelineError, match=f"^{KEY}={NAME}: .*{message}") as error:
        taken(hub)
    assert "\n" not in str(error.value)


def test_study_paper_is_fetched_once_and_then_needs_no_hub(
    hub, tmp_path, capsys, monkeypatch, waits
):
    """Of UltraChat one split; again, nothing; files of a new commit, once it is there."""
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
    blobs = {f"lfs/{file.sha256}" for file in texts.values()}
    blobs &= {path for _, path in hub.asked("lfs")}
    assert (blobs, len(blobs)) == (wanted, SPLITS["train_sft"][0])
    hub.requests.clear()
    fetch.main(["study=paper"])
    assert not hub.asked("lfs") + hub.asked("resolve")
    newer = hub.repositories["models", NAME].commit(FILES | {"model.safetensors": WEIGHTS * 2})
    hub.faults.append(("lfs", flipped))  # not before its files are there
    with pytest.raises(SystemExit, match=r"model\.safetensors was damaged on its way"):
        fetch.main(["study=paper"])
    assert cached_commit(NAME, None, "model") == commits[NAME]
    hub.faults.clear()
    fetch.main(["study=paper"])
    assert cached_commit(NAME, None, "model") == newer
    capsys.readouterr()
    hub.faults.append(("", status(503)))
    fetch.main(["study=paper"])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    fetch.main(["study=paper"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8
    for line, reason in zip(lines, ["503"] * 4 + ["offline mode is enabled"] * 4, strict=True):
        assert re.search(rf"at commit [0-9a-f]{{40}} -> /.* \(from the cache: .*{reason}", line)
    with pytest.raises(SystemExit, match=f"error: prompts.source={ULTRACHAT}: "):
        fetch.main(["study=paper", "prompts.split=test_sft"])


def test_what_needs_no_hub_is_named(capsys):
    fetch.main(["study=mini"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        "prompts.source", "targets.mini_large.path", "targets.mini_small.path", "drafter.path",
    ]  # fmt: skip
    assert all(line.endswith(" is here") for line in lines)


def test_prompts_of_a_hub_need_no_hub_afterwards(hub, model, tmp_path, monkeypatch):
    """Rows by number, of the split's files in order; of the pinned commit, not of a later one."""
    repository = hub.repositories["datasets", ULTRACHAT]
    commit = repository.main

    def node(count, split="train_sft"):
        made = tiny.prompts_node(
            model, tmp_path / "none", split=split, count=count, max_tokens=9999, source=ULTRACHAT
        )
        source = {"hub": ULTRACHAT, "commit": commit}
        return replace(made, settings=made.settings | {"source": source})

    for row in tiny.built(node(5), tmp_path / "store").read().to_pylist():
        assert row["text"].startswith(f"Question {row['source_row']} of train_sft: ")
        assert row["source"] == ULTRACHAT
    files = {path: file.data for path, file in repository.commits[commit].items()}
    repository.commit({path: files[path.replace("train_sft-00000", "train_sft-00001")]
                       for path in files})  # fmt: skip
    hub.faults.append(("", hang))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    more = tiny.built(node(120), tmp_path / "store").read()["source_row"].to_pylist()
    assert sorted(more) == list(range(120))
    with pytest.raises(PipelineError, match=f"^prompts.source={ULTRACHAT}: "):
        tiny.built(node(5, "test_sft"), tmp_path / "store")


@pytest.mark.parametrize(("part", "fault", "message"), [
    ("api", status(401), "401"),
    ("lfs", flipped, "model.safetensors was damaged on its way"),
    ("config.json", flipped, "config.json was damaged on its way"),
    ("revision", status(429, Retry_After="9999"), "the hub is busy, and asks for a wait of 9999 s"),
], ids=lambda value: value if isinstance(value, str) and "/" not in value else "")  # fmt: skip
def test_a_fault_is_one_line_and_the_next_command_mends_it(hub, waits, part, fault, message):
    hub.faults.append((part, fault))
    refused(hub, message)
    assert max(waits, default=0) <= 8  # between the client's own tries
    assert cached_commit(NAME, None, "model") in (None, hub.repositories["models", NAME].main)
    hub.faults.clear()
    assert (taken(hub) / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_damaged_blob_is_found_before_it_is_used(hub, name, capsys, monkeypatch):
    """Fetched again, or an error where there is no hub; whole ones are hashed once."""
    blob = (taken(hub) / name).resolve()
    whole = blob.read_bytes()
    blob.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    assert (taken(hub) / name).read_bytes() == whole
    assert f"{KEY}={NAME}: {name} is damaged, fetching again" in capsys.readouterr().err
    hashed = []
    digest = integrity.file_digest
    monkeypatch.setattr(integrity, "file_digest", lambda path: hashed.append(path) or digest(path))
    blob = (taken(hub) / name).resolve()
    assert not hashed
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    blob.write_bytes(b"")
    refused(hub, "OfflineModeIsEnabled")


def test_what_a_snapshot_links_to_elsewhere_is_not_removed(hub, tmp_path):
    """A file of the user's own is used as it is, whatever its name; so is one behind a blob."""
    own = tmp_path / ("0" * 64)
    own.write_bytes(b"the user's")
    link = taken(hub) / "model.safetensors"
    blob = link.resolve()
    link.unlink()
    link.symlink_to(own)
    assert (taken(hub) / "model.safetensors").read_bytes() == b"the user's"
    link.unlink()
    link.symlink_to(os.path.relpath(blob, link.parent))
    blob.unlink()
    blob.symlink_to(own)  # not what the blob's name says: replaced, and what it led to stays
    assert (taken(hub) / "model.safetensors").read_bytes() == WEIGHTS
    assert own.read_bytes() == b"the user's"


def test_the_commit_of_a_branch_is_noted_in_a_file_of_its_own(hub, tmp_path):
    """What a link leads to stays; a link to the whole folder of a model is the user's cache."""
    folder = taken(hub).parents[1]
    own = tmp_path / "own"
    own.write_text("the user's own")
    reference = folder / "refs" / "main"
    reference.unlink()
    for name in ("main", "main.tmp"):
        reference.with_name(name).symlink_to(own)
    taken(hub)
    assert own.read_text() == "the user's own"
    assert reference.read_text() == hub.repositories["models", NAME].main
    assert [path.name for path in reference.parent.iterdir()] == ["main"]
    elsewhere = folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(elsewhere)
    (elsewhere / "refs/main").unlink()
    taken(hub)
    assert (elsewhere / "refs/main").read_text() == hub.repositories["models", NAME].main


@pytest.mark.parametrize("part", ["api/models/Qwen/Qwen3-1.7B/revision", "lfs"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_hub_that_hangs_is_left(hub, waits, monkeypatch, part):
    """No file is asked for more than twice, a few seconds each."""
    monkeypatch.setattr(hub_commits, "TIMEOUT", 0.1)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
    hub.faults.append((part, hang))
    refused(hub, "Timeout|does not answer")
    asked = hub.asked(part)
    assert max(asked.count(each) for each in asked) <= hub_commits.TRIES

"""Interrupted, damaged and unwritable: real stages on tiny models against undisturbed runs."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from benchmarks import robustness
from pipeline import shards, workers
from pipeline.errors import PipelineError
from pipeline.paths import ROOT
from pipeline.stage import with_inputs
from pipeline.store import Store
from pipeline.study import STAGES, Study

LONG = ["accuracy", "decoding", "distributions", "drafts"]
FULL = Path("/dev/full")


@pytest.fixture(scope="module")
def overrides(tmp_path_factory):
    return robustness.tiny_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def tasks(overrides, tmp_path_factory):
    outputs = tmp_path_factory.mktemp("outputs")
    return {
        stage: found[0] for stage, found in Study(*overrides, f"outputs='{outputs}'").tasks.items()
    }


@pytest.fixture(scope="module")
def whole(tasks, tmp_path_factory):
    """Everything but the report, undisturbed."""
    store = Store(tmp_path_factory.mktemp("whole"))
    for stage in ("acceptance", "run_lengths", "decoding", "accuracy"):
        store.get(tasks[stage])
    return store


def copied(whole, root, task):
    """A store with what `task` is made from."""
    for above in with_inputs(task.inputs.values()).values():
        directory = found(whole, above).directory
        shutil.copytree(directory, root / above.stage.name / directory.name)
    return Store(root)


def found(store, task):
    artifact = store.find(task)
    assert artifact is not None
    return artifact


def interrupt(task, store, monkeypatch):
    """Stop a long stage when two of its shards are finished; return its workspace."""
    write, written = shards.write_checked, list[Path]()

    def stopping(path, content):
        write(path, content)
        written.append(path)
        if len(written) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shards, "write_checked", stopping)
        with pytest.raises(KeyboardInterrupt):
            store.get(task)
    [work] = (store.root / task.stage.name).glob(f".{task.key[:12]}.*.partial")
    return work


def attempted(monkeypatch):
    """The items of the shards that are computed from now on."""
    attempt, computed = workers.attempt, list[list[str]]()

    def noting(worker, names, progress):
        computed.append(list(names))
        return attempt(worker, names, progress)

    monkeypatch.setattr(workers, "attempt", noting)
    return computed


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at % len(content)] ^= 1
    path.write_bytes(content)


def half_write(path):
    path.with_name("0123456789abcdef.shard.tmp").write_bytes(path.read_bytes())


CHANGES = {  # of a finished shard; the first two keep it
    "nothing": lambda _: None,
    "half-written": half_write,
    "gone": Path.unlink,
    "flipped": lambda path: flip(path, path.stat().st_size // 2),
    "checksum flipped": lambda path: flip(path, 5),
    "names flipped": lambda path: flip(path, 80),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "emptied": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("stage", LONG)
def test_finished_shards_are_kept_and_damaged_ones_are_not(
    stage, whole, tasks, tmp_path, monkeypatch, capsys
):
    task = tasks[stage]
    store = copied(whole, tmp_path, task)
    computed = attempted(monkeypatch)
    work = interrupt(task, store, monkeypatch)
    one, two = computed
    files = {shard.names[0]: shard.path for shard in shards._finished(work / "shards")}
    assert sorted(files.values()) == sorted(work.rglob("*.*"))
    shutil.copytree(work, tmp_path / "kept")
    for kind, change in CHANGES.items() if stage == "drafts" else [*CHANGES.items()][:4]:
        computed.clear()
        change(files[one[0]])
        capsys.readouterr()
        store.get(task)
        *before, last = computed
        kept = kind in ("nothing", "half-written")
        assert before == ([] if kept else [one]), kind
        assert not {*one, *two} & {*last}, kind
        told = f"damaged: {files[one[0]]}: computed again" in capsys.readouterr().out
        assert told == (not kept and kind != "gone"), kind
        assert found(store, task).content == found(whole, task).content
        assert list((tmp_path / stage).iterdir()) == [found(store, task).directory]
        shutil.rmtree(found(store, task).directory)
        shutil.copytree(tmp_path / "kept", work)


@pytest.mark.thorough
@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("stage", STAGES)
def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(
    stage, whole, tasks, tmp_path, monkeypatch
):
    """On a device that is always full, of the long stages in their shards; then there is room."""
    task = tasks[stage]
    store = copied(whole, tmp_path, task)
    write, written = shards.write_checked, list[Path]()

    def full_artifact(_, inputs, out):
        name = "index.html" if stage == "report" else "data.parquet"
        (out.directory / name).symlink_to(FULL)
        task.stage.compute(task, inputs, out)

    def full_shard(path, content):
        if written:
            path.with_name(f"{path.name}.tmp").symlink_to(FULL)
        written.append(path)
        write(path, content)

    failing = task
    with monkeypatch.context() as patch:
        if stage in LONG:
            patch.setattr(shards, "write_checked", full_shard)
        else:
            failing = replace(task, stage=replace(task.stage, compute=full_artifact))
        with pytest.raises(PipelineError, match=r": can't write below .*No space left") as told:
            store.get(failing)
    assert "\n" not in str(told.value)
    assert store.find(task) is None
    left = [path for path in (tmp_path / stage).rglob("*") if not path.is_dir()]
    assert [path.suffix for path in left] == ([".shard"] if stage in LONG else [])
    artifact = store.get(task)
    artifact.check()
    assert list((tmp_path / stage).iterdir()) == [artifact.directory]
    if stage != "report":
        assert artifact.content == found(whole, task).content


def read_only(outputs):
    """The beginning of a command that sees `outputs` read-only, whoever runs it."""
    if os.geteuid() != 0:
        for path in [outputs, *outputs.rglob("*")]:
            path.chmod(path.stat().st_mode & ~0o222)
        return []
    script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" "$0" && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, str(outputs)]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"]).returncode:
        pytest.skip("can't make a directory read-only for root here")
    return command


@pytest.mark.thorough
def test_kills_rounds_and_damages(overrides, whole, tmp_path):
    """A few of what ``python -m benchmarks.robustness`` does many of."""
    assert whole  # what forks share is compiled and imported
    kills, rounds, damages = (
        partial(robustness.Trial, overrides, tmp_path / name)  # each has a whole study of its own
        for name in ("kills", "rounds", "damages")
    )
    assert robustness.kills(kills, 10)["kills"] == 10
    assert robustness.rounds(rounds, 1)["rounds"] == 1
    assert sum(robustness.damages(damages, 4).values()) == 4


@pytest.mark.thorough
def test_read_only_outputs_with_a_full_cache_serve(overrides, tmp_path):
    outputs = tmp_path / "outputs [1] ü"
    command = [sys.executable, "-m", "pipeline", *overrides, f"outputs='{outputs}'"]
    for stage in ("decoding", "certificates"):
        robustness.run_study([*command[3:], f"stage={stage}"])
    for stage in ("decoding", "certificates"):
        done = subprocess.run(
            [*read_only(outputs), *command, f"stage={stage}"],
            cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "cached" in done.stdout
    missing = subprocess.run(
        [*read_only(outputs), *command, "stage=acceptance"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert missing.returncode == 1
    assert missing.stderr.startswith("error: ")
    assert missing.stderr.count("\n") == 1

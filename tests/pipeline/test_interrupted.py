"""Killed, interrupted, damaged, unwritable: the toy pipeline, and real stages on tiny models."""

import errno
import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from benchmarks import robustness
from pipeline.core import shards, workers
from pipeline.core.errors import PipelineError
from pipeline.core.paths import ROOT
from pipeline.core.stage import with_inputs
from pipeline.core.store import Store
from pipeline.study import Study
from tests.pipeline.toy import LOG, child, contents, flip, status

LONG = ["accuracy", "decoding", "distributions", "drafts"]
FULL = Path("/dev/full")


@pytest.fixture
def log(tmp_path, monkeypatch):
    monkeypatch.setenv(LOG, str(tmp_path / "log"))
    return tmp_path / "log"


@pytest.fixture
def expected(tmp_path, log):
    assert status(child(tmp_path / "whole")) == 0
    log.unlink()
    return contents(tmp_path / "whole")


def killed(root, log, every=1):
    """Kill one run before and after each of its operations, or some; yield after each kill."""
    at = 1
    while True:
        shutil.rmtree(root, ignore_errors=True)
        log.unlink(missing_ok=True)
        end = status(child(root, at))
        if end == 0:
            return
        assert end == -9
        yield at
        at += every


def complete(root, expected):
    """Resume a run, and expect all of it and nothing else."""
    assert status(child(root)) == 0
    assert contents(root) == expected
    assert not [path for path in root.rglob("*") if ".partial" in path.name]
    assert not list(root.rglob("*.tmp"))


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.thorough)])
def test_killed_at_every_file_operation(tmp_path, log, expected, every):
    root, kills = tmp_path / "killed", 0
    for at in killed(root, log, every):
        kills += 1
        assert contents(root).items() <= expected.items()
        complete(root, expected)
        done = log.read_text().splitlines()
        assert len(done) - len(set(done)) <= 1, (at, done)  # the one under way, at most
    assert kills > 80 // every


def test_killed_again_and_again(tmp_path, log, expected):
    chance, root = random.Random(0), tmp_path / "killed"
    for _ in range(5):
        shutil.rmtree(root, ignore_errors=True)
        for _ in range(4):
            assert status(child(root, chance.randrange(1, 120))) in (0, -9)
        complete(root, expected)


def test_four_processes_compute_everything_once(tmp_path, log, expected):
    for trial in range(3):
        root = tmp_path / f"crowd{trial}"
        log.unlink(missing_ok=True)
        assert [status(pid) for pid in [child(root) for _ in range(4)]] == [0] * 4
        assert contents(root) == expected
        assert len(log.read_text().splitlines()) == 5


def test_batches_that_do_not_fit_are_halved(tmp_path, log, expected):
    assert status(child(tmp_path / "halved", batch=6, fits=2)) == 0
    assert contents(tmp_path / "halved") == expected


def test_another_batch_size_keeps_what_is_finished(tmp_path, log, expected):
    root = tmp_path / "resized"
    for _ in killed(root, log, 4):
        if log.exists() and log.read_text().count("shard") == 3:  # two are finished
            break
    assert status(child(root, batch=5)) == 0
    assert contents(root) == expected
    shards = [line.split()[1] for line in log.read_text().splitlines() if "shard" in line]
    assert shards == ["p5,p4", "p3,p2", "p1,p0", "p1", "p0"]  # the third was under way


# --- real stages ----------------------------------------------------------------------------------


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
    store = Store(tmp_path_factory.mktemp("whole") / "artifacts")
    for stage in ("acceptance", "run_lengths", "decoding", "accuracy"):
        store.get(tasks[stage])
    return store


def copied(whole, root, task):
    """A store with what `task` is made from."""
    for above in with_inputs(task.inputs.values()).values():
        directory = whole.find(above).directory
        shutil.copytree(directory, root / above.stage.name / directory.name)
    return Store(root)


def interrupt(task, store, monkeypatch):
    """Stop a long stage when two of its shards are finished; return its workspace."""
    write, written = shards.write_sealed, list[Path]()

    def stopping(path, content):
        write(path, content)
        written.append(path)
        if len(written) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shards, "write_sealed", stopping)
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


def half_write(path):
    path.with_name("0123456789abcdef.shard.tmp").write_bytes(path.read_bytes())


CHANGES = {  # of a finished shard; the first one keeps it
    "half-written": half_write,
    "gone": Path.unlink,
    "flipped": flip,
    "names flipped": lambda path: flip(path, 80),
}
FEW = [("half-written", "gone"), ("flipped",), ("half-written", "names flipped"), ("gone",)]


@pytest.mark.parametrize(
    ("stage", "kinds"),
    [
        *zip(LONG, FEW, strict=True),
        *[pytest.param(stage, CHANGES, marks=pytest.mark.thorough) for stage in LONG],
    ],
)
def test_finished_shards_are_kept_and_damaged_ones_are_not(
    stage, kinds, whole, tasks, tmp_path, monkeypatch, capsys
):
    task = tasks[stage]
    store = copied(whole, tmp_path, task)
    computed = attempted(monkeypatch)
    work = interrupt(task, store, monkeypatch)
    one, two = computed
    files = {shard.names[0]: shard.path for shard in shards._finished(work / "shards")}
    assert sorted(files.values()) == sorted(work.rglob("*.*"))
    shutil.copytree(work, tmp_path / "kept")
    for kind in kinds:
        computed.clear()
        CHANGES[kind](files[one[0]])
        capsys.readouterr()
        store.get(task)
        *before, last = computed
        assert before == ([] if kind == "half-written" else [one]), kind
        assert not {*one, *two} & {*last}, kind
        told = f"damaged: {files[one[0]]}: computed again" in capsys.readouterr().out
        assert told == ("flipped" in kind), kind
        made = store.find(task)
        assert made.content == whole.find(task).content
        assert list((tmp_path / stage).iterdir()) == [made.directory]
        shutil.rmtree(made.directory)
        shutil.copytree(tmp_path / "kept", work)


@pytest.mark.thorough
@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("stage", ["certificates", "drafts", "report"])
def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(
    stage, whole, tasks, tmp_path, monkeypatch
):
    """On a device that is always full, of a long stage in its shards; then there is room."""
    task = tasks[stage]
    store = copied(whole, tmp_path, task)
    write, written = shards.write_sealed, list[Path]()

    def full_artifact(_, inputs, out):
        name = "index.html" if stage == "report" else "data.parquet"
        (out.directory / name).symlink_to(FULL)
        task.stage.compute(task, inputs, out)

    def full_shard(path, content):
        if written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        written.append(path)
        write(path, content)

    failing = task
    with monkeypatch.context() as patch:
        if stage in LONG:
            patch.setattr(shards, "write_sealed", full_shard)
        else:
            failing = replace(task, stage=replace(task.stage, compute=full_artifact))
        with pytest.raises(PipelineError, match=r": can't write below .*No space left"):
            store.get(failing)
    assert store.find(task) is None
    left = [path for path in (tmp_path / stage).rglob("*") if not path.is_dir()]
    assert [path.suffix for path in left] == ([".shard"] if stage in LONG else [])
    artifact = store.get(task)
    artifact.check()
    assert list((tmp_path / stage).iterdir()) == [artifact.directory]
    if stage != "report":
        assert artifact.content == whole.find(task).content


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
def test_signals(overrides, tmp_path):
    new = partial(robustness.Trial, overrides, tmp_path / "signals")
    assert robustness.signals(new, 4)["signals"] == 4


@pytest.mark.thorough
def test_read_only_outputs_with_a_full_cache_serve(overrides, whole, tmp_path):
    outputs = tmp_path / "outputs [1] ü"
    shutil.copytree(whole.root.parent, outputs)
    begin = [*read_only(outputs), sys.executable, "-m", "pipeline", *overrides]

    def run(stage):
        return subprocess.run(
            [*begin, f"outputs='{outputs}'", f"stage={stage}"],
            cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip

    done = run("decoding")
    assert done.returncode == 0, done.stderr
    assert "cached" in done.stdout
    missing = run("report")
    assert missing.returncode == 1
    assert re.fullmatch("error: .*\n", missing.stderr)

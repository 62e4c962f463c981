"""Killed at every file operation, run four at once: same contents, nothing finished made again."""

import random
import shutil

import pytest

from tests.pipeline.toy import LOG, child, contents, status


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


@pytest.mark.parametrize("fits", [1, 2, 3])
def test_batches_that_do_not_fit_are_halved(tmp_path, log, expected, fits):
    assert status(child(tmp_path / "halved", batch=6, fits=fits)) == 0
    assert contents(tmp_path / "halved") == expected
    assert max(line.count("p") for line in log.read_text().splitlines()[1:]) >= fits


def test_another_batch_size_keeps_what_is_finished(tmp_path, log, expected):
    root = tmp_path / "resized"
    for _ in killed(root, log, 4):
        if log.exists() and log.read_text().count("shard") == 3:  # two are finished
            break
    assert status(child(root, batch=5)) == 0
    assert contents(root) == expected
    computed = [
        line.removeprefix("shard ").split(",")
        for line in log.read_text().splitlines()
        if "shard" in line
    ]
    assert computed[:2] == [["p5", "p4"], ["p3", "p2"]]
    assert not any({"p5", "p4"} & set(group) for group in computed[3:])

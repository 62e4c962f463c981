"""Shards: finished ones are taken by their owner alone, whatever directory they lie in."""

import json
import shutil
from dataclasses import replace

import pytest

from pipeline.core.files import read_checked, write_checked
from pipeline.core.store import Store
from pipeline.core.timings import Asked
from tests.pipeline import toy
from tests.pipeline.toy import LOG, tasks


@pytest.fixture
def log(tmp_path, monkeypatch):
    monkeypatch.setenv(LOG, str(tmp_path / "log"))
    return tmp_path / "log"


def interrupted(root, task):
    """A store in which a task was killed when all its shards were finished; its workspace."""
    store = Store(root)

    def compute(*arguments):
        toy.steps(*arguments)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.get(replace(task, stage=replace(task.stage, compute=compute)))
    [work] = (root / "steps").glob(f".{task.key[:12]}.*partial")
    return store, work


def other_settings(task):
    return replace(task, settings={"steps": 4})


def other_version(task):
    return replace(task, stage=replace(task.stage, version=2))


def other_prompts(_):
    return tasks(noise=1)[1]


def other_timings(task):
    return replace(task, asked=Asked(None, 2))


OWNERS = [other_settings, other_version, other_prompts, other_timings]


@pytest.mark.parametrize("change", OWNERS)
def test_a_shard_of_another_workspace_is_computed_again(change, tmp_path, log, capsys):
    """Both have the same names of items, and so of files."""
    task = tasks()[1]
    store, work = interrupted(tmp_path / "one", task)
    _, other = interrupted(tmp_path / "other", change(task))
    names = sorted(path.name for path in (work / "shards").iterdir())
    assert names == sorted(path.name for path in (other / "shards").iterdir())
    shutil.copy(other / "shards" / names[0], work / "shards" / names[0])
    log.unlink()
    capsys.readouterr()
    made = store.get(task)
    assert len(log.read_text().splitlines()) == 1  # the others are its own
    told = capsys.readouterr().out
    assert f"{work / 'shards' / names[0]}: of another artifact, computed again" in told
    assert made.content == Store(tmp_path / "fresh").get(task).content


def test_a_shard_that_names_no_owner_is_computed_again(tmp_path, log, capsys):
    """As version 1.0 wrote it."""
    task = tasks()[1]
    store, work = interrupted(tmp_path / "one", task)
    shard = sorted((work / "shards").iterdir())[1]
    header, _, content = read_checked(shard).partition(b"\n")
    old = {name: value for name, value in json.loads(header).items() if name != "owner"}
    write_checked(shard, json.dumps(old).encode() + b"\n" + content)
    log.unlink()
    capsys.readouterr()
    store.get(task)
    assert len(log.read_text().splitlines()) == 1
    assert f"{shard}: of another artifact" in capsys.readouterr().out

"""Copies of artifacts for people: whole after any kill, made anew when they differ, no links."""

import os
import shutil
import traceback

import pytest

from pipeline.core.copies import bring_copy
from tests.pipeline.toy import die_at, status, tasks


@pytest.fixture
def reports(store):
    """Two artifacts with files in folders."""
    return [store.get(tasks(noise=0)[-1]), store.get(tasks(count=5)[-1])]


def files(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if not path.is_dir()
    }


def test_a_copy_is_whole_and_of_the_last_artifact(store, reports, tmp_path):
    place = tmp_path / "report" / "toy"
    for report in [*reports, *reports]:
        bring_copy(store, report, place)
        assert not any(path.is_symlink() for path in [place, *place.rglob("*")])
        assert files(place) == files(report.directory)
        assert list(place.parent.iterdir()) == [place]


def test_an_equal_copy_is_left_as_it_is(store, reports, tmp_path):
    place = tmp_path / "report" / "toy"
    bring_copy(store, reports[0], place)
    inode = place.stat().st_ino
    bring_copy(store, reports[0], place)
    assert place.stat().st_ino == inode


def test_a_link_of_an_earlier_version_is_replaced(store, reports, tmp_path):
    place = tmp_path / "report" / "toy"
    place.parent.mkdir()
    for target in (reports[1].directory, tmp_path / "nothing"):
        place.symlink_to(target)
        bring_copy(store, reports[0], place)
        assert not place.is_symlink()
        assert files(place) == files(reports[0].directory)
        shutil.rmtree(place)
    reports[1].check()  # what it led to stays


@pytest.mark.parametrize("change", ["edit", "add", "remove", "record"])
def test_what_somebody_changed_is_set_aside(change, store, reports, tmp_path, capsys):
    place = tmp_path / "report" / "toy"
    bring_copy(store, reports[0], place)
    if change == "remove":
        (place / "data.parquet").unlink()
    else:
        name = {"edit": "data.parquet", "add": "mine.tex", "record": "record.json"}[change]
        (place / name).write_text("mine")
    kept = files(place)
    bring_copy(store, reports[0], place)
    assert files(place) == files(reports[0].directory)
    [aside] = (store.root / "damaged").iterdir()
    assert files(aside) == kept
    assert str(place) in capsys.readouterr().out


@pytest.mark.parametrize("own", ["file", "folder", "fifo"])
def test_what_is_no_copy_stays(own, store, reports, tmp_path):
    place = tmp_path / "report" / "toy"
    place.parent.mkdir()
    {"file": place.touch, "folder": place.mkdir, "fifo": lambda: os.mkfifo(place)}[own]()
    inode = place.stat().st_ino
    with pytest.raises(FileExistsError) as refused:
        bring_copy(store, reports[0], place)
    assert refused.value.filename == str(place)
    assert place.stat().st_ino == inode


def test_a_kill_at_any_operation_leaves_a_whole_copy_or_none(store, reports, tmp_path):
    """Of the first report, of the second, or none; the next run leaves the second and no more."""
    place = tmp_path / "report" / "toy"
    whole = [files(report.directory) for report in reports]
    seen = set()
    at = 0
    ended = None
    while ended != 0:
        at += 1
        shutil.rmtree(place.parent, ignore_errors=True)
        bring_copy(store, reports[0], place)
        pid = os.fork()
        if pid == 0:
            try:
                die_at(at)
                bring_copy(store, reports[1], place)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        ended = status(pid)
        assert ended in (0, -9)
        left = files(place) if place.exists() else None
        assert left in [None, *whole]
        seen.add(None if left is None else whole.index(left))
        bring_copy(store, reports[1], place)
        assert files(place) == whole[1]
        assert list(place.parent.iterdir()) == [place]
    assert seen == {None, 0, 1}


def test_a_full_disk_leaves_the_earlier_copy(store, reports, tmp_path, monkeypatch):
    place = tmp_path / "report" / "toy"
    bring_copy(store, reports[0], place)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space left"):
        bring_copy(store, reports[1], place)
    assert files(place) == files(reports[0].directory)
    assert list(place.parent.iterdir()) == [place]

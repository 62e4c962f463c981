"""Copies of artifacts outside the store, for people: whole files, no links."""

from __future__ import annotations

import errno
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from pipeline.core.errors import DamagedError
from pipeline.core.files import put, read_json, remove, sync
from pipeline.core.stage import RECORD, Artifact, check_files
from pipeline.core.store import Store, relative


def bring_copy(store: Store, artifact: Artifact, place: Path) -> None:
    """Copy an artifact to `place`, unless a whole copy of it is there.

    A copy that somebody changed is set aside like a damaged artifact; a link is replaced. A run
    that is killed leaves the earlier copy, the new one or none, never a part of one.

    Raises:
        FileExistsError: something else than a copy is there; it is left alone.
        OSError: nothing can be written there.
        PipelineError: what is there can't be read.
    """
    damage = None
    if not place.is_symlink() and place.exists():
        if not (place / RECORD).exists():
            raise FileExistsError(errno.EEXIST, "is no report, and stays as it is", str(place))
        try:
            record = read_json(place / RECORD)
            check_files(place, record)
            if record == artifact.record:
                _tidy(store, place)
                return
        except DamagedError as error:
            damage = error
    with store.lock():
        if damage is not None:
            aside = store.root / "damaged" / f"{place.name}.{time.time_ns()}"
            aside.parent.mkdir(exist_ok=True)
            place.rename(aside)
            print(f"changed: {damage.reason}; set aside in {relative(aside)}", flush=True)
        _replace(place, artifact)


def _replace(place: Path, artifact: Artifact) -> None:
    """Replace an earlier copy, or a link, by a copy of an artifact."""
    new, earlier = _beside(place)
    for left in (new, earlier):  # of a killed run
        remove(left)
    try:
        for name in (*artifact.record["files"], RECORD):
            path = new / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(artifact.directory / name, path)
        for path in new.rglob("*"):
            sync(path)
        if place.is_symlink():
            place.unlink()
        elif place.exists():
            place.rename(earlier)
        put(new, place)
    finally:
        remove(new)
        remove(earlier)


def _beside(place: Path) -> list[Path]:
    """Return the paths where the new copy is made and where the earlier one goes."""
    return [place.with_name(f".{place.name}.{what}") for what in ("new", "earlier")]


def _tidy(store: Store, place: Path) -> None:
    """Remove what a killed run has left beside a whole copy."""
    left = [path for path in _beside(place) if os.path.lexists(path)]
    if left:
        with suppress(OSError), store.lock():
            for path in left:
                remove(path)

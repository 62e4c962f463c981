"""Copies a report to where people look for it: whole, checked, and only when it differs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pipeline.execution.runner import UNWRITABLE, shown
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.durable import file_digest


def serve(report: Artifact, place: Path, store: Store) -> None:
    """Bring `place` to what `report`, which was checked, holds, and say where it is.

    Where the copy can't be written, on a full disk or in read-only outputs, the report itself is
    named.
    """
    shown_at, note = place, ""
    if not _same(report, place):
        try:
            with store.lock("report", "report: another process copies its report, waiting"):
                if not _same(report, place):
                    _copy(report, place)
        except OSError as error:
            if error.errno not in UNWRITABLE and not isinstance(error, PermissionError):
                raise
            shown_at = report.directory
            note = f" ({shown(place)} can't be written: {os.strerror(error.errno or 0)})"
    print(f"report: {shown(shown_at / 'index.html')}{note}")
    print(
        "open it in a browser; it needs no network. Its tables and figures as files (CSV, LaTeX, "
        f"PDF): {shown(shown_at / 'index.md')}",
        flush=True,
    )


def _same(report: Artifact, place: Path) -> bool:
    """Whether every file of `report` is in `place` as it was recorded."""
    try:
        return all(
            file_digest(place / name) == digest for name, digest in report.record["files"].items()
        )
    except OSError:
        return False


def _copy(report: Artifact, place: Path) -> None:
    if place.parent.is_dir():  # what a killed run left
        for path in place.parent.iterdir():
            if path.name.startswith(f".{place.name}."):
                shutil.rmtree(path)
    beside, before = (place.with_name(f".{place.name}.{name}") for name in ("new", "old"))
    try:
        for name in report.record["files"]:
            (beside / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(report.directory / name, beside / name)
        if place.exists():
            print(f"{shown(place)}: replaces the report that was there", flush=True)
            place.rename(before)
        beside.rename(place)
    finally:
        for path in (beside, before):
            shutil.rmtree(path, ignore_errors=True)

"""Files that survive a crash, or report their damage.

A file is written beside its place, synced and renamed, so that it is there whole or not at all.
Sealed JSON carries its own checksum: any changed byte, blanks included, is noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BLANK = "0" * 64  # stands for the checksum while it is computed


def seal(content: Mapping[str, Any]) -> str:
    """Return `content` as JSON text that begins with the checksum of all of it."""
    text = json.dumps({"checksum": BLANK, **content}, indent=1) + "\n"
    return text.replace(BLANK, hashlib.sha256(text.encode()).hexdigest(), 1)


def unseal(text: str) -> dict[str, Any]:
    """Return the content of a sealed value.

    Raises:
        ValueError: the text is not what `seal` wrote.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("is no JSON") from None
    if not isinstance(content, dict) or "checksum" not in content:
        raise ValueError("has no checksum of itself")
    del content["checksum"]
    if seal(content) != text:
        raise ValueError("differs from its checksum")
    return content


def read_sealed(path: Path) -> dict[str, Any]:
    """Read sealed JSON.

    Raises:
        OSError: the file can't be read.
        ValueError: it is not what was written; says how, without the path.
    """
    try:
        return unseal(path.read_bytes().decode("ascii"))
    except UnicodeDecodeError:
        raise ValueError("is no JSON") from None


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """Write sealed JSON in one piece."""
    beside = path.with_name(f"{path.name}.tmp")
    beside.write_text(seal(content))
    put(beside, path)


def put(beside: Path, path: Path) -> None:
    """Rename a finished file or directory of synced files to its place; durable on return."""
    sync(beside)
    beside.rename(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file's content, or a directory's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        error.filename = str(path)  # the system names none
        raise
    finally:
        os.close(descriptor)


def file_digest(path: Path) -> str:
    """Return the hex SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

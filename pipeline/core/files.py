"""Files that are whole or say that they are not: written beside their place, synced, renamed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.core.errors import DamagedError, PipelineError

BLANK = "0" * 64  # stands for the checksum while it is computed
SEAL = "§sha256="  # the checksum of a binary file stands behind the last one
MAX_NAME_LENGTH = 100  # characters of a name; a file name has at most 255 bytes
# what opening a file says where something else lies: nothing, a folder, links in a circle, a FIFO
DAMAGE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.ELOOP, errno.ENXIO}


def digest(content: bytes) -> str:
    """Return the hex SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()


def json_digest(value: Any) -> str:
    """Return the hex SHA-256 of a value as JSON, whatever the order of its keys.

    Raises:
        TypeError: it has no one form as JSON: a set, an object, bytes.
        ValueError: a number is NaN or infinite.
    """
    return digest(json.dumps(value, sort_keys=True, allow_nan=False).encode())


def slug(label: str) -> str:
    """Return `label` as a file name; of a long one the beginning, and a digest of all of it.

    >>> slug("SmolLM2 (head)"), len(slug(100 * "x")), slug(101 * "x")[-10:]
    ('SmolLM2_head_', 100, 'x-c675a2e6')
    """
    name = re.sub(r"[^A-Za-z0-9.=_-]+", "_", label)
    if len(name) <= MAX_NAME_LENGTH:
        return name
    mark = f"-{digest(label.encode())[:8]}"
    return name[: MAX_NAME_LENGTH - len(mark)] + mark


def file_digest(path: Path) -> str:
    """Return the hex SHA-256 of a file's content; OSError as of `regular`."""
    regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def regular(path: Path) -> None:
    """Raise OSError where reading a path would never end, or wait: of a device, FIFO or socket.

    FIFOs that a shell makes of ``<(command)`` are read. They lie in /dev.
    """
    mode = path.stat().st_mode
    piped = stat.S_ISFIFO(mode) and path.is_relative_to("/dev")
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or piped):
        raise OSError(errno.ENXIO, "it is no file", str(path))


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


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


def put(beside: Path, path: Path) -> None:
    """Rename a finished file, or a directory of synced files, to its place; durable on return."""
    sync(beside)
    beside.rename(path)
    sync(path.parent)


def write_whole(path: Path, *parts: bytes) -> None:
    """Write a file in one piece; a link in its place is replaced, and what it leads to stays."""
    beside = path.with_name(f"{path.name}.tmp")
    beside.unlink(missing_ok=True)  # of a killed run, or a link
    opened = beside.open("xb")
    try:
        with opened as file:
            file.writelines(parts)
        put(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a mapping as JSON that begins with the checksum of its own text, in one piece."""
    write_whole(path, _sealed(content).encode())


def _sealed(content: Mapping[str, Any]) -> str:
    text = json.dumps({"checksum": BLANK, **content}, indent=1) + "\n"
    return text.replace(BLANK, digest(text.encode()), 1)


def read_json(path: Path) -> dict[str, Any]:
    """Return what `write_json` wrote.

    Raises:
        DamagedError: the file can't be read, or differs by any byte; its directory is damaged.
    """
    try:
        regular(path)
        text = path.read_bytes().decode("ascii")
        content: dict[str, Any] = json.loads(text)
        del content["checksum"]
        if _sealed(content) != text:
            raise ValueError("it differs from its checksum")
    except OSError as error:
        raise unreadable(path.parent, path, error) from error
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        reason = f"{path} is not what was written ({type(error).__name__})"
        raise DamagedError(path.parent, reason) from error
    return content


def unreadable(artifact: Path, path: Path, error: OSError) -> PipelineError:
    """Return the error of a file that can't be read: damage, or a matter of the machine."""
    reason = f"{path} can't be read ({error.strerror or error})"
    return DamagedError(artifact, reason) if error.errno in DAMAGE else PipelineError(reason)


def write_sealed(path: Path, content: bytes) -> None:
    """Write bytes in one piece; what follows their last `SEAL`, `BLANK`, becomes their checksum.

    Raises:
        ValueError: there is no such place.
    """
    begin, checksum = _checksum(content)
    end = begin + len(BLANK)
    if content[begin:end] != BLANK.encode():
        raise ValueError(f"{path}: no place for the checksum")
    write_whole(path, content[:begin], checksum, content[end:])


def read_sealed(path: Path) -> bytes | None:
    """Return what `write_sealed` wrote; None where that is not what lies there.

    Raises:
        OSError: the file can't be read.
    """
    try:
        regular(path)
        content = path.read_bytes()
        begin, checksum = _checksum(content)
    except OSError as error:
        if error.errno in DAMAGE:
            return None
        raise
    except ValueError:
        return None
    return content if content[begin : begin + len(BLANK)] == checksum else None


def _checksum(content: bytes) -> tuple[int, bytes]:
    """Return where the checksum of some bytes stands, and what it is; ValueError without SEAL."""
    seal = SEAL.encode()
    begin = content.rindex(seal) + len(seal)
    summed = hashlib.sha256(memoryview(content)[:begin])
    summed.update(memoryview(content)[begin + len(BLANK) :])
    return begin, summed.hexdigest().encode()

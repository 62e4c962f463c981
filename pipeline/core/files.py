"""Files that are written in one piece (beside their place, synced, renamed) or have a checksum."""

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
SEAL = "§sha256="  # the checksum of a binary file follows its last SEAL
MAX_NAME_LENGTH = 100  # characters of a name; a file name has at most 255 bytes
# errors of opening a file if something else is there: nothing, a folder, a link to itself, a FIFO
DAMAGE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.ELOOP, errno.ENXIO}


def digest(content: bytes) -> str:
    """Return the SHA-256 of some bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def json_digest(value: Any) -> str:
    """Return the SHA-256 of a value as JSON, in hexadecimal; the order of keys does not matter.

    Raises:
        TypeError: JSON has no form for it: a set, an object, bytes.
        ValueError: a number is NaN or infinite.
    """
    return digest(json.dumps(value, sort_keys=True, allow_nan=False).encode())


def slug(label: str) -> str:
    """Return `label` as a file name; a long one is cut, and ends with a digest of all of it.

    >>> slug("SmolLM2 (head)"), len(slug(100 * "x")), slug(101 * "x")[-10:]
    ('SmolLM2_head_', 100, 'x-c675a2e6')
    """
    name = re.sub(r"[^A-Za-z0-9.=_-]+", "_", label)
    if len(name) <= MAX_NAME_LENGTH:
        return name
    mark = f"-{digest(label.encode())[:8]}"
    return name[: MAX_NAME_LENGTH - len(mark)] + mark


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal; OSError as of `regular`."""
    regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def regular(path: Path) -> None:
    """Raise OSError for a device, FIFO or socket, which may be endless or wait for a writer.

    The FIFOs in /dev that a shell makes for ``<(command)`` are allowed.
    """
    mode = path.stat().st_mode
    piped = stat.S_ISFIFO(mode) and path.is_relative_to("/dev")
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or piped):
        raise OSError(errno.ENXIO, "it is no file", str(path))


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with its content."""
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
    """Rename a finished file, or a directory of synced files, to `path`; durable on return."""
    sync(beside)
    beside.rename(path)
    sync(path.parent)


def write_whole(path: Path, *parts: bytes) -> None:
    """Write a file in one piece; a link in its place is replaced, not followed."""
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
    """Write a mapping in one piece as JSON that begins with a checksum of its text."""
    write_whole(path, _sealed(content).encode())


def _sealed(content: Mapping[str, Any]) -> str:
    text = json.dumps({"checksum": BLANK, **content}, indent=1) + "\n"
    return text.replace(BLANK, digest(text.encode()), 1)


def read_json(path: Path) -> dict[str, Any]:
    """Return what `write_json` wrote.

    Raises:
        DamagedError: the file is missing, or differs by any byte; names its directory.
        PipelineError: the machine can't read it.
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
    """Return the error for a file that can't be read: it is damaged, or the machine fails."""
    reason = f"{path} can't be read ({error.strerror or error})"
    return DamagedError(artifact, reason) if error.errno in DAMAGE else PipelineError(reason)


def write_sealed(path: Path, content: bytes) -> None:
    """Write bytes in one piece, with their checksum in the place of `BLANK` after the last `SEAL`.

    Raises:
        ValueError: the bytes have no such place.
    """
    begin, checksum = _checksum(content)
    end = begin + len(BLANK)
    if content[begin:end] != BLANK.encode():
        raise ValueError(f"{path}: no place for the checksum")
    write_whole(path, content[:begin], checksum, content[end:])


def read_sealed(path: Path) -> bytes | None:
    """Return what `write_sealed` wrote; None if the file is missing or differs from its checksum.

    Raises:
        OSError: the machine can't read the file.
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
    """Return the offset and the value of the checksum of some bytes; ValueError without `SEAL`."""
    seal = SEAL.encode()
    begin = content.rindex(seal) + len(seal)
    summed = hashlib.sha256(memoryview(content)[:begin])
    summed.update(memoryview(content)[begin + len(BLANK) :])
    return begin, summed.hexdigest().encode()

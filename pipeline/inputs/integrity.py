"""Checks that a model is whole: converted files, blobs of the hub's cache, one form of weights."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from pipeline.core.files import file_digest
from pipeline.inputs.hub_commits import COMMIT
from pipeline.inputs.local_files import file_state, matching

WHOLE = "model.safetensors"  # weights in one file
PARTS = "model.safetensors.index.json"  # names the files of weights in parts
SUMS = "conversion.sha256"  # checksums of the files that tools/smollm2.py wrote


def damaged(directory: Path, file_hash: Callable[[Path], str] = file_digest) -> str | None:
    """Return the name of a damaged file of a converted model, or None."""
    if not (directory / SUMS).is_file():
        return None
    lines = (directory / SUMS).read_text(errors="replace").splitlines()
    for line in lines:
        digest, _, name = line.partition("  ")
        path = directory / name
        if not path.is_file() or file_hash(path) != digest:
            return name
    return None if lines else SUMS


def damaged_blobs(folder: Path, patterns: Sequence[str]) -> list[str]:
    """Return the files of a snapshot that link to damaged blobs; other links are not checked."""
    blobs = (folder.parents[1] / "blobs").resolve()
    names = []
    for path in matching(folder, patterns):
        if path.is_symlink():
            blob = Path(os.path.normpath(path.parent / path.readlink()))
            if blob.parent.resolve() == blobs and not _as_named(blob, file_state(blob)):
                names.append(str(path.relative_to(folder)))
    return names


@cache
def _as_named(blob: Path, state: str) -> bool:  # noqa: ARG001 (part of the key)
    """Whether a blob has the SHA-256 (LFS) or Git hash that is its name; True for other names."""
    if re.fullmatch(r"[0-9a-f]{64}", blob.name):
        return file_digest(blob) == blob.name
    if COMMIT.fullmatch(blob.name):
        data = blob.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest() == blob.name
    return True


def check_one_form(folder: Path) -> None:
    """Check that a folder does not have weights both in one file and in parts.

    transformers would load the file, vLLM the parts that the index names.

    Raises:
        ValueError: it has both.
    """
    index = folder / PARTS
    if not (index.is_file() and (folder / WHOLE).is_file()):
        return
    named = json.loads(index.read_text(encoding="utf-8")).get("weight_map", {})
    if set(named.values()) != {WHOLE}:
        raise ValueError(
            f"there are weights in {WHOLE} and in the parts of {PARTS}: leave those that are "
            "meant, in a copy of the directory if it is not yours"
        )

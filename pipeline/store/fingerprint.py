"""What identifies an artifact: SHA-256 over canonical JSON of everything that determines it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def canonical(value: Any) -> Any:
    """Return `value` as plain JSON types with one representation each.

    Raises:
        TypeError: a value has no deterministic serialisation (sets, objects, NaN, ...).
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{value} can't be fingerprinted: use a finite number or null")
        return value
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: canonical(value[key]) for key in sorted(value)}
    raise TypeError(
        f"{type(value).__name__} {value!r} can't be fingerprinted: "
        "use text, numbers, booleans, lists and mappings"
    )


def fingerprint(value: Any) -> str:
    """Return the hex SHA-256 of the canonical JSON of `value`."""
    text = json.dumps(canonical(value), separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Return the hex SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""Checksums of saved answers: was a line changed since `pipeline.ask` wrote it?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipeline.core.files import digest

CHECKSUM = "sha256"
CHANGED = "answers that were changed since they were saved"


def with_checksum(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with the checksum of its other entries."""
    return {**row, CHECKSUM: _digest(row)}


def is_unchanged(row: Mapping[str, Any]) -> bool:
    """Say whether a row has the entries that its checksum was taken of; without one, it has."""
    return CHECKSUM not in row or row[CHECKSUM] == _digest(row)


def _digest(row: Mapping[str, Any]) -> str:
    others = {name: value for name, value in row.items() if name != CHECKSUM}
    return digest(json.dumps(others, sort_keys=True).encode())

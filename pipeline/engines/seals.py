"""Lines of answers that say whether they were changed since `pipeline.ask` wrote them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipeline.core.files import digest

SEAL = "sha256"
CHANGED = "answers that were changed since they were saved"


def sealed(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line's object with the checksum of its other entries."""
    return {**row, SEAL: _digest(row)}


def is_whole(row: Mapping[str, Any]) -> bool:
    """Whether an object is as it was sealed, however it is written; one without a seal is."""
    return SEAL not in row or row[SEAL] == _digest(row)


def _digest(row: Mapping[str, Any]) -> str:
    others = {name: value for name, value in row.items() if name != SEAL}
    return digest(json.dumps(others, sort_keys=True).encode())

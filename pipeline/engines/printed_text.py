"""What is printed of engines' files: their names as plain text, and what was left out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # acts on terminals, or no valid Unicode


def printable(name: Any) -> str:
    r"""Return a name that can be printed and stored: control characters as escapes.

    >>> printable("a\x1b[31m\ud800")
    'a\\u001b[31m\\ud800'
    """
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", str(name))


def counted(excluded: Mapping[str, int]) -> str:
    """Return the printed line about rows that were left out."""
    reasons = [f"{times} {reason}" for reason, times in excluded.items() if times]
    return ", ".join(reasons) or "none"

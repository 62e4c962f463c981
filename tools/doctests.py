"""An extension of griffe: the examples of a docstring are shown as code.

The docstrings have them below ``Example:``, or, where they are short, with no heading. The parser
knows them below ``Examples:`` only.
"""

from __future__ import annotations

from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Puts every doctest below a heading that the parser of docstrings knows."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = headed(obj.docstring.value)


def headed(text: str) -> str:
    """Return a docstring whose doctests stand below ``Examples:``."""
    lines: list[str] = []
    inside = False  # a doctest that had no heading
    for line in text.replace("\nExample:\n", "\nExamples:\n").splitlines():
        if not inside and line.startswith(">>>"):
            inside = True
            lines += ["Examples:"]
        inside = inside and bool(line.strip())
        lines.append(f"    {line}" if inside else line)
    return "\n".join(lines)

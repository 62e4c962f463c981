"""Folds rows of a printed table that say the same: rules Top-m whose m makes no difference."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .escape import one_line

Row = tuple[str, Sequence[str]]  # a name and the printed cells
NAMED = re.compile(r"Top-(\d+) (\+ .+)")
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")
NOTE = (
    "Top-m rules that print alike, or differ by one in a last digit, share a row, which has the "
    "numbers of the smallest m. The CSV file has them all."
)


def groups(rows: Sequence[Row]) -> list[tuple[str, int]]:
    """Return the printed rows: a name, and which of `rows` is printed under it.

    >>> rows = [(f"Top-{m} + additive (t = 0.1)", [r]) for m, r in ((4, "0.194"), (6, "0.195"))]
    >>> rows += [("Top-8 + additive (t = 0.1)", ["0.196"]), ("Tree (m = 2)", ["0.194"])]
    >>> for row in groups(rows):
    ...     print(row)
    ('Top-4, 6 + additive (t = 0.1)', 0)
    ('Top-8 + additive (t = 0.1)', 2)
    ('Tree (m = 2)', 3)
    """
    found: list[tuple[list[str], str, int]] = []
    for at, (name, cells) in enumerate(rows):
        match = NAMED.fullmatch(one_line(name))
        same = [
            sizes
            for sizes, rest, first in found
            if match is not None and rest == match[2] and _alike(rows[first][1], cells)
        ]
        if match is not None and same:
            same[0].append(match[1])
        else:
            found.append(([match[1]], match[2], at) if match else ([], name, at))
    return [(f"Top-{', '.join(sizes)} {rest}" if sizes else rest, at) for sizes, rest, at in found]


def _alike(first: Sequence[str], second: Sequence[str]) -> bool:
    return all(_near(a, b) for a, b in zip(first, second, strict=True))


def _near(first: str, second: str) -> bool:
    """Whether two texts are equal but for numbers that differ by at most one in a last digit.

    >>> _near("77 %", "78 %"), _near("9.9 %", "10 %"), _near("77 %", "79 %"), _near("1.2", "–")
    (True, True, False, False)
    """
    if first == second:
        return True
    if NUMBER.sub("#", first) != NUMBER.sub("#", second):
        return False
    pairs = zip(NUMBER.findall(first), NUMBER.findall(second), strict=True)
    return all(abs(float(a) - float(b)) <= 1.0000001 * max(_unit(a), _unit(b)) for a, b in pairs)


def _unit(number: str) -> float:
    digits, _, power = number.partition("e")
    return float(10.0 ** (int(power or 0) - len(digits.partition(".")[2])))

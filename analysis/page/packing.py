"""What the page's scripts compute with, packed: one character a step.

A page that moves eps needs to know of every step only how many levels of a grid its certificate
exceeds. So a step of a rule is one of 64 characters, and what is certified at any of the levels,
shares and lengths alike, follows exactly.
"""

from __future__ import annotations

import math

import numpy as np

from ..statistics.bootstrap import Flags, Floats, Numbers

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
BITS = 6  # of a character
LEVELS = np.round(
    [
        *np.arange(0, 0.1, 0.005),
        *np.arange(0.1, 0.3, 0.01),
        *np.arange(0.3, 0.69, 0.02),
        0.69,
        0.8,
        1.0,
    ],
    3,
)  # nats; every one of run_lengths.eps in conf/config.yaml is among them
assert len(LEVELS) == len(ALPHABET) - 1
_CHARACTERS = np.frombuffer(ALPHABET.encode(), dtype=np.uint8)


def pack_certificates(lower: Floats) -> str:
    """Return, a character a step, how many of `LEVELS` the (N,) certificates exceed, strictly.

    Example:
        >>> pack_certificates(np.array([0.0, 0.005, 0.006, np.inf]))
        'ABC_'
    """
    return _text(np.searchsorted(LEVELS, lower, side="left"))


def pack_flags(flags: Flags) -> str:
    """Return (N,) flags, six a character, the first in the highest bit.

    Example:
        >>> pack_flags(np.array([True, False, False, False, False, False, True]))
        'gg'
    """
    padded = np.zeros(-(-len(flags) // BITS) * BITS, dtype=np.intp)
    padded[: len(flags)] = flags
    return _text(padded.reshape(-1, BITS) @ (1 << np.arange(BITS - 1, -1, -1)))


def pack_counts(counts: Numbers) -> str:
    """Return integers below 64, a character each, row by row.

    Raises:
        ValueError: one is 64 or more, or negative.

    Example:
        >>> pack_counts(np.array([[0, 2], [1, 1]]))
        'ACBB'
    """
    whole = np.asarray(counts, dtype=np.intp).ravel()
    if len(whole) and not 0 <= whole.min() <= whole.max() < len(ALPHABET):
        raise ValueError(f"counts must be in [0, {len(ALPHABET)}), and one is not")
    return _text(whole)


def digits(value: float, significant: int = 3) -> float | None:
    """Return a number with so many significant digits; None, JSON's null, if it is not finite.

    Example:
        >>> digits(0.123456), digits(math.inf)
        (0.123, None)
    """
    return float(f"{value:.{significant}g}") if math.isfinite(value) else None


def _text(places: np.ndarray) -> str:
    return bytes(_CHARACTERS[places]).decode()

"""Inputs and outputs of the kernel as named tuples of arrays, and its compiler settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from ..topk import Floats

F = TypeVar("F", bound=Callable[..., Any])
Ints = NDArray[np.int64]


class StoredSteps(NamedTuple):
    """N steps: `analysis.topk.TopK`, with values (N, K) of logits or of float64 p."""

    values: NDArray[Any]
    by_logit: bool
    scale: float  # 1 / temperature
    p0: Floats
    size: int  # V


class Rules(NamedTuple):
    """R rules: arrays (R,), and the values that differ between steps as arrays (., N).

    Rule r takes its offset from offsets[offset_row[r]] where offset_row[r] >= 0. Its limit on
    ranks (for COUNTS its count, for TREE its m) comes from `limits` in the same way. Rules with
    the same threshold are adjacent, by falling limit, and share a single search.
    """

    place: Ints  # the row of its results
    again: NDArray[np.bool_]  # same threshold as the rule before, and a limit not above its limit
    kind: Ints
    slope: Floats
    gate: Ints
    offset: Floats
    offset_row: Ints
    offsets: Floats
    limit: Ints
    limit_row: Ints
    limits: Ints


class Certificates(NamedTuple):
    """Certificates of N steps under R rules, as arrays (N, R).

    The kernel writes them as (R, N), and those of one rule in a block as (steps,).

    Attributes:
        lower: nats, float64; a drafter with KL(p || q) < lower is accepted.
        upper: nats, float64; equal to lower where the certificate is exact, +inf where nothing is
            or may be rejected.
        active_size: int32, |A| of Lemma 4.2 or Theorem 5.1 (at lower); 0 where nothing is rejected.
        accepted_count: int32, n; `rules.UNKNOWN` where it is unknown, NO_COUNT for trees.
    """

    lower: Floats
    upper: Floats
    active_size: NDArray[np.int32]
    accepted_count: NDArray[np.int32]


class Block(NamedTuple):
    """Scratch of a block of steps: the ranks read so far, and the steps that accept rank 2.

    The first have[i] ranks of step i are in s, from i * width on. Its p0, the p of rank 2 and the
    certificate of rank 2 have arrays of their own, for the loops over steps. Step listed[j] accepts
    n[j] ranks, limits aside.
    """

    s: Floats
    width: int
    p0: Floats
    second: Floats
    m: Floats
    a: NDArray[np.int32]
    have: Ints
    listed: Ints
    n: Ints


def compiled(function: F, inline: bool = True) -> F:
    """Compile with numba, cached on disk.

    Inlining, and no reference counts (all arrays come from outside), halve the time here.
    """
    options: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy"}
    options |= {"forceinline": inline, "_nrt": False}
    return cast(F, numba.njit(**options)(function))


def apart(function: F) -> F:
    """Compile a rarely called function without inlining, which would slow the callers down."""
    return compiled(function, inline=False)

"""The fused kernel: every rule at every step, in one pass over the stored ranks.

Steps are taken in blocks. Of each step the ranks are read once, and only as far as some rule
needs; M by rank is computed once and shared by all rules that reject first at that rank. Nothing
of size (N, K) is made. Within a block, rules are the outer loop: their branches are then predicted
well, and results are written in order, rule by rule.

A step is kept in units of p0, so that nothing cancels between close probabilities: w = p / p0 and
e = w - 1, from exact differences of logits. With A the active tokens and c their mean w,

    R / p0 = sum over A of w log w - (sum over A of w) log c                       (fast)
           = c sum over A of phi(w / c - 1),  phi(u) = (1 + u) log(1 + u) - u      (stable)

The fast form takes one logarithm, and is used where it loses less than two digits.

Where the first rejected token is not among the K stored, lo and hi are left nan for
`analysis.truncation`. All compiled code is in this file: numba's cache on disk follows changes of
the file a function is in, not of the files of what it calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from analysis.distributions import Floats

F = TypeVar("F", bound=Callable[..., Any])
Ints = NDArray[np.int64]

CUT, COUNTS, RATIO, TREE = 0, 1, 2, 3  # kinds of rules
BLOCK = 64  # steps
FAST = 0.02  # least value of the fast form, as a share of the active mass

# Scratch of a block: s[(rank * FIELDS + field) * BLOCK + step], ranks from 0.
FIELDS = 8
P, W, E, X = 0, 1 * BLOCK, 2 * BLOCK, 3 * BLOCK  # p, w, e, w log w of the rank
SW, SX = 4 * BLOCK, 5 * BLOCK  # sums of w and of w log w up to the rank
M, A = 6 * BLOCK, 7 * BLOCK  # M of the rank (-1: not yet known), and its |A|
RANK = FIELDS * BLOCK


def compiled(function: F) -> F:
    """Compile with numba, cached on disk.

    Inlining and no reference counts (work arrays come from outside) halve the time here.
    """
    options: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy",
                               "forceinline": True, "_nrt": False}
    return cast(F, numba.njit(**options)(function))


@compiled
def phi(u: float) -> float:
    """(1 + u) log(1 + u) - u for u >= -1, to about 1e-15 relative."""
    if abs(u) > 0.25:
        return (1.0 + u) * math.log1p(u) - u if u > -1.0 else 1.0
    # log(1 + u) = 2 atanh(s): its leading terms cancel against u by hand
    s = u / (2.0 + u)
    q = s * s
    t = 1 / 13 + q * (1 / 15 + q * (1 / 17 + q / 19))
    t = 1 / 3 + q * (1 / 5 + q * (1 / 7 + q * (1 / 9 + q * (1 / 11 + q * t))))
    return 2.0 * q * (1.0 + (1.0 + s) * s * t) / (1.0 - s)


@compiled
def pair(e: float) -> float:
    """Return R / p0 of two tokens: (p0 + p1) g(gap / (p0 + p1)) / p0, p1 / p0 = 1 + e."""
    d = -e / (2.0 + e)
    return (2.0 + e) * (d * math.atanh(d) + 0.5 * math.log1p(-d * d))


@compiled
def reach(values: NDArray[Any], row: int, i: int, need: int, by_logit: bool, scale: float,
          s: Floats, have: Ints) -> bool:
    """Read on until `need` ranks of a step are read; False when one is not below its forerunner."""
    p0 = s[i]
    first = np.float64(values[row, 0])
    for rank in range(have[i], need):
        if not values[row, rank] <= values[row, rank - 1]:
            return False
        value: Any = np.float64(values[row, rank])
        at = rank * RANK + i
        if by_logit:
            d = (value - first) * scale
            if d > -0.5:
                e = math.expm1(d)
                w = 1.0 + e
            else:
                w = math.exp(d)
                e = w - 1.0
            s[at + P] = p0 * w
        else:
            w = value / p0
            e = (value - p0) / p0
            d = math.log1p(e) if e > -0.5 else math.log(w) if w > 0.0 else 0.0
            s[at + P] = value
        x = w * d if w > 0.0 else 0.0
        s[at + W], s[at + E], s[at + X], s[at + M] = w, e, x, -1.0
        s[at + SW], s[at + SX] = s[at - RANK + SW] + w, s[at - RANK + SX] + x
    have[i] = max(have[i], need)
    return True


@compiled
def single(s: Floats, i: int, others: int, w: float, e: float, x: float) -> tuple[float, int]:
    """Lemma 4.2: M / p0 of a token with this w, e and w log w, and its |A|.

    At most `others` of the top ranks, all of them read, are active beside the token itself.
    """
    k = 1
    while k < others and s[k * RANK + i + W] * (k + 1) > s[(k - 1) * RANK + i + SW] + w:
        k += 1
    mass = s[(k - 1) * RANK + i + SW] + w
    value = s[(k - 1) * RANK + i + SX] + x - mass * math.log(mass / (k + 1))
    if value > FAST * mass:
        return value, k + 1
    if k == 1:
        return pair(e), 2
    mean = e
    for j in range(k):
        mean += s[j * RANK + i + E]
    mean /= k + 1
    value = phi((e - mean) / (1.0 + mean))
    for j in range(k):
        value += phi((s[j * RANK + i + E] - mean) / (1.0 + mean))
    return (1.0 + mean) * value, k + 1


@compiled
def tree(s: Floats, i: int, m: int) -> tuple[float, int]:
    """Theorem 5.1: the least KL / p0 that lets m tokens reach x0 under q, and |A|."""
    mass, x, e, j = 1.0, 0.0, 0.0, 0
    at = m * RANK + i
    while j < m and s[at + W] * (j + 1) < mass:
        mass += s[at + W]
        x += s[at + X]
        e += s[at + E]
        j += 1
        at -= RANK
    value = x - mass * math.log(mass / (j + 1))
    if value > FAST * mass:
        return value, j + 1
    if j == 1:
        return pair(e), 2
    mean = e / (j + 1)
    value = phi(-mean / (1.0 + mean))
    for rank in range(m - j + 1, m + 1):
        value += phi((s[rank * RANK + i + E] - mean) / (1.0 + mean))
    return (1.0 + mean) * value, j + 1


@compiled
def begin(values: NDArray[Any], logsumexp: Floats, start: int, count: int, by_logit: bool,
          scale: float, s: Floats, have: Ints) -> int:
    """Read ranks 1 and 2 of a block, and certify rank 2; return the first bad step, or -1."""
    for i in range(count):
        first = np.float64(values[start + i, 0])
        p0 = math.exp(first * scale - logsumexp[start + i]) if by_logit else first
        s[i + P], s[i + W], s[i + SW], have[i] = p0, 1.0, 1.0, 1
        if not 0.0 < p0 < 1.0 + 1e-6:
            return start + i
        if values.shape[1] > 1:
            if not reach(values, start + i, i, 2, by_logit, scale, s, have):
                return start + i
            known(s, i, 1)
    return -1


@compiled
def known(s: Floats, i: int, n: int) -> int:
    """Make sure that M of rank n + 1, which is read, is computed; return where it is kept."""
    at = n * RANK + i
    if s[at + M] < 0.0:
        value, members = single(s, i, n, s[at + W], s[at + E], s[at + X])
        s[at + M], s[at + A] = s[i] * value, float(members)
    return at


@compiled
def first_rejected(start: int, count: int, s: Floats, lo: Floats, hi: Floats,
                   active: NDArray[np.int32], accepted: NDArray[np.int32]) -> None:
    """Write the certificates of a block as if rank 2 were rejected, as it is most often."""
    for i in range(count):
        lo[start + i] = s[RANK + M + i]
        hi[start + i] = s[RANK + M + i]
        active[start + i] = np.int32(s[RANK + A + i])
        accepted[start + i] = 1


@compiled
def write(n: int, row: int, i: int, k: int, size: int, s: Floats, lo: Floats, hi: Floats,
          active: NDArray[np.int32], accepted: NDArray[np.int32]) -> int:
    """Write a certificate, n tokens being accepted; 1 where the first rejected is not stored."""
    accepted[row] = n
    if n < k:
        at = known(s, i, n)
        lo[row] = hi[row] = s[at + M]
        active[row] = np.int32(s[at + A])
        return 0
    lo[row] = hi[row] = math.inf if n >= size else math.nan
    active[row] = 0
    return 1 if n < size else 0


@compiled
def cut_rule(values: NDArray[Any], start: int, count: int, by_logit: bool, scale: float,
             size: int, slope: float, offset: float, offsets: Floats, offset_row: int, gate: int,
             limit: int, limits: Ints, limit_row: int, s: Floats, have: Ints, more: Ints,
             lo: Floats, hi: Floats, active: NDArray[np.int32], accepted: NDArray[np.int32]
             ) -> tuple[int, int]:
    """Apply a rule with a threshold to a block; return the first bad step or -1, and the open.

    Where offset_row or limit_row is not -1, it is a row of numbers a step.
    """
    k, left, found = values.shape[1], 0, 0
    first_rejected(start, count, s, lo, hi, active, accepted)
    if limit_row < 0 and limit <= 1 and k > 1:
        return -1, 0
    for i in range(count):  # the steps that accept rank 2, gate and limits aside
        theta = slope * s[i] + (offset if offset_row < 0 else offsets[offset_row, start + i])
        more[found] = i
        found += 1 if k == 1 or s[RANK + P + i] > theta else 0
    for j in range(found):
        i = more[j]
        row = start + i
        theta = slope * s[i] + (offset if offset_row < 0 else offsets[offset_row, row])
        most = min(size, limit if limit_row < 0 else limits[limit_row, row])
        if 0 < gate <= size:
            if not reach(values, row, i, gate, by_logit, scale, s, have):
                return row, 0
            theta = max(theta, s[(gate - 1) * RANK + i + P])
        n = 1
        if theta < 0.0:  # every token passes, and need not be read
            n = most
        while n < min(most, k):
            if n == have[i] and not reach(values, row, i, n + 1, by_logit, scale, s, have):
                return row, 0
            if not s[n * RANK + i + P] > theta:
                break
            n += 1
        if n < size and have[i] < min(n + 1, k) and not reach(
                values, row, i, min(n + 1, k), by_logit, scale, s, have):
            return row, 0
        left += write(n, row, i, k, size, s, lo, hi, active, accepted)
    return -1, left


@compiled
def ratio_counts(values: NDArray[Any], start: int, count: int, theta: float, n: Ints) -> None:
    """Fill the accepted counts of MARS: 2 where z1 > 0 and z2 / z1 > theta, else 1."""
    for i in range(count):
        n[i] = 1
        top = np.float64(values[start + i, 0])
        if values.shape[1] > 1 and top > 0.0 and np.float64(values[start + i, 1]) / top > theta:
            n[i] = 2


@compiled
def count_rule(values: NDArray[Any], start: int, count: int, by_logit: bool, scale: float,
               size: int, n: Ints, s: Floats, have: Ints, lo: Floats, hi: Floats,
               active: NDArray[np.int32], accepted: NDArray[np.int32]) -> tuple[int, int]:
    """Apply a rule by its counts n in a block, -1 for more than K; return as `cut_rule`."""
    k, left = values.shape[1], 0
    for i in range(count):
        row = start + i
        reading = k if n[i] < 0 else 0 if n[i] >= size else min(n[i] + 1, k)
        if have[i] < reading and not reach(values, row, i, reading, by_logit, scale, s, have):
            return row, 0
        left += write(n[i] if n[i] > 0 else k, row, i, k, size, s, lo, hi, active, accepted)
        accepted[row] = n[i]
    return -1, left


@compiled
def tree_rule(values: NDArray[Any], start: int, count: int, by_logit: bool, scale: float,
              size: int, m: int, s: Floats, have: Ints, lo: Floats, hi: Floats,
              active: NDArray[np.int32], accepted: NDArray[np.int32]) -> int:
    """Apply Theorem 5.1 to a block; return the first bad step, or -1."""
    for i in range(count):
        row = start + i
        value, members = math.inf, 0
        if m < size:
            if have[i] <= m and not reach(values, row, i, m + 1, by_logit, scale, s, have):
                return row
            value, members = tree(s, i, m)
        lo[row] = hi[row] = s[i] * value
        active[row] = members
        accepted[row] = -1
    return -1


@compiled
def certify_rows(
    values: NDArray[Any], first: int, last: int, by_logit: bool, scale: float, logsumexp: Floats,
    size: int, kind: Ints, slope: Floats, gate: Ints, offset: Floats, offset_row: Ints,
    offsets: Floats, limit: Ints, limit_row: Ints, limits: Ints, s: Floats, have: Ints, n: Ints,
    lo: Floats, hi: Floats, active: NDArray[np.int32], accepted: NDArray[np.int32], left: Ints,
) -> int:
    """Fill lo, hi, active and accepted, all (R, N), for the steps from `first` to `last`.

    Adds to left, (R,), the number of steps whose first rejected token is not stored. Returns the
    first step whose ranks are not sorted numbers, or -1. s, have and n are scratch, s all zero.
    """
    for start in range(first, last, BLOCK):
        count = min(BLOCK, last - start)
        bad = begin(values, logsumexp, start, count, by_logit, scale, s, have)
        for r in range(kind.shape[0]):
            if bad >= 0:
                return bad
            if kind[r] == TREE:
                bad = tree_rule(values, start, count, by_logit, scale, size, limit[r], s, have,
                                lo[r], hi[r], active[r], accepted[r])
                continue
            if kind[r] == CUT:
                bad, more = cut_rule(values, start, count, by_logit, scale, size, slope[r],
                                     offset[r], offsets, offset_row[r], gate[r], limit[r], limits,
                                     limit_row[r], s, have, n, lo[r], hi[r], active[r], accepted[r])
            else:
                if kind[r] == RATIO:
                    ratio_counts(values, start, count, offset[r], n)
                else:
                    for i in range(count):
                        n[i] = limits[limit_row[r], start + i]
                bad, more = count_rule(values, start, count, by_logit, scale, size, n, s, have,
                                       lo[r], hi[r], active[r], accepted[r])
            left[r] += more
        if bad >= 0:
            return bad
    return -1

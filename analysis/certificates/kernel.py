"""The fused kernel: every rule at every step, in one pass over the stored ranks.

StoredSteps are taken in blocks. Of each step the ranks are read once, and only as far as some rule
needs; M by rank is computed once and shared by all rules that reject first at that rank. Nothing
of size (N, K) is made. Within a block, rules are the outer loop: their branches are then predicted
well, and results are written in order, rule by rule.

A step is kept in units of p0, so that nothing cancels between close probabilities: w = p / p0 and
e = w - 1, from exact differences of logits. With A the active tokens and c their mean w,

    R / p0 = sum over A of w log w - (sum over A of w) log c                       (fast)
           = c sum over A of phi(w / c - 1),  phi(u) = (1 + u) log(1 + u) - u      (stable)

The fast form takes one logarithm, and is used where it loses less than two digits.

Where the first rejected token is not among the K stored, lower and upper are left nan for
`truncation`. All compiled code is in this file: numba's cache on disk follows changes of
the file a function is in, not of the files of what it calls.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..topk import Floats
from .kernel_types import Block, Found, Ints, Rules, StoredSteps, compiled

CUT, COUNTS, RATIO, TREE = 0, 1, 2, 3  # kinds of rules
BLOCK = 128  # steps
FAST = 0.02  # least value of the fast form, as a share of the active mass

# What is kept of a rank of a step: s[base + rank * RECORD + field], ranks from 0. A record fills a
# cache line.
RECORD = 8
P, W, E, X = 0, 1, 2, 3  # p, w, e, w log w
SW, SX = 4, 5  # sums of w and of w log w up to the rank
M, A = 6, 7  # M of the rank (-1: not yet known), and its |A|


def scratch(k: int) -> Block:
    """Return the scratch of a thread for K stored tokens."""
    p0, second, m = np.zeros((3, BLOCK))
    have, listed, n = np.zeros((3, BLOCK + 1), dtype=np.int64)
    width = (k + 1) * RECORD
    a = np.zeros(BLOCK, dtype=np.int32)
    return Block(np.zeros(BLOCK * width), width, p0, second, m, a, have, listed, n)


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
def reach(steps: StoredSteps, block: Block, row: int, i: int, need: int) -> bool:
    """Read on until `need` ranks of a step are read; False when one is above its forerunner."""
    have = block.have[i]
    if have >= need:
        return True
    s, p0, first = block.s, block.p0[i], np.float64(steps.values[row, 0])
    at = i * block.width + (have - 1) * RECORD
    sum_w, sum_x, last = s[at + SW], s[at + SX], np.float64(steps.values[row, have - 1])
    for rank in range(have, need):
        value: Any = np.float64(steps.values[row, rank])
        if not value <= last:
            return False
        last = value
        if steps.by_logit:
            d = (value - first) * steps.scale
            if d > -0.5:
                e = math.expm1(d)
                w = 1.0 + e
            else:
                w = math.exp(d)
                e = w - 1.0
            p = p0 * w
        else:
            p = value
            w = value / p0
            e = (value - p0) / p0
            d = math.log1p(e) if e > -0.5 else math.log(w) if w > 0.0 else 0.0
        x = w * d if w > 0.0 else 0.0
        sum_w += w
        sum_x += x
        at += RECORD
        s[at + P], s[at + W], s[at + E], s[at + X] = p, w, e, x
        s[at + SW], s[at + SX], s[at + M] = sum_w, sum_x, -1.0
    block.have[i] = need
    return True


@compiled
def single(s: Floats, base: int, n: int) -> tuple[float, int]:
    """Lemma 4.2 for rank n + 1, with the n ranks before it as the others: M / p0, and |A|."""
    token, last, k = base + n * RECORD, base, 1
    w = s[token + W]
    while k < n and s[last + RECORD + W] * (k + 1) > s[last + SW] + w:
        k += 1
        last += RECORD
    mass = s[last + SW] + w
    value = s[last + SX] + s[token + X] - mass * math.log(mass / (k + 1))
    if value > FAST * mass:
        return value, k + 1
    if k == 1:
        return pair(s[token + E]), 2
    mean = s[token + E]
    for j in range(k):
        mean += s[base + j * RECORD + E]
    mean /= k + 1
    value = phi((s[token + E] - mean) / (1.0 + mean))
    for j in range(k):
        value += phi((s[base + j * RECORD + E] - mean) / (1.0 + mean))
    return (1.0 + mean) * value, k + 1


@compiled
def tree(s: Floats, base: int, m: int) -> tuple[float, int]:
    """Theorem 5.1: the least KL / p0 that lets m tokens reach x0 under q, and |A|."""
    at, second = base + m * RECORD, s[base + RECORD + W]
    mass, x, j = 1.0, 0.0, 0
    if second * m < s[at + SW] - second:  # all of ranks 2..m+1 are below the level
        mass, x, j = s[at + SW], s[at + SX], m
    while j < m and s[at + W] * (j + 1) < mass:
        mass += s[at + W]
        x += s[at + X]
        j += 1
        at -= RECORD
    value = x - mass * math.log(mass / (j + 1))
    if value > FAST * mass:
        return value, j + 1
    if j == 1:
        return pair(s[base + m * RECORD + E]), 2
    mean = 0.0
    for rank in range(m - j + 1, m + 1):
        mean += s[base + rank * RECORD + E]
    mean /= j + 1
    value = phi(-mean / (1.0 + mean))
    for rank in range(m - j + 1, m + 1):
        value += phi((s[base + rank * RECORD + E] - mean) / (1.0 + mean))
    return (1.0 + mean) * value, j + 1


@compiled
def known(s: Floats, base: int, n: int) -> int:
    """Make sure that M of rank n + 1, which is read, is computed; return where it is kept."""
    at = base + n * RECORD
    if s[at + M] < 0.0:
        value, members = single(s, base, n)
        s[at + M], s[at + A] = s[base + P] * value, float(members)
    return at


@compiled
def begin(steps: StoredSteps, block: Block, start: int, count: int) -> int:
    """Read ranks 1 and 2 of a block, and certify rank 2; return the first bad step, or -1."""
    s = block.s
    for i in range(count):
        base, p0 = i * block.width, steps.p0[start + i]
        s[base + P], s[base + W], s[base + SW], block.p0[i], block.have[i] = p0, 1.0, 1.0, p0, 1
        if not 0.0 < p0 < 1.0 + 1e-6:
            return start + i
        if steps.values.shape[1] > 1:
            if not reach(steps, block, start + i, i, 2):
                return start + i
            at = known(s, base, 1)
            block.second[i], block.m[i], block.a[i] = s[at + P], s[at + M], np.int32(s[at + A])
    return -1


@compiled
def first_rejected(block: Block, found: Found) -> None:
    """Write the certificates of a block as if rank 2 were rejected, as it is most often."""
    for i in range(found.lower.size):
        found.lower[i] = block.m[i]
        found.upper[i] = block.m[i]
    for i in range(found.lower.size):
        found.active[i] = block.a[i]
        found.accepted[i] = 1


@compiled
def write(block: Block, found: Found, i: int, n: int, k: int, size: int) -> int:
    """Write a certificate, n tokens being accepted (-1: more than k); 1 where it stays open."""
    found.accepted[i] = n
    if 0 < n < k:
        at = known(block.s, i * block.width, n)
        found.lower[i] = found.upper[i] = block.s[at + M]
        found.active[i] = np.int32(block.s[at + A])
        return 0
    found.lower[i] = found.upper[i] = math.inf if n >= size else math.nan
    found.active[i] = 0
    return 1 if n < size else 0


@compiled
def by_threshold(
    steps: StoredSteps, rules: Rules, r: int, block: Block, start: int, count: int
) -> tuple[int, int]:
    """List the steps of a block that accept rank 2; return how many, and a bad step or -1."""
    k, listed = steps.values.shape[1], 0
    offset_row, limit_row, gate = rules.offset_row[r], rules.limit_row[r], rules.gate[r]
    if k > 1 and limit_row < 0 and rules.limit[r] <= 1:
        return 0, -1
    for i in range(count):
        theta = rules.slope[r] * block.p0[i]
        theta += rules.offset[r] if offset_row < 0 else rules.offsets[offset_row, start + i]
        block.listed[listed] = i
        listed += 1 if k == 1 or block.second[i] > theta else 0
    for j in range(listed):
        i = block.listed[j]
        row, base = start + i, i * block.width
        theta = rules.slope[r] * block.p0[i]
        theta += rules.offset[r] if offset_row < 0 else rules.offsets[offset_row, row]
        most = min(steps.size, rules.limit[r] if limit_row < 0 else rules.limits[limit_row, row])
        if 0 < gate <= steps.size:
            if not reach(steps, block, row, i, gate):
                return 0, row
            theta = max(theta, block.s[base + (gate - 1) * RECORD + P])
        n = most if theta < 0.0 else 1  # below 0 every token passes, and need not be read
        while n < min(most, k):
            if not reach(steps, block, row, i, n + 1):
                return 0, row
            if not block.s[base + n * RECORD + P] > theta:
                break
            n += 1
        block.n[j] = n
    return listed, -1


@compiled
def by_ratio(steps: StoredSteps, theta: float, block: Block, start: int, count: int) -> int:
    """List the steps of a block at which MARS accepts rank 2: z1 > 0 and z2 / z1 > theta."""
    listed = 0
    if steps.size == 1:  # x0 is all there is, and is accepted
        for i in range(count):
            block.listed[i], block.n[i] = i, 1
        return count
    for i in range(count):
        top, second = np.float64(steps.values[start + i, 0]), steps.values[start + i, 1]
        block.listed[listed], block.n[listed] = i, 2
        listed += 1 if top > 0.0 and np.float64(second) / top > theta else 0
    return listed


@compiled
def by_count(counts: Ints, row: int, block: Block, start: int, count: int) -> int:
    """List all steps of a block with the counts that a rule gave."""
    for i in range(count):
        block.listed[i], block.n[i] = i, counts[row, start + i]
    return count


@compiled
def settle(
    steps: StoredSteps, rules: Rules, r: int, block: Block, listed: int, found: Found, start: int
) -> tuple[int, int]:
    """Write the certificates of a block; return the first bad step or -1, and how many are open."""
    k, left, limit_row = steps.values.shape[1], 0, rules.limit_row[r]
    first_rejected(block, found)
    for j in range(listed):
        i, n = block.listed[j], block.n[j]
        if rules.kind[r] == CUT:
            n = min(n, rules.limit[r] if limit_row < 0 else rules.limits[limit_row, start + i])
        need = k if n < 0 else 0 if n >= steps.size else min(n + 1, k)
        if not reach(steps, block, start + i, i, need):
            return start + i, 0
        left += write(block, found, i, n, k, steps.size)
    return -1, left


@compiled
def tree_rule(steps: StoredSteps, m: int, block: Block, found: Found, start: int) -> int:
    """Apply Theorem 5.1 to a block; return the first bad step, or -1."""
    for i in range(found.lower.size):
        value, members = math.inf, 0
        if m < steps.size:
            if not reach(steps, block, start + i, i, m + 1):
                return start + i
            value, members = tree(block.s, i * block.width, m)
        found.lower[i] = found.upper[i] = block.p0[i] * value
        found.active[i] = members
        found.accepted[i] = 0  # rules.NO_COUNT
    return -1


@compiled
def certify_rows(
    steps: StoredSteps, rules: Rules, block: Block, found: Found, left: Ints, first: int, last: int
) -> int:
    """Certify the steps from `first` to `last`, in blocks.

    Adds to left, (R,), the number of steps whose first rejected token is not stored. Returns the
    first step whose ranks are not sorted numbers, or -1.
    """
    for start in range(first, last, BLOCK):
        stop = min(start + BLOCK, last)
        count, listed = stop - start, 0
        bad = begin(steps, block, start, count)
        for r in range(rules.kind.size):
            if bad >= 0:
                return bad
            place, more = rules.place[r], 0
            part = Found(
                found.lower[place, start:stop],
                found.upper[place, start:stop],
                found.active[place, start:stop],
                found.accepted[place, start:stop],
            )
            if rules.kind[r] == TREE:
                bad = tree_rule(steps, rules.limit[r], block, part, start)
                continue
            if rules.kind[r] == CUT and not rules.again[r]:
                listed, bad = by_threshold(steps, rules, r, block, start, count)
                if bad >= 0:
                    return bad
            elif rules.kind[r] == RATIO:
                listed = by_ratio(steps, rules.offset[r], block, start, count)
            elif rules.kind[r] == COUNTS:
                listed = by_count(rules.limits, rules.limit_row[r], block, start, count)
            bad, more = settle(steps, rules, r, block, listed, part, start)
            left[place] += more
        if bad >= 0:
            return bad
    return -1

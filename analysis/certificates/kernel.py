"""The fused kernel: certificates of every rule at every step, in one pass over the stored ranks.

The ranks of a step are read once, only as far as some rule needs. M of a rank is computed once for
all rules. Within a block of steps rules are the outer loop, so that branches are predicted well.

A step is stored in units of p0, so close probabilities do not cancel: w = p / p0 and e = w - 1,
from exact differences of logits. With A the active tokens and m their mean w,

    R / p0 = sum over A of w log w - (sum over A of w) log m       (fast: one logarithm)
           = sum over A of m k(log(w / m)), k as in `gap`          (if the first loses two digits)

Where the first rejected token is not stored, lower and upper are NaN, and `truncation` computes
them.

All compiled code is in this file: numba's disk cache does not see changes of other files.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..topk import Floats
from .kernel_types import Block, Certificates, Ints, Rules, StoredSteps, apart, compiled

CUT, COUNTS, TREE = 0, 1, 2  # kinds of rules
BLOCK = 128  # steps
FAST = 0.02  # least value for which the fast form is used, as a share of the active mass

# Fields of a rank of a step: s[base + rank * RECORD + field], ranks from 0; one cache line.
RECORD = 8
P, W, E, X = 0, 1, 2, 3  # p, w, e, and x = w log w
SW, SX = 4, 5  # sums of w and of x up to the rank
M, A = 6, 7  # M of the rank (-1: not yet known), and its |A|


@compiled
def gap(y: float) -> float:
    """Return y e^y - e^y + 1, from a series where its terms would cancel."""
    if abs(y) < 0.25:
        total, u, t, lead = 0.0, 1.0, 0.5 * y * y, 1.0
        for n in range(3, 15):  # sum of (n - 1) y^n / n! from n = 2 on
            total += u * t
            lead *= y
            u, t = u * y + lead, t / n
        return total
    y = max(y, -700.0)
    return math.exp(y) * y - math.expm1(y)


@compiled
def read_on(steps: StoredSteps, block: Block, row: int, i: int, need: int) -> bool:
    """Read ranks of a step until `need` are read; False if one exceeds the rank before it."""
    have = block.have[i]
    if have >= need:
        return True
    s, p0, first = block.s, block.p0[i], np.float64(steps.values[row, 0])
    pos = i * block.width + (have - 1) * RECORD
    sum_w, sum_x, last = s[pos + SW], s[pos + SX], np.float64(steps.values[row, have - 1])
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
            p, w, e = value, value / p0, (value - p0) / p0
            d = math.log1p(e) if e > -0.5 else math.log(w) if w > 0.0 else -math.inf
        x = w * d if w > 0.0 else 0.0
        sum_w += w
        sum_x += x
        pos += RECORD
        s[pos + P], s[pos + W], s[pos + E], s[pos + X] = p, w, e, x
        s[pos + SW], s[pos + SX], s[pos + M] = sum_w, sum_x, -1.0
    block.have[i] = need
    return True


@apart
def spread(s: Floats, base: int, first: int, k: int, pos: int, level: float) -> float:
    """Return the sum over A of m k(log(w / m)), level = log m, whose terms do not cancel."""
    value = gap(math.log1p(s[pos + E]) - level)
    for j in range(first, first + k):
        value += gap(math.log1p(s[base + j * RECORD + E]) - level)
    return math.exp(level) * value


@compiled
def cost(block: Block, base: int, first: int, k: int, other: int, mass: float, x: float) -> float:
    """Return the least KL of a q constant on A: k ranks from `first` on, and `other`."""
    s, pos = block.s, base + other * RECORD
    value = x - mass * math.log(mass / (k + 1))
    if value < FAST * mass:
        mean = s[pos + E]
        for j in range(first, first + k):
            mean += s[base + j * RECORD + E]
        value = spread(s, base, first, k, pos, math.log1p(mean / (k + 1)))
    return float(s[base + P] * value)


@compiled
def single(block: Block, base: int, n: int) -> tuple[float, int]:
    """Return M of rank n + 1 and |A|, from the n ranks before it (Lemma 4.2)."""
    s, token, last, k = block.s, base + n * RECORD, base, 1
    w = s[token + W]
    while k < n and s[last + RECORD + W] * (k + 1) > s[last + SW] + w:
        k += 1
        last += RECORD
    mass, x = s[last + SW] + w, s[last + SX] + s[token + X]
    return cost(block, base, 0, k, n, mass, x), k + 1


@compiled
def tree(block: Block, base: int, m: int) -> tuple[float, int]:
    """Return the least KL with which m tokens reach x0 under q, and |A| (Theorem 5.1)."""
    s, pos = block.s, base + m * RECORD
    second, mass, x, j = s[base + RECORD + W], 1.0, s[base + X], 0
    if second * m < s[pos + SW] - second:  # all of ranks 2..m+1 are below the level
        mass, x, j = s[pos + SW], s[pos + SX], m
    while j < m and s[pos + W] * (j + 1) < mass:
        mass += s[pos + W]
        x += s[pos + X]
        j += 1
        pos -= RECORD
    return cost(block, base, m - j + 1, j, 0, mass, x), j + 1


@compiled
def certified_pos(block: Block, base: int, n: int) -> int:
    """Return the position in s of rank n + 1, which has been read, with its M computed."""
    pos = base + n * RECORD
    if block.s[pos + M] < 0.0:
        value, members = single(block, base, n)
        block.s[pos + M], block.s[pos + A] = value, float(members)
    return pos


@compiled
def begin_block(steps: StoredSteps, block: Block, start: int, count: int) -> int:
    """Read ranks 1 and 2 of a block and certify rank 2; return the first invalid step, or -1."""
    for i in range(count):
        s, base, p0 = block.s, i * block.width, steps.p0[start + i]
        s[base + P], s[base + W], s[base + SW], block.p0[i], block.have[i] = p0, 1.0, 1.0, p0, 1
        if not 0.0 < p0 < 1.0 + 1e-6:
            return start + i
        if steps.values.shape[1] > 1:
            if not read_on(steps, block, start + i, i, 2):
                return start + i
            pos = certified_pos(block, base, 1)
            block.second[i], block.m[i], block.a[i] = s[pos + P], s[pos + M], np.int32(s[pos + A])
    return -1


@compiled
def write(block: Block, out: Certificates, i: int, n: int, k: int, size: int) -> int:
    """Write the certificate of n accepted tokens (-1: more than k); return 1 if it is unknown."""
    out.accepted_count[i] = n
    if 0 < n < k:
        pos = certified_pos(block, i * block.width, n)
        out.lower[i] = out.upper[i] = block.s[pos + M]
        out.active_size[i] = np.int32(block.s[pos + A])
        return 0
    out.lower[i] = out.upper[i] = math.inf if n >= size else math.nan
    out.active_size[i] = 0
    return 1 if n < size else 0


@compiled
def by_threshold(
    steps: StoredSteps, rules: Rules, r: int, block: Block, start: int, count: int
) -> tuple[int, int]:
    """List the steps of a block that accept rank 2; return their number, and a bad step or -1."""
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
            if not read_on(steps, block, row, i, gate):
                return 0, row
            theta = max(theta, block.s[base + (gate - 1) * RECORD + P])
        n = most if theta < 0.0 else 1  # below 0 every token passes without being read
        while n < min(most, k):
            if not read_on(steps, block, row, i, n + 1):
                return 0, row
            if not block.s[base + n * RECORD + P] > theta:
                break
            n += 1
        block.n[j] = n
    return listed, -1


@compiled
def settle(
    steps: StoredSteps,
    rules: Rules,
    r: int,
    block: Block,
    listed: int,
    out: Certificates,
    start: int,
) -> tuple[int, int]:
    """Write the certificates of a block; return a bad step or -1, and the unknown number."""
    k, unknown, limit_row = steps.values.shape[1], 0, rules.limit_row[r]
    for i in range(out.lower.size):  # first as if rank 2 were rejected, the most frequent case
        out.lower[i] = out.upper[i] = block.m[i]
        out.active_size[i], out.accepted_count[i] = block.a[i], 1
    for j in range(listed):
        i, n = block.listed[j], block.n[j]
        if rules.kind[r] == CUT:
            n = min(n, rules.limit[r] if limit_row < 0 else rules.limits[limit_row, start + i])
        need = k if n < 0 else 0 if n >= steps.size else min(n + 1, k)
        if not read_on(steps, block, start + i, i, need):
            return start + i, 0
        unknown += write(block, out, i, n, k, steps.size)
    return -1, unknown


@compiled
def tree_rule(steps: StoredSteps, m: int, block: Block, out: Certificates, start: int) -> int:
    """Write the tree certificates of a block; return the first invalid step, or -1."""
    for i in range(out.lower.size):
        value, members = math.inf, 0
        if m < steps.size:
            if not read_on(steps, block, start + i, i, m + 1):
                return start + i
            value, members = tree(block, i * block.width, m)
        out.lower[i] = out.upper[i] = value
        out.active_size[i], out.accepted_count[i] = members, 0  # rules.NO_COUNT
    return -1


@compiled
def certify_rows(
    steps: StoredSteps, rules: Rules, block: Block, out: Certificates, unknown: Ints
) -> int:
    """Write the certificates of all steps; return the first invalid step (ranks unsorted), or -1.

    Adds the number of steps whose first rejected token is not stored to `unknown`, (R,).
    """
    for start in range(0, len(steps.p0), BLOCK):
        stop = min(start + BLOCK, len(steps.p0))
        count, listed = stop - start, 0
        bad = begin_block(steps, block, start, count)
        for r in range(rules.kind.size):
            if bad >= 0:
                return bad
            place, more = rules.place[r], 0
            part = Certificates(
                out.lower[place, start:stop],
                out.upper[place, start:stop],
                out.active_size[place, start:stop],
                out.accepted_count[place, start:stop],
            )
            if rules.kind[r] == TREE:
                bad = tree_rule(steps, rules.limit[r], block, part, start)
                continue
            if rules.kind[r] == CUT and not rules.again[r]:
                listed, bad = by_threshold(steps, rules, r, block, start, count)
                if bad >= 0:
                    return bad
            elif rules.kind[r] == COUNTS:
                listed = count
                for i in range(count):
                    block.listed[i], block.n[i] = i, rules.limits[rules.limit_row[r], start + i]
            bad, more = settle(steps, rules, r, block, listed, part, start)
            unknown[place] += more
        if bad >= 0:
            return bad
    return -1

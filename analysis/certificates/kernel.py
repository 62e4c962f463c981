"""The compiled arithmetic of certificates: every rule at every step, in one pass.

A token rule accepts the n most probable tokens of a step, and the closest draft q* that can be
rejected makes rank n + 1 a mode. q* is constant on the active tokens A, the mean c of their p, and
equals p elsewhere (Lemma 4.2, Theorem 4.4). The active tokens are rank n + 1 and those above c. In
a tree the m tokens behind x0 must reach x0 (Theorem 5.1), and x0 and those of them below c are
active.

R = sum over A of p log(p / c). Everything is in units of p0, from exact differences of logits, so
near-ties keep their digits. Where the terms of R cancel, those of c phi(p / c - 1) do not.

All compiled code is in this file: numba's disk cache does not see changes of other files. It finds
a function by its name and first line, and fails where a class that it knew there has another name:
move the functions by a line when you rename a class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from ..rule_base import Counts, Threshold
from ..rules import Tree
from ..topk import Floats, TopK

F = TypeVar("F", bound=Callable[..., Any])
Ints = NDArray[np.int64]
PROBABILITIES, FLOAT32, FLOAT64 = 0, 1, 2  # what is stored of a step; the others are logits
CANCELS = 0.02  # the sum of p log(p / c) loses two digits below this share of the active mass


class Certificates(NamedTuple):
    """Certificates of N steps under R rules, as arrays (N, R)."""

    lower: Floats  # nats, float64; a drafter with KL(p || q) < lower is accepted
    # nats, float64; equal to lower where the certificate is exact, +inf where nothing is or may be
    # rejected
    upper: Floats
    # int32, |A| of Lemma 4.2 or Theorem 5.1 (at lower); 0 where nothing is rejected
    active_size: NDArray[np.int32]
    accepted_count: Counts  # int32, n; `rule_base.UNKNOWN` where it is unknown, NO_COUNT for trees


class Stored(NamedTuple):
    """N steps of K tokens; only one of the two (N, K) arrays has tokens."""

    content: int  # PROBABILITIES, FLOAT32 or FLOAT64 logits
    singles: NDArray[np.float32]
    doubles: Floats
    scale: float  # 1 / temperature
    size: int  # V


class RuleTable(NamedTuple):
    """R rules at N steps: a rank passes if it is <= most and p > theta."""

    is_tree: NDArray[np.bool_]  # (R,)
    theta: Floats  # (N, R)
    most: Ints  # (N, R); of a tree m


class Ranks(NamedTuple):
    """The ranks of a step that have been read, from 0, as arrays (K,)."""

    p: Floats
    log: Floats  # log(p / p0)
    e: Floats  # p / p0 - 1
    times: Floats  # how many tokens of this p there are; 1 for stored ones
    least: Floats  # M of the rank, NaN until it is known
    active: NDArray[np.int32]  # its |A|
    have: Ints  # (1,), how many have been read


def compiled(function: F) -> F:
    """Compile with numba, cached on disk; without allocations, so without reference counts."""
    options: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy"}
    options |= {"forceinline": True, "_nrt": False}
    return cast(F, numba.njit(**options)(function))


@compiled
def scalar_phi(u: float) -> float:
    """Return (1 + u) log(1 + u) - u; by log(1 + u) = 2 atanh(s) near 0, where terms cancel."""
    if u <= -1.0:
        return 1.0
    if abs(u) >= 0.25:
        return (1.0 + u) * math.log1p(u) - u
    s = u / (2.0 + u)
    q = s * s
    tail = 0.0
    for n in range(19, 1, -2):
        tail = tail * q + 1.0 / n
    return 2.0 * q * (1.0 + (1.0 + s) * s * tail) / (1.0 - s)


@compiled
def divergence(ranks: Ranks, first: int, last: int, other: int, level: float) -> float:
    """Return KL(p || q*) of active ranks, [first, last) and `other`; `level` is c / p0 - 1."""
    p = ranks.p
    log = ranks.log
    e = ranks.e
    times = ranks.times
    log_level = math.log1p(level)
    value = p[other] * (log[other] - log_level)
    mass = p[other]
    for j in range(first, last):
        value += times[j] * p[j] * (log[j] - log_level)
        mass += times[j] * p[j]
    if value >= CANCELS * mass:
        return float(value)
    terms = scalar_phi((e[other] - level) / (1.0 + level))
    for j in range(first, last):
        terms += times[j] * scalar_phi((e[j] - level) / (1.0 + level))
    return float(p[0] * (1.0 + level) * terms)


@compiled
def token_certificate(ranks: Ranks, n: int) -> tuple[float, int]:
    """Return M of rank n + 1, the least KL that makes it a mode of q, and |A| (Lemma 4.2)."""
    total = ranks.e[n]
    size = 1.0 + ranks.times[0]  # with x0, whose e is 0
    last = 1
    while last < n and ranks.e[last] * size > total:
        total += ranks.times[last] * ranks.e[last]
        size += ranks.times[last]
        last += 1
    return divergence(ranks, 0, last, n, total / size), int(size)


@compiled
def tree_certificate(ranks: Ranks, m: int) -> tuple[float, int]:
    """Return the least KL with which m tokens reach x0 under q, and |A| (Theorem 5.1)."""
    total = 0.0
    size = 1
    while size <= m and ranks.e[m + 1 - size] * size < total:
        total += ranks.e[m + 1 - size]
        size += 1
    return divergence(ranks, m + 2 - size, m + 1, 0, total / size), size


@compiled
def stored_value(steps: Stored, step: int, rank: int) -> float:
    """Return a stored number in float64."""
    if steps.content == FLOAT32:
        return float(steps.singles[step, rank])
    return float(steps.doubles[step, rank])


@compiled
def load_ranks(steps: Stored, step: int, ranks: Ranks, need: int) -> None:
    """Read ranks of a step until `need` are there; p0 becomes NaN if one exceeds that before it."""
    p0 = ranks.p[0]
    first = stored_value(steps, step, 0)
    for n in range(ranks.have[0], need):
        value = stored_value(steps, step, n)
        if not value <= stored_value(steps, step, n - 1):
            ranks.p[0] = math.nan
        if steps.content == PROBABILITIES:
            p = value
            e = (value - p0) / p0
            log = math.log1p(e) if e > -0.5 else math.log(value / p0)
        else:
            log = (value - first) * steps.scale
            w = math.exp(log) if log <= -0.5 else 0.0
            e = math.expm1(log) if log > -0.5 else w - 1.0
            p = p0 * (1.0 + e if log > -0.5 else w)
        ranks.p[n] = p
        ranks.e[n] = e
        ranks.least[n] = math.nan
        ranks.log[n] = max(log, -1e300)  # 0 times it is 0
    ranks.have[0] = max(ranks.have[0], need)


@compiled
def accepted_ranks(steps: Stored, step: int, ranks: Ranks, theta: float, most: int) -> int:
    """Return how many ranks, of at most `most`, are x0 or have p > theta; K if more may."""
    if theta < 0.0:
        return most
    n = 1
    while n < min(most, len(ranks.p)):
        load_ranks(steps, step, ranks, n + 1)
        if not ranks.p[n] > theta:
            break
        n += 1
    return n


@compiled
def certify_rows(
    steps: Stored, p0s: Floats, rules: RuleTable, ranks: Ranks, out: Certificates
) -> int:
    """Write the certificates of all steps; return the first invalid step, or -1.

    Where the first rejected token is not stored, lower and upper are NaN.
    """
    for step in range(len(p0s)):
        p0 = p0s[step]
        ranks.p[0] = p0
        ranks.log[0] = 0.0
        ranks.e[0] = 0.0
        ranks.have[0] = 1
        for r in range(len(rules.is_tree)):
            is_tree = rules.is_tree[r]
            n = rules.most[step, r]
            if not is_tree:
                n = accepted_ranks(steps, step, ranks, rules.theta[step, r], n)
            value = math.inf if n >= steps.size else math.nan
            active = 0
            if 0 < n < len(ranks.p):
                load_ranks(steps, step, ranks, n + 1)
                if is_tree:
                    value, active = tree_certificate(ranks, n)
                else:
                    if math.isnan(ranks.least[n]):
                        ranks.least[n], ranks.active[n] = token_certificate(ranks, n)
                    value = ranks.least[n]
                    active = ranks.active[n]
            out.lower[step, r] = out.upper[step, r] = value
            out.active_size[step, r] = active
            out.accepted_count[step, r] = 0 if is_tree else n  # rule_base.NO_COUNT
        if not (ranks.p[0] == p0 and 0.0 < p0 < 1.0 + 2e-6):
            return step
    return -1


@compiled
def mode_cost_rows(
    p0: Floats, others: Floats, times: Floats, token: Floats, ranks: Ranks, value: Floats,
    size: NDArray[np.int32],
) -> None:  # fmt: skip
    """Write M of a token besides other ones, and |A|, row by row."""
    count = others.shape[1]
    for row in range(len(p0)):
        for j in range(count + 1):
            e = token[row] if j == count else others[row, j]
            ranks.e[j] = e
            ranks.p[j] = p0[row] * (1.0 + e)
            ranks.log[j] = math.log1p(e) if e > -1.0 else -1e300  # 0 times it is 0
            ranks.times[j] = 1.0 if j == count else times[row, j]
        value[row], size[row] = token_certificate(ranks, count)


def mode_cost(
    p0: Floats, others: Floats, token: Floats, times: Floats | None = None, widen: float = 0.0
) -> tuple[Floats, NDArray[np.int32]]:
    """Return M, the least KL that makes a token a mode of q, and |A|, each (N,).

    Of p / p0 - 1, p0 (N,) being rank 1's: `others` (N, J) by decreasing p, with their multiplicity
    `times` (N, J), 1 if not given; and `token` (N,), at most that of every other active token. M is
    increased by `widen`, relative.
    """
    rows, count = others.shape
    value = np.empty(rows)
    size = np.empty(rows, dtype=np.int32)
    times = np.ones_like(others) if times is None else times
    p0, others, times, token = map(np.ascontiguousarray, (p0, others, times, token))
    mode_cost_rows(p0, others, times, token, _no_ranks(count + 1), value, size)
    return value * (1.0 + widen), size


def _no_ranks(size: int) -> Ranks:
    """Return room for the ranks of a step."""
    p, log, e, least = np.empty((4, size))
    active = np.empty(size, dtype=np.int32)
    return Ranks(p, log, e, np.ones(size), least, active, np.zeros(1, dtype=np.int64))


def certify_stored(dist: TopK, tests: Sequence[Threshold | Counts | Tree]) -> Certificates:
    """Return the certificates of N steps under R tests; NaN where too few tokens are stored.

    Raises:
        ValueError: the ranks of a step are not sorted, or its p0 is impossible.
    """
    shape = (len(dist), len(tests))
    lower, upper = np.empty((2, *shape))
    active_size, accepted_count = np.empty((2, *shape), dtype=np.int32)
    out = Certificates(lower, upper, active_size, accepted_count)
    rules = _rule_table(dist, tests)
    bad = certify_rows(_stored(dist), dist.top_probability, rules, _no_ranks(dist.k), out)
    if bad >= 0:
        raise ValueError(
            f"step {bad}: the stored tokens are not numbers by decreasing value, or "
            "the largest probability is not in (0, 1]"
        )
    return out


def _rule_table(dist: TopK, tests: Sequence[Threshold | Counts | Tree]) -> RuleTable:
    """Return the tests of R rules at N steps."""
    is_tree = np.array([isinstance(test, Tree) for test in tests], dtype=np.bool_)
    theta = np.full((len(dist), len(tests)), -np.inf)
    most = np.full((len(dist), len(tests)), dist.vocab_size, dtype=np.int64)
    for r, test in enumerate(tests):
        if isinstance(test, Tree):
            most[:, r] = test.m
        elif isinstance(test, Threshold):
            theta[:, r] = test.theta(dist)
            if test.max_rank is not None:
                most[:, r] = np.minimum(test.max_rank, dist.vocab_size)
        else:
            most[:, r] = test
    return RuleTable(is_tree, theta, most)


def _stored(dist: TopK) -> Stored:
    """Return `dist` as contiguous read-only arrays: for others the kernel is compiled again."""
    values = dist.stored_probs if dist.logits is None else dist.logits
    assert values is not None
    is_float32 = values.dtype == np.float32
    given = np.ascontiguousarray(values).view()
    none = np.empty((0, 0), np.float32)
    singles, doubles = (given, none.astype(np.float64)) if is_float32 else (none, given)
    singles.flags.writeable = doubles.flags.writeable = False
    content = FLOAT32 if is_float32 else FLOAT64
    if dist.logits is None:
        content = PROBABILITIES
    return Stored(content, singles, doubles, 1.0 / dist.temperature, dist.vocab_size)

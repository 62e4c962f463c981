"""The compiled arithmetic of certificates: every rule at every step, in one pass.

A token rule accepts the n most probable tokens of a step, and the closest draft q* that can be
rejected makes rank n + 1 a mode. q* is constant on the active tokens A, the mean c of their p, and
equals p elsewhere (Lemma 4.2, Theorem 4.4). Active are rank n + 1 and all tokens above c. For a
tree the m tokens behind x0 have to reach x0 (Theorem 5.1): active are x0 and those of them below c.

R = sum over A of p log(p / c). Everything is in units of p0, from exact differences of logits, so
near-ties keep their digits. Where the terms of R cancel, those of c phi(p / c - 1) do not.

All compiled code is in this file: numba's disk cache does not see changes of other files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from ..rule_base import Counts, Cut
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
    """R rules: a rank passes if it is <= most, and p > offset + slope base; of a tree most is m.

    Rows of base and counts have a number a step. Row 0 is p0, and V.
    """

    is_tree: Ints  # (R,), as all but base and counts
    offset: Floats
    slope: Floats
    base_row: Ints
    most: Ints
    counts_row: Ints
    base: Floats  # (., N)
    counts: Ints  # (., N)


class Ranks(NamedTuple):
    """The ranks of a step that have been read, from 0, as arrays (K,)."""

    p: Floats
    log: Floats  # log(p / p0)
    e: Floats  # p / p0 - 1
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
    q, tail = s * s, 0.0
    for n in range(19, 1, -2):
        tail = tail * q + 1.0 / n
    return 2.0 * q * (1.0 + (1.0 + s) * s * tail) / (1.0 - s)


@compiled
def divergence(ranks: Ranks, first: int, last: int, other: int, total: float) -> float:
    """Return KL(p || q*) of the active ranks [first, last) and `other`, whose e sum to `total`."""
    p, log, e = ranks.p, ranks.log, ranks.e
    level = total / (last - first + 1)  # c / p0 - 1
    log_level = math.log1p(level)
    value, mass = p[other] * (log[other] - log_level), p[other]
    for j in range(first, last):
        value += p[j] * (log[j] - log_level)
        mass += p[j]
    if value >= CANCELS * mass:
        return float(value)
    terms = scalar_phi((e[other] - level) / (1.0 + level))
    for j in range(first, last):
        terms += scalar_phi((e[j] - level) / (1.0 + level))
    return float(p[0] * (1.0 + level) * terms)


@compiled
def token_certificate(ranks: Ranks, n: int) -> tuple[float, int]:
    """Return M of rank n + 1, the least KL that makes it a mode of q, and |A| (Lemma 4.2)."""
    total, size = ranks.e[n], 2  # with x0, whose e is 0
    while size <= n and ranks.e[size - 1] * size > total:
        total += ranks.e[size - 1]
        size += 1
    return divergence(ranks, 0, size - 1, n, total), size


@compiled
def tree_certificate(ranks: Ranks, m: int) -> tuple[float, int]:
    """Return the least KL with which m tokens reach x0 under q, and |A| (Theorem 5.1)."""
    total, size = 0.0, 1
    while size <= m and ranks.e[m + 1 - size] * size < total:
        total += ranks.e[m + 1 - size]
        size += 1
    return divergence(ranks, m + 2 - size, m + 1, 0, total), size


@compiled
def stored_value(steps: Stored, step: int, rank: int) -> float:
    """Return a stored number in float64."""
    single, double = steps.singles, steps.doubles
    return np.float64(single[step, rank] if steps.content == FLOAT32 else double[step, rank])


@compiled
def load_ranks(steps: Stored, step: int, ranks: Ranks, need: int) -> None:
    """Read ranks of a step until `need` are there; p0 becomes NaN if one exceeds that before it."""
    p0, first = ranks.p[0], stored_value(steps, step, 0)
    for n in range(ranks.have[0], need):
        value = stored_value(steps, step, n)
        if not value <= stored_value(steps, step, n - 1):
            ranks.p[0] = math.nan
        if steps.content == PROBABILITIES:
            p, e = value, (value - p0) / p0
            log = math.log1p(e) if e > -0.5 else math.log(value / p0)
        else:
            log = (value - first) * steps.scale
            w = math.exp(log) if log <= -0.5 else 0.0
            e = math.expm1(log) if log > -0.5 else w - 1.0
            p = p0 * (1.0 + e if log > -0.5 else w)
        ranks.p[n], ranks.e[n], ranks.least[n] = p, e, math.nan
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
def certify_rows(steps: Stored, tests: RuleTable, ranks: Ranks, out: Certificates) -> int:
    """Write the certificates of all steps; return the first invalid step, or -1.

    Where the first rejected token is not stored, lower and upper are NaN.
    """
    for step in range(tests.base.shape[1]):
        p0 = tests.base[0, step]
        ranks.p[0], ranks.log[0], ranks.e[0], ranks.have[0] = p0, 0.0, 0.0, 1
        for r in range(len(tests.is_tree)):
            is_tree, most = tests.is_tree[r], tests.most[r]
            if is_tree:
                n = most
            else:
                theta = tests.offset[r] + tests.slope[r] * tests.base[tests.base_row[r], step]
                most = min(most, tests.counts[tests.counts_row[r], step])
                n = accepted_ranks(steps, step, ranks, theta, most)
            value, active = math.inf if n >= steps.size else math.nan, 0
            if 0 < n < len(ranks.p):
                load_ranks(steps, step, ranks, n + 1)
                if is_tree:
                    value, active = tree_certificate(ranks, n)
                else:
                    if math.isnan(ranks.least[n]):
                        ranks.least[n], ranks.active[n] = token_certificate(ranks, n)
                    value, active = ranks.least[n], ranks.active[n]
            out.lower[step, r] = out.upper[step, r] = value
            out.active_size[step, r] = active
            out.accepted_count[step, r] = 0 if is_tree else n  # rule_base.NO_COUNT
        if not (ranks.p[0] == p0 and 0.0 < p0 < 1.0 + 1e-6):
            return step
    return -1


def certify_stored(dist: TopK, forms: Sequence[Cut | Counts | Tree]) -> Certificates:
    """Return the certificates of N steps under R tests; NaN where too few tokens are stored.

    Raises:
        ValueError: the ranks of a step are not sorted, or its p0 is impossible.
    """
    shape, k = (len(dist), len(forms)), dist.k
    floats, ints = np.empty((2, *shape)), np.empty((2, *shape), dtype=np.int32)
    out = Certificates(floats[0], floats[1], ints[0], ints[1])
    p, log, e, least = np.empty((4, k))
    ranks = Ranks(p, log, e, least, np.empty(k, dtype=np.int32), np.zeros(1, dtype=np.int64))
    bad = certify_rows(_stored(dist), _tests(dist, forms), ranks, out)
    if bad >= 0:
        raise ValueError(
            f"step {bad}: the stored tokens are not numbers by decreasing value, or "
            "the largest probability is not in (0, 1]"
        )
    return out


def _tests(dist: TopK, forms: Sequence[Cut | Counts | Tree]) -> RuleTable:
    offset, slope = np.zeros((2, len(forms)))
    is_tree, base_row, most, counts_row = np.zeros((4, len(forms)), dtype=np.int64)
    base, counts = [dist.top_probability], [np.full(len(dist), dist.vocab_size)]
    for r, form in enumerate(forms):
        is_tree[r], most[r] = isinstance(form, Tree), dist.vocab_size
        cut = form if isinstance(form, Cut) else Cut(form.m if isinstance(form, Tree) else form)
        if np.ndim(cut.offset):
            base_row[r], slope[r] = len(base), 1.0
            base.append(cut.offset + cut.slope * base[0])
        else:
            offset[r], slope[r] = cut.offset, cut.slope
        limit: Any = dist.vocab_size if cut.max_rank is None else cut.max_rank
        if np.ndim(limit):
            counts_row[r] = len(counts)
            counts.append(np.asarray(limit, dtype=np.int64))
        else:
            most[r] = limit
    base_, counts_ = np.stack(base), np.stack(counts)
    return RuleTable(is_tree, offset, slope, base_row, most, counts_row, base_, counts_)


def _stored(dist: TopK) -> Stored:
    """Return `dist` as contiguous read-only arrays: for others the kernel is compiled again."""
    values = dist.stored_probs if dist.logits is None else dist.logits
    assert values is not None
    is_float32 = values.dtype == np.float32
    given, none = np.ascontiguousarray(values).view(), np.empty((0, 0), np.float32)
    singles, doubles = (given, none.astype(np.float64)) if is_float32 else (none, given)
    singles.flags.writeable = doubles.flags.writeable = False
    content = PROBABILITIES if dist.logits is None else FLOAT32 if is_float32 else FLOAT64
    return Stored(content, singles, doubles, 1.0 / dist.temperature, dist.vocab_size)

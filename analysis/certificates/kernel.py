"""The compiled arithmetic of certificates: every rule at every step, in one pass.

A token rule accepts the n most probable tokens of a step. The closest draft q* that can be rejected
makes rank n + 1 a mode: on the active tokens A it is constant, the mean c of their p, and elsewhere
it equals p (Lemma 4.2, Theorem 4.4). Active are rank n + 1 and all tokens with p > c. A tree of m
tokens rejects once m tokens are as probable as x0, so q* lifts ranks 2 to m + 1 to x0 (Theorem
5.1). Active are x0 and those of them with p < c.

    R = KL(p || q*) = sum over A of p log(p / c) = sum over A of c phi(p / c - 1), nats

with `phi` of `bounds`. Tokens are represented by e = p / p0 - 1, from exact differences of logits,
so near-ties keep their digits. The first sum is used unless its terms cancel; no term of the second
is negative.

All compiled code is in this file, because numba's disk cache does not see changes of other files.
It finds a function by its name and first line, and fails if a class that the cached function used
has been renamed: when you rename a class, move the functions by a line.
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
# what is stored of a step: probabilities, or logits in one of two precisions
PROBABILITIES = 0
FLOAT32 = 1
FLOAT64 = 2
CANCELS = 0.02  # below this share of the active mass, the sum of p log(p / c) loses two digits


class Certificates(NamedTuple):
    """Certificates of N steps under R rules, as arrays (N, R)."""

    lower: Floats  # nats, float64; a drafter with KL(p || q) < lower is accepted
    # nats, float64; equal to lower where the certificate is exact, +inf if nothing can be rejected
    # or if that is not known
    upper: Floats
    # int32, |A| of Lemma 4.2 or Theorem 5.1, at the lower end; 0 where nothing can be rejected
    active_size: NDArray[np.int32]
    # int32, n, the accepted ranks; `rule_base.UNKNOWN` or, for trees, `rule_base.NO_COUNT`
    accepted_count: Counts


class Stored(NamedTuple):
    """N steps of K tokens, in one of the two (N, K) arrays; the other is empty."""

    content: int  # PROBABILITIES, FLOAT32 or FLOAT64 logits
    singles: NDArray[np.float32]
    doubles: Floats
    scale: float  # 1 / temperature
    size: int  # V


class RuleTable(NamedTuple):
    """R rules at N steps: rank r is accepted if r <= max_rank and p > theta."""

    is_tree: NDArray[np.bool_]  # (R,)
    theta: Floats  # (N, R)
    max_rank: Ints  # (N, R); m for a tree


class Ranks(NamedTuple):
    """The ranks of a step that are loaded so far, from 0, as arrays (K,)."""

    p: Floats
    log: Floats  # log(p / p0)
    e: Floats  # p / p0 - 1
    times: Floats  # multiplicity: tokens with this p; 1 for stored ones
    mode_cost: Floats  # M, the least KL that makes the rank a mode; NaN until it is known
    active: NDArray[np.int32]  # its |A|
    loaded: Ints  # (1,), how many ranks are loaded


def compiled(function: F) -> F:
    """Compile with numba, cached on disk; nothing is allocated, so nothing is reference-counted."""
    options: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy"}
    options |= {"forceinline": True, "_nrt": False}
    return cast(F, numba.njit(**options)(function))


@compiled
def scalar_phi(u: float) -> float:
    """Return phi(u) = (1 + u) log(1 + u) - u; near 0, where terms cancel, by 2 atanh(s)."""
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
    """Return KL(p || q*), with the ranks [first, last) and `other` active; level = c / p0 - 1."""
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
    """Return the least KL that makes m tokens as probable as x0 under q, and |A| (Theorem 5.1)."""
    total = 0.0
    size = 1
    while size <= m and ranks.e[m + 1 - size] * size < total:
        total += ranks.e[m + 1 - size]
        size += 1
    return divergence(ranks, m + 2 - size, m + 1, 0, total / size), size


@compiled
def stored_value(steps: Stored, step: int, rank: int) -> float:
    """Return a stored logit or probability in float64."""
    if steps.content == FLOAT32:
        return float(steps.singles[step, rank])
    return float(steps.doubles[step, rank])


@compiled
def load_ranks(steps: Stored, step: int, ranks: Ranks, count: int) -> None:
    """Load the first `count` ranks of a step; p0 becomes NaN if they are not sorted."""
    p0 = ranks.p[0]
    first = stored_value(steps, step, 0)
    for n in range(ranks.loaded[0], count):
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
        ranks.mode_cost[n] = math.nan
        ranks.log[n] = max(log, -1e300)  # instead of -inf: 0 times it is 0
    ranks.loaded[0] = max(ranks.loaded[0], count)


@compiled
def accepted_ranks(steps: Stored, step: int, ranks: Ranks, theta: float, max_rank: int) -> int:
    """Return how many ranks up to `max_rank` are x0 or have p > theta; K if more than K may."""
    if theta < 0.0:
        return max_rank
    n = 1
    while n < min(max_rank, len(ranks.p)):
        load_ranks(steps, step, ranks, n + 1)
        if not ranks.p[n] > theta:
            break
        n += 1
    return n


@compiled
def certify_rows(
    steps: Stored, p0s: Floats, rules: RuleTable, ranks: Ranks, out: Certificates
) -> int:
    """Write the certificates of all steps to `out`; return the first invalid step, or -1.

    Where the first rejected token is not stored, both ends are NaN.
    """
    for step in range(len(p0s)):
        p0 = p0s[step]
        ranks.p[0] = p0
        ranks.log[0] = 0.0
        ranks.e[0] = 0.0
        ranks.loaded[0] = 1
        for r in range(len(rules.is_tree)):
            is_tree = rules.is_tree[r]
            n = rules.max_rank[step, r]
            if not is_tree:
                n = accepted_ranks(steps, step, ranks, rules.theta[step, r], n)
            value = math.inf if n >= steps.size else math.nan
            active = 0
            if 0 < n < len(ranks.p):
                load_ranks(steps, step, ranks, n + 1)
                if is_tree:
                    value, active = tree_certificate(ranks, n)
                else:
                    if math.isnan(ranks.mode_cost[n]):
                        ranks.mode_cost[n], ranks.active[n] = token_certificate(ranks, n)
                    value = ranks.mode_cost[n]
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
    """Write the results of `mode_cost` to `value` and `size`, row by row."""
    count = others.shape[1]
    for row in range(len(p0)):
        for j in range(count + 1):
            e = token[row] if j == count else others[row, j]
            ranks.e[j] = e
            ranks.p[j] = p0[row] * (1.0 + e)
            # instead of -inf: 0 times it is 0
            ranks.log[j] = math.log1p(e) if e > -1.0 else -1e300
            ranks.times[j] = 1.0 if j == count else times[row, j]
        value[row], size[row] = token_certificate(ranks, count)


def mode_cost(
    p0: Floats, others: Floats, token: Floats, times: Floats | None = None, widen: float = 0.0
) -> tuple[Floats, NDArray[np.int32]]:
    """Return M, the least KL (nats) that makes a token a mode of q, and |A|, (N,) (Lemma 4.2).

    Args:
        p0: (N,), the probability of rank 1.
        others: (N, J), e = p / p0 - 1 of the tokens that may be active, by decreasing p.
        token: (N,), e of the token, at most that of every other active one.
        times: (N, J), the multiplicity of `others`; 1 by default.
        widen: M is multiplied by 1 + widen.
    """
    rows, count = others.shape
    value = np.empty(rows)
    size = np.empty(rows, dtype=np.int32)
    times = np.ones_like(others) if times is None else times
    p0, others, times, token = map(np.ascontiguousarray, (p0, others, times, token))
    mode_cost_rows(p0, others, times, token, _room_for_ranks(count + 1), value, size)
    return value * (1.0 + widen), size


def _room_for_ranks(size: int) -> Ranks:
    """Return room for the ranks of a step."""
    p, log, e, cost = np.empty((4, size))
    active = np.empty(size, dtype=np.int32)
    return Ranks(p, log, e, np.ones(size), cost, active, np.zeros(1, dtype=np.int64))


def certify_stored(dist: TopK, tests: Sequence[Threshold | Counts | Tree]) -> Certificates:
    """Return the certificates of N steps under R tests; NaN if the first rejected is not stored.

    Raises:
        ValueError: the ranks of a step are not sorted, or its p0 is impossible.
    """
    shape = (len(dist), len(tests))
    lower, upper = np.empty((2, *shape))
    active_size, accepted_count = np.empty((2, *shape), dtype=np.int32)
    out = Certificates(lower, upper, active_size, accepted_count)
    rules = _rule_table(dist, tests)
    bad = certify_rows(_stored(dist), dist.top_probability, rules, _room_for_ranks(dist.k), out)
    if bad >= 0:
        raise ValueError(
            f"step {bad}: the stored tokens are not numbers in decreasing order, or the largest "
            "probability is not in (0, 1]"
        )
    return out


def _rule_table(dist: TopK, tests: Sequence[Threshold | Counts | Tree]) -> RuleTable:
    """Return the tests of R rules at N steps."""
    is_tree = np.array([isinstance(test, Tree) for test in tests], dtype=np.bool_)
    theta = np.full((len(dist), len(tests)), -np.inf)
    max_rank = np.full((len(dist), len(tests)), dist.vocab_size, dtype=np.int64)
    for r, test in enumerate(tests):
        if isinstance(test, Tree):
            max_rank[:, r] = test.m
        elif isinstance(test, Threshold):
            theta[:, r] = test.theta(dist)
            if test.max_rank is not None:
                max_rank[:, r] = np.minimum(test.max_rank, dist.vocab_size)
        else:
            max_rank[:, r] = test
    return RuleTable(is_tree, theta, max_rank)


def _stored(dist: TopK) -> Stored:
    """Return `dist` as contiguous read-only arrays; for others numba would compile again."""
    values = dist.stored_probs if dist.logits is None else dist.logits
    assert values is not None
    is_float32 = values.dtype == np.float32
    tokens = np.ascontiguousarray(values).view()
    singles: NDArray[np.float32] = tokens if is_float32 else np.empty((0, 0), np.float32)
    doubles: Floats = np.empty((0, 0), np.float64) if is_float32 else tokens
    singles.flags.writeable = False
    doubles.flags.writeable = False
    content = FLOAT32 if is_float32 else FLOAT64
    if dist.logits is None:
        content = PROBABILITIES
    return Stored(content, singles, doubles, 1.0 / dist.temperature, dist.vocab_size)

"""Where the first rejected token lies outside the stored K: a rigorous interval instead.

Of the N = V - K tokens that are not stored three things are known: none exceeds p_K, they sum to
T, and their surprises -p log p sum to h, the entropy less that of the stored tokens. A rule
accepts p > theta, and all stored tokens pass. The first rejected token then has a probability b in
[b_min, b_max], b being the largest one not above theta:

- b <= min(theta, T). A tail that holds b has at most the entropy f(b) + (T-b) log((N-1)/(T-b)),
  f(x) = -x log x, which falls in b above T/N: it must still reach h.
- Let a be the mass of the accepted tail tokens, j in number, each in (theta, p_K]: a/p_K <= j <
  a/theta. Then h <= a log(1/theta) + (T-a) log((N - a/theta) / (T-a)), theta >= T/N (below it, j
  tokens of the mean T/N have more entropy, and theta is replaced by it). The right side is concave
  in a and not below h at a = 0, so it gives a largest a. The rejected tokens hold T - a, in at most
  N - a/p_K tokens of at most b: b >= (T-a) / (N - a/p_K). Their surprises are at least
  (T-a) log(1/b) and those of the accepted at least a log(1/p_K), so
  b >= exp(-(h - a log(1/p_K)) / (T-a)). Both fall in a, so the largest a gives b_min.

R = M(b) decreases in b, so it lies in [M(b_max), M(b_min)]; M here counts the stored active tokens
only, which can only lower it, and the upper end is replaced by a closed bound where an unseen token
might be active. Each step is a relaxation: the truth is never outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.bounds import ceiling, phi, single_upper
from analysis.distributions import Floats, TopK
from analysis.rule import Counts, Rule

TAIL_ERROR = 1e-9  # allowed for in T, relative
MARGIN = 1e-12  # an interval is widened by this share, far above the error of M
HALVINGS = 32  # of a bisection, which ends on the safe side
ENTRIES = 2**17  # probabilities held at a time

Intervals = tuple[Floats, Floats, NDArray[np.int32], Counts]


def intervals(
    dist: TopK,
    rules: Sequence[Rule],
    which: NDArray[np.intp],
    steps: NDArray[np.intp],
    counts: Counts,
) -> Intervals:
    """Return lo, hi, |A| at lo, and accepted counts where all K stored tokens pass.

    Args:
        dist: N steps, K < V.
        rules: R rules.
        which: (M,), a rule, and
        steps: (M,), a step at which it accepts all that is stored.
        counts: (M,), for a rule that gives counts its count there, at least K, or -1 for "more".
    """
    found: tuple[NDArray[Any], ...] = (
        np.empty(len(steps)),
        np.empty(len(steps)),
        np.zeros_like(counts),
        counts.copy(),
    )
    theta, by_count = np.zeros(len(steps)), np.zeros(len(steps), dtype=bool)
    for r in np.unique(which).tolist():
        here = which == r
        cut = rules[r].cut(dist[steps[here]])
        if cut is None or type(rules[r]).accepted_count is not Rule.accepted_count:
            by_count |= here
        else:
            theta[here] = cut.threshold(dist[steps[here]])
    size = max(1, ENTRIES // dist.k)
    for entries in (np.flatnonzero(~by_count), np.flatnonzero(by_count)):
        for start in range(0, len(entries), size):
            rows = entries[start : start + size]
            part = dist[steps[rows]]
            if by_count[rows[0]]:
                values = _by_count(part, counts[rows])
            else:
                values = _by_threshold(part, theta[rows])
            for column, value in zip(found, values, strict=True):
                column[rows] = value
    lo, hi, active, accepted = found
    return lo, hi, active, accepted


def _by_threshold(dist: TopK, theta: Floats) -> Intervals:
    p, n, tail = dist.probs, dist.vocab_size - dist.k, np.exp(dist.log_tail)
    p_k = p[:, -1]
    h = dist.entropy + (p * np.where(p > 0, dist.log_probs, 0.0)).sum(axis=1)
    error = dist.entropy_error * (1.0 + dist.entropy)
    # the cases that need no inequality come last, as they overrule
    usual = (theta > 0) & (tail > 0)
    low, high, none = rejected_range(
        np.where(usual, theta, 1.0),
        np.where(usual, tail, 1.0),
        n,
        np.where(usual, p_k, 1.0),
        h,
        error,
    )
    known = (tail == 0) | (n == 1)  # the first rejected token
    at = np.minimum(tail, p_k)
    low, high = np.where(usual, low, 0.0), np.where(usual, high, 0.0)
    low, high = np.where(known, at, low), np.where(known, at, high)
    lo, active = stored_mode_cost(p, high)
    hi = np.where(known, lo, _upper_end(p, low) * (1.0 + MARGIN))
    hi = np.where(~known & ~(tail * (1.0 + TAIL_ERROR) <= n * theta), np.inf, hi)
    lo = np.where(known, lo, lo * (1.0 - MARGIN))
    accepted = np.where(known | (none & usual), dist.k, -1)
    least = tail if n == 1 else tail * (1.0 - TAIL_ERROR) - (n - 1) * p_k  # of the tail tokens
    everything = (theta < 0) | (least > theta)
    return (
        np.where(everything, np.inf, lo),
        np.where(everything, np.inf, hi),
        np.where(everything, 0, active).astype(np.int32),
        np.where(everything, dist.vocab_size, accepted).astype(np.int32),
    )


def _by_count(dist: TopK, counts: Counts) -> Intervals:
    """Use that the first rejected token is the (count - K + 1)th of the tail, or further."""
    p, n, tail = dist.probs, dist.vocab_size - dist.k, np.exp(dist.log_tail)
    more = np.maximum(0, counts - dist.k)
    high = np.minimum(p[:, -1], tail * (1.0 + TAIL_ERROR) / (more + 1))
    least = (tail * (1.0 - TAIL_ERROR) - more * p[:, -1]) / (n - more)
    lo, active = stored_mode_cost(p, high)
    hi = _upper_end(p, np.clip(least, 0.0, high)) * (1.0 + MARGIN)
    return lo * (1.0 - MARGIN), np.where(counts < 0, np.inf, hi), active, counts


def rejected_range(
    theta: Floats, tail: Floats, n: int, p_k: Floats, h: Floats, h_error: Floats
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return b_min, b_max, and where no tail token can be accepted; theta > 0 and T > 0.

    Args:
        theta: (N,) thresholds, below p_K.
        tail: (N,), T, known up to TAIL_ERROR.
        n: number of tail tokens.
        p_k: (N,), none of them is above.
        h: (N,), the sum of their surprises in nats.
        h_error: (N,), how far off h may be.
    """
    upper, lower = tail * (1.0 + TAIL_ERROR), tail * (1.0 - TAIL_ERROR)
    slack = h_error + 100.0 * TAIL_ERROR * tail  # the error of T enters the entropies as well
    least, most = h - slack, h + slack

    def holds(b: Floats) -> NDArray[np.bool_]:
        return np.asarray(_spread(b, 1.0) + _spread(upper - b, n - 1.0) >= least)

    per_mass = np.minimum(1.0 / theta, n / upper)  # accepted tokens per mass, at most entropy

    def passes(a: Floats) -> NDArray[np.bool_]:
        return np.asarray(_spread(upper - a, n - a * per_mass) + a * np.log(per_mass) >= least)

    b_max = _last(holds, np.minimum(upper / n, np.minimum(theta, upper)), np.minimum(theta, upper))
    tokens = np.clip(np.ceil(upper / theta) - 1.0, 0.0, n - 1.0)
    mass = _last(passes, np.zeros_like(theta), np.minimum(upper, tokens * p_k))
    tokens = np.minimum(tokens, np.floor(mass / theta))
    mass = np.minimum(mass, tokens * p_k)
    b_min = np.maximum(0.0, (lower - tokens * p_k) / (n - tokens))
    rest, others = lower - mass, n - mass / p_k
    surprise = np.maximum(most, -upper * np.log(p_k)) + mass * np.log(p_k)
    left = np.where(rest > 0, rest, 1.0)
    even = np.maximum(rest / others, np.exp(np.minimum(-surprise / left, 0.0)))
    b_min = np.maximum(b_min, np.where(rest > 0, even, 0.0))
    return np.minimum(b_min, b_max), b_max, tokens == 0


def stored_mode_cost(p: Floats, b: Floats) -> tuple[Floats, NDArray[np.int32]]:
    """Lemma 4.2 among the stored tokens: M of a token of probability b beside them, and |A|.

    Args:
        p: (N, K), by decreasing probability.
        b: (N,), at most p[:, -1].
    """
    counts = np.arange(2, p.shape[1] + 2)
    levels = (b[:, None] + np.cumsum(p, axis=1)) / counts
    # p falls and the level with it: once p is not above, it stays so
    above = np.column_stack([np.ones(len(p), dtype=bool), p[:, 1:] > levels[:, :-1]])
    size = np.logical_and.accumulate(above, axis=1).sum(axis=1)
    level = np.take_along_axis(levels, size[:, None] - 1, axis=1)
    top = p[:, : int(size.max(initial=1))]
    active = np.arange(top.shape[1]) < size[:, None]
    terms = np.where(active, phi(np.where(active, top / level, 1.0) - 1.0), 0.0).sum(axis=1)
    value = level[:, 0] * (terms + phi(b / level[:, 0] - 1.0))
    return value, (size + 1).astype(np.int32)


def _upper_end(p: Floats, b: Floats) -> Floats:
    """Bound M of a token of at least b from above, whatever the unseen tokens are."""
    value, size = stored_mode_cost(p, b)
    k = p.shape[1]
    closed = np.minimum(single_upper(p[:, 0], b), ceiling(k + 1))
    return np.where(size <= k, value, closed)  # else p_K > c: an unseen token may be active


def _spread(mass: Floats, tokens: Floats | float) -> Floats:
    """Return the largest entropy of a mass on so many tokens, mass log(tokens / mass)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((mass > 0) & (tokens > 0), mass * np.log(tokens / mass), 0.0)


def _last(test: Callable[[Floats], NDArray[np.bool_]], low: Floats, high: Floats) -> Floats:
    """Return high where the test holds there, else the end of its range by bisection, from above.

    The test holds at low and up to one point of [low, high]; where it fails throughout, low would
    be the answer, and high, which is returned as the bisection leaves it, is not below.
    """
    whole = test(high)
    if whole.all():
        return high
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        good = test(middle) | whole
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    return high

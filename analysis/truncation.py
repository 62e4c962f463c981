"""Where the first rejected token lies outside the stored K: a rigorous interval instead.

Its probability b is in [b_min, b_max] (`analysis.tails`). R = M(b) decreases in b, so it lies in
[M(b_max), M(b_min)]; M here counts the stored active tokens only, which can only lower it. Where an
unseen token might be active, the upper end has to allow for it: M is convex and increasing in the
other tokens' probabilities, as KL(p || q) is jointly convex and its derivative is log(p/q) >= 0. So
it is largest at a vertex: of those that are accepted, as others are not active, as many are at p_K
as T - b_min allows, and one has the remainder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.bounds import phi
from analysis.distributions import Floats, TopK
from analysis.rule import Counts, Rule
from analysis.tails import TAIL_ERROR, Tails, rejected_range

MARGIN = 1e-12  # an interval is widened by this share, far above the error of M
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
    tails = Tails.of(
        n,
        np.where(usual, theta, 0.5),
        np.where(usual, p_k, 1.0),
        np.where(usual, tail, 1.0),
        h,
        error,
    )
    low, high, most = rejected_range(tails)
    known = (tail == 0) | (n == 1)  # the first rejected token
    at = np.minimum(tail, p_k)
    low, high = np.where(usual, low, 0.0), np.where(usual, high, 0.0)
    low, high = np.where(known, at, low), np.where(known, at, high)
    lo, active = stored_mode_cost(p, high)
    hi = np.where(known, lo, _upper_end(p, low, tail, most) * (1.0 + MARGIN))
    hi = np.where(~known & ~(usual & (most < n)), np.inf, hi)
    lo = np.where(known, lo, lo * (1.0 - MARGIN))
    accepted = np.where(known | (usual & (most == 0)), dist.k, -1)
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
    hi = _upper_end(p, np.clip(least, 0.0, high), tail, more) * (1.0 + MARGIN)
    return lo * (1.0 - MARGIN), np.where(counts < 0, np.inf, hi), active, counts


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


def _upper_end(p: Floats, b: Floats, tail: Floats, most: Floats) -> Floats:
    """Bound M of a token of at least b from above, if at most `most` unseen tokens exceed it."""
    value, size = stored_mode_cost(p, b)
    rows = np.flatnonzero(size > p.shape[1])  # p_K > c: an unseen token may be active
    p, b, p_k = p[rows], b[rows], p[rows, -1]
    mass = np.maximum(0.0, tail[rows] * (1.0 + TAIL_ERROR) - b)
    unseen = np.minimum(np.floor(mass / p_k), most[rows])  # at p_K, above every such level
    rest = np.where(unseen < most[rows], mass - unseen * p_k, 0.0)
    total, count = b + p.sum(axis=1) + unseen * p_k, p.shape[1] + 1.0 + unseen
    more = rest > total / count
    level = (total + np.where(more, rest, 0.0)) / (count + more)
    terms = phi(p / level[:, None] - 1.0).sum(axis=1) + unseen * phi(p_k / level - 1.0)
    terms += phi(b / level - 1.0) + np.where(more, phi(np.where(more, rest / level, 1.0) - 1.0), 0)
    value[rows] = level * terms
    return value

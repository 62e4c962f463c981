"""Rigorous intervals for certificates whose first rejected token is not among the stored K.

The probability b of that token is in [b_min, b_max] (`tails`). R = M(b) decreases in b, so it lies
in [M(b_max), M(b_min)]. M here counts the stored active tokens only, which can only lower it. Where
an unseen token might be active, the upper end has to allow for it: M is convex and increasing in
the other tokens' probabilities, as KL(p || q) is jointly convex and its derivative is
log(p/q) >= 0. So M is largest at a vertex. Only accepted tokens can be active; at the vertex as
many of them are at p_K as T - b_min allows, and one has the remainder.

As in the kernel, tokens are represented by p / p0 - 1, from exact differences of logits. M falls
with its square where it is small, so digits lost there would be lost in M. Orders below 1 also need
log(p / p0), as the power mean of A has a steep slope where p is close to 0. So b is stored as a
logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..rules.rule import UNKNOWN, Counts, Cut, Rule
from ..topk import Floats, TopK
from .divergences import Divergence, Ratios, ratios
from .tails import TAIL_ERROR, Tails

MARGIN = 1e-12  # relative widening of an interval, far above the error of M
# the relative error of exp of a stored logarithm is about 1e-16 (1 + |logarithm|)
ROUNDING = 16 * float(np.finfo(np.float64).eps)
TINY = 1e-300  # smaller masses are treated alike
ENTRIES = 2**17  # probabilities processed at a time

Intervals = tuple[Floats, Floats, NDArray[np.int32], Counts]


def intervals(
    dist: TopK,
    rules: Sequence[Rule],
    rule_index: NDArray[np.intp],
    steps: NDArray[np.intp],
    counts: Counts,
    divergence: Divergence,
) -> Intervals:
    """Return lower, upper, |A| at lower, and the accepted counts, where all K stored tokens pass.

    Args:
        dist: N steps, K < V.
        rules: R rules.
        rule_index: (M,), indices of rules.
        steps: (M,), for each a step at which that rule accepts all stored tokens.
        counts: (M,), for a rule that returns counts its count there: at least K, or -1 for "more".
        divergence: of the certificates.
    """
    columns: tuple[NDArray[Any], ...] = (
        np.empty(len(steps)),
        np.empty(len(steps)),
        np.zeros_like(counts),
        counts.copy(),
    )
    size = max(1, ENTRIES // dist.k)
    for r in np.unique(rule_index).tolist():
        here = np.flatnonzero(rule_index == r)
        for start in range(0, len(here), size):
            rows = here[start : start + size]
            part = TruncatedSteps(dist[steps[rows]], divergence)
            form = rules[r].form(part.dist)
            if isinstance(form, Cut):
                values = _by_threshold(part, form.threshold(part.dist))
            else:
                values = _by_count(part, counts[rows])
            for column, value in zip(columns, values, strict=True):
                column[rows] = value
    lower, upper, active, accepted = columns
    return lower, upper, active, accepted


class TruncatedSteps:
    """N steps whose first rejected token is not stored, in the form that the interval ends need.

    Attributes:
        dist: the steps.
        divergence: of the interval ends.
        others: V - K, the number of tokens that are not stored.
        p0: (N,), probability of rank 1.
        p_k: (N,), probability of rank K, rounded up.
        p0_error: (N,), relative error of p0; 0 where probabilities are stored.
        tokens: p / p0 - 1 and log(p / p0) of the stored tokens, (N, K) each.
        tail: (N,), T, with a relative error of at most `TAIL_ERROR`.
    """

    def __init__(self, dist: TopK, divergence: Divergence) -> None:
        self.dist, self.divergence = dist, divergence
        self.others = dist.vocab_size - dist.k
        self.p0, self.p_k = dist.top_probability, dist.probs[:, -1]
        self.tail = np.exp(dist.log_tail)
        if dist.logits is None:
            self.p0_error = np.zeros(len(dist))
            self.tokens = ratios(dist.probs, self.p0[:, None])
        else:
            self.p0_error = ROUNDING * (1.0 + dist.top_surprisal)
            raw = dist.logits.astype(np.float64)
            below: Floats = (raw - raw[:, :1]) / dist.temperature
            above = np.asarray(np.expm1(below), dtype=np.float64)
            self.tokens = above, below
            # a token that passed a threshold in the kernel, rounded differently, must pass it here
            self.p_k = self.p_k * (1.0 + ROUNDING * (1.0 - np.maximum(dist.log_probs[:, -1], -1e3)))

    def ratios(self, log_b: Floats) -> Ratios:
        """Return p / p0 - 1 and log(p / p0) of unseen tokens, at most those of p_K."""
        last = [part[:, -1] for part in self.tokens]
        b = np.exp(log_b)
        e, log_w = ratios(b, self.p0)
        log_w = np.where(b < TINY, log_b + self.dist.top_surprisal, log_w)
        below = b < self.p_k
        e, log_w = (
            np.where(below, np.minimum(x, y), y) for x, y in zip((e, log_w), last, strict=True)
        )
        return e, log_w


def _by_threshold(stored: TruncatedSteps, theta: Floats) -> Intervals:
    dist, n = stored.dist, stored.others
    low, high, most = _first_rejected(stored, theta)
    lower, upper, active = _ends(stored, low, high, most)
    least = stored.tail * (1.0 - TAIL_ERROR) - (n - 1) * stored.p_k
    everything = (theta < 0) | (least > theta)
    accepted = np.where(most == 0, dist.k, -1)
    return (
        np.where(everything, np.inf, lower),
        np.where(everything, np.inf, np.where(most == n, np.inf, upper)),
        np.where(everything, 0, active).astype(np.int32),
        np.where(everything, dist.vocab_size, accepted).astype(np.int32),
    )


def _first_rejected(stored: TruncatedSteps, theta: Floats) -> tuple[Floats, Floats, Floats]:
    """Return log b_min, log b_max, and the largest number of unseen tokens that can be accepted.

    Where T or theta is tiny, b is at most the smaller of the two, and at least T / N if none is
    accepted.
    """
    dist, n, tail = stored.dist, stored.others, stored.tail
    stored_surprise = -(dist.probs * np.where(dist.probs > 0, dist.log_probs, 0.0)).sum(axis=1)
    usual = (theta >= TINY) & (tail >= TINY)
    tails = Tails(
        n,
        np.where(usual, theta, 0.5),
        np.where(usual, np.maximum(stored.p_k, theta), 1.0),
        np.where(usual, tail, 1.0),
        dist.entropy - stored_surprise,
        dist.entropy_error * (1.0 + dist.entropy),
    )
    low, high, most = tails.rejected_range()
    none = (dist.log_tail == -np.inf) | (theta >= TINY)  # none is accepted where T is tiny
    most = np.where(usual, most, np.where(none, 0.0, n))
    even = np.where(most == 0, dist.log_tail - math.log(n) - TAIL_ERROR, -np.inf)
    with np.errstate(divide="ignore"):
        largest = np.minimum(np.log(np.maximum(theta, 0.0)), dist.log_tail + TAIL_ERROR)
        return np.where(usual, np.log(low), even), np.where(usual, np.log(high), largest), most


def _by_count(stored: TruncatedSteps, counts: Counts) -> Intervals:
    """Use that the first rejected token is the (count - K + 1)th of the tail, or further."""
    more = np.maximum(0, counts - stored.dist.k).astype(np.float64)
    lower, upper, active = _behind(stored, more, more + 1.0)
    return lower, np.where(counts < 0, np.inf, upper), active, counts


def beyond_stored(
    dist: TopK, others: NDArray[np.integer[Any]], divergence: Divergence
) -> Intervals:
    """Return lower, upper, |A| and counts where all K stored tokens and so many others pass.

    Args:
        dist: M steps, K < V.
        others: (M,), fewer than V - K; any of the others may be the most probable one.
        divergence: what the certificates are in.
    """
    stored = TruncatedSteps(dist, divergence)
    ends = _behind(stored, others.astype(np.float64), np.ones(len(dist)))
    return *ends, np.full(len(dist), UNKNOWN, dtype=np.int32)


def _behind(
    stored: TruncatedSteps, more: Floats, equal: Floats
) -> tuple[Floats, Floats, NDArray[np.int32]]:
    """Return lower, upper and |A| where `more` others pass, and `equal` are as probable as b."""
    tail, p_k = stored.tail, stored.p_k
    high = np.minimum(p_k, tail * (1.0 + TAIL_ERROR) / equal)
    least = (tail * (1.0 - TAIL_ERROR) - more * p_k) / (stored.others - more)
    with np.errstate(divide="ignore"):  # rounded up, so that p_K is not missed
        ends = np.log(np.clip(least, 0.0, high)), np.log(high) + ROUNDING
    return _ends(stored, *ends, more)


def _ends(
    stored: TruncatedSteps, low: Floats, high: Floats, most: Floats
) -> tuple[Floats, Floats, NDArray[np.int32]]:
    """Return the ends of M for log b in [low, high], and |A|.

    At most `most` unseen tokens exceed b. The ends are equal where b is close to 0, unless M is so
    steep there that its rounding shows.
    """
    least = stored.divergence.least
    largest = stored.ratios(high + stored.p0_error)
    lower, active = least(stored.p0, stored.tokens, largest, widen=-MARGIN)
    upper = upper_bound(stored, low - stored.p0_error, most)
    exact = (stored.tail < TINY) & (most == 0) & (upper <= lower * (1.0 + 4.0 * MARGIN))
    if exact.any():
        cost, _ = least(stored.p0, stored.tokens, stored.ratios(stored.dist.log_tail))
        lower, upper = (np.where(exact, cost, end) for end in (lower, upper))
    return lower, upper, active


def upper_bound(stored: TruncatedSteps, log_b: Floats, most: Floats) -> Floats:
    """Return an upper bound of M of a token of at least b that at most `most` unseen ones exceed.

    A mass above T raises M, but also the level, and with it the least possible Z: hence `excess`.
    """
    (e, log_w), (last_e, last_log_w) = stored.tokens, stored.ratios(log_b)
    least = stored.divergence.least
    value, size = least(stored.p0, (e, log_w), (last_e, last_log_w), widen=MARGIN)
    rows = np.flatnonzero(size > e.shape[1])  # p_K exceeds the level: an unseen token may be active
    p0, last = stored.p0[rows], (last_e[rows], last_log_w[rows])
    mass = np.maximum(0.0, stored.tail[rows] * (1.0 + TAIL_ERROR) - np.exp(log_b[rows]))
    unseen = np.minimum(np.floor(mass / stored.p_k[rows]), most[rows])  # at p_K
    rest = np.where(unseen < most[rows], mass - unseen * stored.p_k[rows], 0.0)
    rest_e = np.clip(rest / p0 - 1.0, last[0], e[rows, -1])  # no more than p_K
    with np.errstate(divide="ignore"):
        rest_log_w = np.clip(np.log(rest / p0), last[1], log_w[rows, -1])
    tokens = (
        np.column_stack([e[rows], e[rows, -1], rest_e]),
        np.column_stack([log_w[rows], log_w[rows, -1], rest_log_w]),
    )
    times = np.column_stack([np.ones_like(e[rows]), unseen, np.ones_like(rest)])
    value[rows], _ = least(p0, tokens, last, times, MARGIN, excess=TAIL_ERROR)
    return value

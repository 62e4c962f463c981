"""Rigorous intervals for certificates that the stored tokens do not determine.

*Truncated steps.* The first rejected token is not among the K stored ones. With T the mass of the
N = V - K unseen tokens and j the largest number of them that may exceed the threshold theta, its
probability b lies in

    [max(0, (T - j p_K) / (N - j)), min(theta, T, p_K)],

and R = M(b) falls as b grows. If an unseen token may be active, the upper end of R is attained at a
vertex of the distributions that T allows: docs/method.md, Truncation.

As in the kernel, tokens are represented by e = p / p0 - 1, from exact differences of logits. Near a
tie M is proportional to e^2, so it keeps only the digits that e has.

*Rounded log-probabilities* (`certify_rounded`) put each stored p into a range (`TopK.prob_range`).
M of rank n + 1 rises with n, falls with the probability of rank n + 1 and rises with those before
it; a tree's certificate rises with p0 and falls with the next m. So the ends of M are attained at
corners of the ranges. The probabilities of a corner need not sum to 1, because M depends on the
active tokens alone. A token that would be less probable than rank n + 1 at a corner is not active.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..rule_base import UNKNOWN, Counts, Rule, Threshold
from ..rules import Tree
from ..topk import Floats, TopK
from .kernel import Certificates, certify_stored, mode_cost
from .rule_range import AcceptanceRange, acceptance_range, checked_test

WIDENING = 1e-12  # intervals are widened by it, relative; the rounding error of M is far smaller
TAIL_ERROR = 1e-9  # relative error allowed in T
# of exp of a stored logarithm, relative: about 1e-16 (1 + |logarithm|)
FLOAT_ERROR = 16 * float(np.finfo(np.float64).eps)
TINY = 1e-300  # masses below it can't be compared
TERMS_AT_ONCE = 2**17  # probabilities processed at a time

Ends = tuple[Floats, Floats, NDArray[np.int32]]  # lower, upper, and |A| at the lower end, (N,) each


def certify_tests(dist: TopK, tests: Sequence[Threshold | Counts | Tree]) -> Certificates:
    """Return the certificates of N steps under R tests; intervals at truncated steps."""
    result = certify_stored(dist, tests)
    unknown = np.isnan(result.lower)
    size = max(1, TERMS_AT_ONCE // dist.k)
    for r in np.flatnonzero(unknown.any(axis=0)).tolist():
        test = tests[r]
        steps = np.flatnonzero(unknown[:, r])
        for start in range(0, len(steps), size):
            rows = steps[start : start + size]
            stored = TruncatedSteps(dist[rows])
            if isinstance(test, Threshold):
                ends = _by_threshold(stored, test.theta(dist)[rows])
            else:
                ends = _by_count(stored, result.accepted_count[rows, r])
            result.lower[rows, r], result.upper[rows, r] = ends[:2]
            result.active_size[rows, r], result.accepted_count[rows, r] = ends[2:]
    return result


class TruncatedSteps:
    """N steps whose first rejected token is not stored.

    Attributes:
        k: K, the number of stored tokens.
        others: V - K, the number of unseen tokens.
        p0: (N,), probability of rank 1.
        p_k: (N,), probability of rank K, rounded up.
        error: (N,), relative error of p0 and of thresholds computed from it.
        tokens: (N, K), e = p / p0 - 1 of the stored tokens.
        tail: (N,), T, with a relative error of at most `TAIL_ERROR`.
        no_tail: (N,), whether T is exactly 0.
    """

    def __init__(self, dist: TopK) -> None:
        self.k = dist.k
        self.others = dist.vocab_size - dist.k
        self.p0 = dist.top_probability
        self.p_k = dist.probs[:, -1]
        self.tail = np.exp(dist.log_tail)
        self.no_tail = np.isneginf(dist.log_tail)
        if dist.logits is None:
            self.error = np.full(len(dist), FLOAT_ERROR)
            self.tokens = (dist.probs - self.p0[:, None]) / self.p0[:, None]
        else:
            self.error = FLOAT_ERROR * (1.0 + dist.top_surprisal)
            raw = dist.logits.astype(np.float64)
            self.tokens = np.asarray(np.expm1((raw - raw[:, :1]) / dist.temperature))
            # the kernel rounds p_K otherwise: what exceeds a threshold there must exceed it here
            self.p_k = self.p_k * (
                1.0 + FLOAT_ERROR * (1.0 - np.maximum(dist.log_probs[:, -1], -1e3))
            )

    def ratio(self, b: Floats) -> Floats:
        """Return e of unseen tokens of probability b, at most that of rank K."""
        last = self.tokens[:, -1]
        return np.where(b < self.p_k, np.minimum((b - self.p0) / self.p0, last), last)


def all_pass(theta: Floats, least: Floats, p_k: Floats, others: int) -> NDArray[np.bool_]:
    """Return whether every unseen token must exceed theta, if their mass is at least `least`."""
    return (theta < 0) | (least - (others - 1) * p_k > theta)


def _by_threshold(stored: TruncatedSteps, theta: Floats) -> tuple[*Ends, Counts]:
    """Return the ends and the accepted counts where all stored tokens exceed theta."""
    n = stored.others
    p_k = stored.p_k
    least = stored.tail * (1.0 - TAIL_ERROR)
    mass = stored.tail * (1.0 + TAIL_ERROR)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        fitting = np.clip(np.ceil(mass / theta) - 1.0, 0.0, n)
    # the largest number of unseen tokens that may exceed theta
    most = np.where(theta > 0, fitting, np.where(mass > 0, n, 0.0))
    most = np.where(theta >= stored.p0, 0.0, most)  # none exceeds p0
    j = np.minimum(most, n - 1.0)
    high = np.minimum(np.minimum(np.maximum(theta, 0.0), mass), p_k)
    low = np.minimum(np.maximum(0.0, least - j * p_k) / (n - j), high)
    # where both theta and T are tiny, rounding hides which of them is larger
    most = np.where((theta < TINY) & ~stored.no_tail, n, most)
    lower, upper, active = _ends(stored, low, high, most)
    everything = all_pass(theta, least, p_k, n)
    accepted = np.where(most == 0, stored.k, UNKNOWN)
    return (
        np.where(everything, np.inf, lower),
        np.where(everything | (most == n), np.inf, upper),
        np.where(everything, 0, active),
        np.where(everything, stored.k + n, accepted).astype(np.int32),
    )


def _by_count(stored: TruncatedSteps, counts: Counts) -> tuple[*Ends, Counts]:
    """Return the ends and the counts: at most count - K unseen tokens exceed the rejected one."""
    tail = stored.tail
    p_k = stored.p_k
    more = np.maximum(0, counts - stored.k).astype(np.float64)
    high = np.minimum(p_k, tail * (1.0 + TAIL_ERROR) / (more + 1.0))
    least = (tail * (1.0 - TAIL_ERROR) - more * p_k) / (stored.others - more)
    lower, upper, active = _ends(stored, np.clip(least, 0.0, high), high, more)
    return lower, np.where(counts < 0, np.inf, upper), active, counts


def _ends(stored: TruncatedSteps, low: Floats, high: Floats, most: Floats) -> Ends:
    """Return the ends of M for b in [low, high], if at most `most` unseen tokens exceed b."""
    largest = stored.ratio(high * (1.0 + stored.error))
    lower, active = mode_cost(stored.p0, stored.tokens, largest, widen=-WIDENING)
    upper = _upper(stored, low * (1.0 - stored.error), most)
    exact = (stored.tail < TINY) & (most == 0)
    if exact.any():
        cost, _ = mode_cost(stored.p0, stored.tokens, stored.ratio(stored.tail))
        lower = np.where(exact, cost, lower)
        upper = np.where(exact, cost, upper)
    return lower, upper, active


def _upper(stored: TruncatedSteps, b: Floats, most: Floats) -> Floats:
    """Return an upper bound of M of a token of at least b that `most` unseen ones may exceed."""
    tokens = stored.tokens
    last = stored.ratio(b)
    value, size = mode_cost(stored.p0, tokens, last, widen=WIDENING)
    rows = np.flatnonzero(size > tokens.shape[1])  # rank K is active, so unseen tokens may be
    p0 = stored.p0[rows]
    last = last[rows]
    mass = np.maximum(0.0, stored.tail[rows] * (1.0 + TAIL_ERROR) - b[rows])
    unseen = np.minimum(np.floor(mass / stored.p_k[rows]), most[rows])  # tokens as probable as p_K
    rest = np.where(unseen < most[rows], mass - unseen * stored.p_k[rows], 0.0)
    at_p_k = tokens[rows, -1]
    at_rest = np.clip(rest / p0 - 1.0, last, at_p_k)  # one token has what is left, at most p_K
    worst = np.column_stack([tokens[rows], at_p_k, at_rest])
    times = np.column_stack([np.ones_like(tokens[rows]), unseen, np.ones_like(rest)])
    value[rows], _ = mode_cost(p0, worst, last, times, WIDENING)
    return value


def certify_rounded(dist: TopK, rules: Sequence[Rule]) -> Certificates:
    """Return the certificates of steps with a `log_prob_error`, as intervals.

    The accepted counts are those of the printed values. Where a probability is closer to a
    threshold than its error, the true count may differ; the interval allows for that.

    Raises:
        ValueError: a rule compares raw logits, its test is not monotone in p0 and the entropy, or
            it reads anything else (`rule_range`).
    """
    printed = replace(dist, log_prob_error=None)
    result = certify_tests(printed, [checked_test(printed, rule) for rule in rules])
    low, high = dist.prob_range
    for column, rule in enumerate(rules):
        if isinstance(rule, Tree):
            relaxed = _corner(printed, np.column_stack([low[:, 0], high[:, 1:]]))
            strict = _corner(printed, np.column_stack([high[:, 0], low[:, 1:]]))
            lower = certify_tests(relaxed, [rule])
            upper = certify_tests(strict, [rule])
            ends = lower.lower[:, 0], upper.upper[:, 0], lower.active_size[:, 0]
        else:
            ends = _by_rounded(dist, acceptance_range(dist, rule))
        result.lower[:, column] = ends[0] * (1 - WIDENING)
        result.upper[:, column] = ends[1] * (1 + WIDENING)
        result.active_size[:, column] = ends[2]
    return result


def _corner(dist: TopK, probs: Floats) -> TopK:
    """Return the steps with other probabilities, none above p0; they need not sum to 1."""
    probs = np.minimum(probs, probs[:, :1])
    return replace(dist, top_surprisal=-np.log(probs[:, 0]), stored_probs=probs)


def _by_rounded(dist: TopK, test: AcceptanceRange) -> Ends:
    """Return the ends for a rule whose test lies in a range."""
    low, high = dist.prob_range
    least_tail, most_tail = dist.tail_range
    k = dist.k
    size = dist.vocab_size
    others = dist.vocab_size - dist.k

    def accepted(p: Floats, theta: Floats, ranks: NDArray[np.int64]) -> NDArray[Any]:
        passed = np.logical_and.accumulate(p > theta[:, None], axis=1).sum(axis=1)
        return np.asarray(np.maximum(1, np.minimum(passed, ranks)))

    def rejected(p: Floats, n: NDArray[Any]) -> Floats:  # rank n + 1, or the last stored one
        return np.take_along_axis(p, np.minimum(n, k - 1)[:, None], axis=1)[:, 0]

    fewest = accepted(low, test.most_theta, test.least_ranks)
    most = accepted(high, test.least_theta, test.most_ranks)
    # the most probable rejected token that is unseen: it is rejected by its rank or by theta
    by_rank = most_tail / (np.maximum(test.least_ranks - k, 0) + 1.0)
    beyond = np.where(test.least_ranks < size, by_rank, np.maximum(test.most_theta, 0.0))
    beyond = np.minimum(np.minimum(beyond, most_tail), high[:, -1])
    lower, active = _cost(low, fewest, np.where(fewest < k, rejected(high, fewest), beyond))
    everything = all_pass(test.most_theta, least_tail, high[:, -1], others)
    everything &= (fewest >= k) & (test.least_ranks >= size)
    everything |= fewest >= size
    # if an unseen token may be accepted, the rejected ones may have probability 0, or there is none
    unseen = (test.most_ranks > k) & (np.minimum(most_tail, high[:, -1]) > test.least_theta)
    least = np.where(most < k, rejected(low, most), least_tail / max(1, others))
    upper, _ = _cost(high, most, least)
    return (
        np.where(everything, np.inf, lower),
        np.where((most >= size) | ((most >= k) & unseen), np.inf, upper),
        np.where(everything, 0, active),
    )


def _cost(p: Floats, n: NDArray[Any], b: Floats) -> tuple[Floats, NDArray[np.int32]]:
    """Return M of a token of probability b after the n largest of p (N, K), and |A|."""
    last = b[:, None]  # stands for the tokens after the n largest, which are not active
    others = np.where(np.arange(p.shape[1]) < n[:, None], np.maximum(p, last), last)
    p0 = others[:, 0]
    return mode_cost(p0, (others - p0[:, None]) / p0[:, None], (b - p0) / p0)

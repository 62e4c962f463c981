"""Rigorous intervals for certificates whose first rejected token is not among the stored K.

Its probability b lies in [max(0, (T - j p_K) / (N - j)), min(theta, T, p_K)], j the most unseen
tokens that may exceed the threshold theta, and R = M(b) falls as b grows. Where an unseen token may
be active, the upper end is at a vertex of what T allows: docs/method.md, Truncation.

As in the kernel, tokens are represented by p / p0 - 1, from exact differences of logits. M falls
with its square where it is small, so digits lost there would be lost in M.

Rounded log-probabilities (`certify_rounded`) put each stored p between two ends
(`TopK.prob_range`). M of rank n + 1 rises in n, falls in the probability of rank n + 1 and rises in
those before it; a tree's certificate rises in p0 and falls in the next m. So the ends of M are at
corners of the ranges. These need not sum to 1, as M depends on the active tokens alone. Where ends
cross, the smaller ones are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import RuleError
from ..rule_base import UNKNOWN, Counts, Cut, Rule
from ..rules import Tree
from ..topk import Floats, TopK
from .bounds import phi
from .kernel import Certificates, certify_stored

WIDENING = 1e-12  # relative widening of an interval, far above the error of M
TAIL_ERROR = 1e-9  # relative error allowed in T
# the relative error of exp of a stored logarithm is about 1e-16 (1 + |logarithm|)
ROUNDING = 16 * float(np.finfo(np.float64).eps)
TINY = 1e-300  # smaller masses are treated alike
ENTRIES = 2**17  # probabilities processed at a time

Ends = tuple[Floats, Floats, NDArray[np.int32]]  # lower, upper, and |A| at lower


def certify_tests(dist: TopK, forms: Sequence[Cut | Counts | Tree]) -> Certificates:
    """Return the certificates of N steps under R tests, as intervals where they are not stored."""
    result = certify_stored(dist, forms)
    unknown, size = np.isnan(result.lower), max(1, ENTRIES // dist.k)
    for r in np.flatnonzero(unknown.any(axis=0)).tolist():
        form, steps = forms[r], np.flatnonzero(unknown[:, r])
        for start in range(0, len(steps), size):
            rows = steps[start : start + size]
            stored = TruncatedSteps(dist[rows])
            if isinstance(form, Cut):
                ends = _by_threshold(stored, form.threshold(dist)[rows])
            else:
                ends = _by_count(stored, result.accepted_count[rows, r])
            result.lower[rows, r], result.upper[rows, r] = ends[:2]
            result.active_size[rows, r], result.accepted_count[rows, r] = ends[2:]
    return result


class TruncatedSteps:
    """N steps whose first rejected token is not stored, in the form that the interval ends need.

    Attributes:
        others: V - K, the number of tokens that are not stored.
        p_k: (N,), probability of rank K, rounded up.
        error: (N,), relative error of p0 and of thresholds computed from it.
        tokens: p / p0 - 1 of the stored tokens, (N, K).
        tail: (N,), T, with a relative error of at most `TAIL_ERROR`.
    """

    def __init__(self, dist: TopK) -> None:
        self.k, self.others = dist.k, dist.vocab_size - dist.k
        self.p0, self.p_k = dist.top_probability, dist.probs[:, -1]
        self.tail, self.no_tail = np.exp(dist.log_tail), np.isneginf(dist.log_tail)
        if dist.logits is None:
            self.error = np.full(len(dist), ROUNDING)
            self.tokens = (dist.probs - self.p0[:, None]) / self.p0[:, None]
        else:
            self.error = ROUNDING * (1.0 + dist.top_surprisal)
            raw = dist.logits.astype(np.float64)
            self.tokens = np.asarray(np.expm1((raw - raw[:, :1]) / dist.temperature))
            # a token that passed a threshold in the kernel, rounded differently, must pass it here
            self.p_k = self.p_k * (1.0 + ROUNDING * (1.0 - np.maximum(dist.log_probs[:, -1], -1e3)))

    def ratio(self, b: Floats) -> Floats:
        """Return p / p0 - 1 of unseen tokens of probability b, at most that of rank K."""
        last = self.tokens[:, -1]
        return np.where(b < self.p_k, np.minimum((b - self.p0) / self.p0, last), last)


def mode_cost(
    p0: Floats, others: Floats, token: Floats, times: Floats | None = None, widen: float = 0.0
) -> tuple[Floats, NDArray[np.int32]]:
    """Return M, the least KL that makes a token a mode of q, and |A|, each (N,).

    Of p / p0 - 1, p0 (N,) being rank 1's: `others` (N, J) by decreasing p, with their multiplicity
    `times` (N, J), 1 if not given; and `token` (N,), at most that of every other active token. M is
    increased by `widen`, relative.
    """
    times = np.ones_like(others) if times is None else times
    sums = np.cumsum(np.where(times > 0, times * others, 0.0), axis=1)
    means = (token[:, None] + sums) / (1.0 + np.cumsum(times, axis=1))
    # p falls and the level with it: once p is not above, it stays so
    above = np.column_stack([np.ones(len(token), dtype=bool), others[:, 1:] > means[:, :-1]])
    above = np.logical_and.accumulate(above, axis=1)
    mean = np.take_along_axis(means, above.sum(axis=1, keepdims=True) - 1, axis=1)
    width = int(above.sum(axis=1).max(initial=1))
    weight = np.where(above, times, 0.0)[:, :width]
    terms = weight * phi((others[:, :width] - mean) / (1.0 + mean))
    own = phi((token[:, None] - mean) / (1.0 + mean))
    value = p0 * (1.0 + mean[:, 0]) * (terms.sum(axis=1) + own[:, 0]) * (1.0 + widen)
    return value, (weight.sum(axis=1) + 1.0).astype(np.int32)


def all_pass(theta: Floats, least: Floats, p_k: Floats, others: int) -> NDArray[np.bool_]:
    """Return whether every unseen token exceeds theta, `least` being their least mass."""
    return (theta < 0) | (least - (others - 1) * p_k > theta)


def _by_threshold(stored: TruncatedSteps, theta: Floats) -> tuple[*Ends, Counts]:
    """Return the ends where all stored tokens exceed theta."""
    n, p_k = stored.others, stored.p_k
    least, mass = stored.tail * (1.0 - TAIL_ERROR), stored.tail * (1.0 + TAIL_ERROR)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        fitting = np.clip(np.ceil(mass / theta) - 1.0, 0.0, n)
    most = np.where(theta > 0, fitting, np.where(mass > 0, n, 0.0))  # that can exceed theta
    j = np.minimum(most, n - 1.0)
    high = np.minimum(np.minimum(np.maximum(theta, 0.0), mass), p_k)
    low = np.minimum(np.maximum(0.0, least - j * p_k) / (n - j), high)
    # of thresholds and masses next to nothing it is not known which is larger
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
    """Use that the first rejected token is the (count - K + 1)th of the tail, or further."""
    tail, p_k = stored.tail, stored.p_k
    more = np.maximum(0, counts - stored.k).astype(np.float64)
    high = np.minimum(p_k, tail * (1.0 + TAIL_ERROR) / (more + 1.0))
    least = (tail * (1.0 - TAIL_ERROR) - more * p_k) / (stored.others - more)
    lower, upper, active = _ends(stored, np.clip(least, 0.0, high), high, more)
    return lower, np.where(counts < 0, np.inf, upper), active, counts


def _ends(stored: TruncatedSteps, low: Floats, high: Floats, most: Floats) -> Ends:
    """Return the ends of M for b in [low, high], which at most `most` unseen tokens exceed."""
    largest = stored.ratio(high * (1.0 + stored.error))
    lower, active = mode_cost(stored.p0, stored.tokens, largest, widen=-WIDENING)
    upper = _upper(stored, low * (1.0 - stored.error), most)
    exact = (stored.tail < TINY) & (most == 0)
    if exact.any():
        cost, _ = mode_cost(stored.p0, stored.tokens, stored.ratio(stored.tail))
        lower, upper = np.where(exact, cost, lower), np.where(exact, cost, upper)
    return lower, upper, active


def _upper(stored: TruncatedSteps, b: Floats, most: Floats) -> Floats:
    """Return an upper bound of M of a token of at least b that `most` unseen ones may exceed."""
    tokens, last = stored.tokens, stored.ratio(b)
    value, size = mode_cost(stored.p0, tokens, last, widen=WIDENING)
    rows = np.flatnonzero(size > tokens.shape[1])  # p_K exceeds the level: others may be active
    p0, last = stored.p0[rows], last[rows]
    mass = np.maximum(0.0, stored.tail[rows] * (1.0 + TAIL_ERROR) - b[rows])
    unseen = np.minimum(np.floor(mass / stored.p_k[rows]), most[rows])  # at p_K
    rest = np.where(unseen < most[rows], mass - unseen * stored.p_k[rows], 0.0)
    at_p_k = tokens[rows, -1]
    of_rest = np.clip(rest / p0 - 1.0, last, at_p_k)  # no more than p_K
    worst = np.column_stack([tokens[rows], at_p_k, of_rest])
    times = np.column_stack([np.ones_like(tokens[rows]), unseen, np.ones_like(rest)])
    value[rows], _ = mode_cost(p0, worst, last, times, WIDENING)
    return value


def certify_rounded(dist: TopK, rules: Sequence[Rule]) -> Certificates:
    """Return the certificates of steps with a `log_prob_error` under thresholds and trees.

    The accepted counts are those of the printed values. They may differ from the true ones where
    a probability is as close to a threshold as its error; the ends allow for that.

    Raises:
        ValueError: a rule compares raw logits or returns counts.
    """
    printed = replace(dist, log_prob_error=None)
    forms = [rule if isinstance(rule, Tree) else rule.acceptance_test(printed) for rule in rules]
    result = certify_tests(printed, forms)
    (low, high), (least, most) = dist.prob_range, dist.entropy_range
    # the corners where the fewest and where the most tokens are accepted: p0 is at one end, the
    # other tokens and the entropy are at the opposite ends
    strict = _corner(printed, np.column_stack([high[:, 0], low[:, 1:]]), entropy=least)
    relaxed = _corner(printed, np.column_stack([low[:, 0], high[:, 1:]]), entropy=most)
    for column, rule in enumerate(rules):
        if isinstance(rule, Tree):
            lower, upper = certify_tests(relaxed, [rule]), certify_tests(strict, [rule])
            ends = lower.lower[:, 0], upper.upper[:, 0], lower.active_size[:, 0]
        else:
            cuts = [
                cut for cut in map(rule.acceptance_test, (strict, relaxed)) if isinstance(cut, Cut)
            ]
            if not cuts:
                raise RuleError(
                    f"rule {rule.label!r} gives counts, and these log-probabilities are rounded: "
                    "give its class a method cut(dist)"
                )
            ends = _by_rounded(dist, cuts)
        result.lower[:, column] = ends[0] * (1 - WIDENING)
        result.upper[:, column] = ends[1] * (1 + WIDENING)
        result.active_size[:, column] = ends[2]
    return result


def _corner(dist: TopK, probs: Floats, **columns: Any) -> TopK:
    """Return steps with the same tokens and other probabilities, which need not sum to 1."""
    probs = np.minimum(probs, probs[:, :1])
    return replace(dist, top_surprisal=-np.log(probs[:, 0]), stored_probs=probs, **columns)


def _by_rounded(dist: TopK, cuts: Sequence[Cut]) -> Ends:
    """Return the ends of a rule that has these cuts at the strict and at the relaxed corner."""
    (low, high), tail = dist.prob_range, dist.tail_range
    k, size, others = dist.k, dist.vocab_size, dist.vocab_size - dist.k
    thetas = [cut.offset + cut.slope * p0 for cut in cuts for p0 in (low[:, 0], high[:, 0])]
    least, most = np.min(thetas, axis=0), np.max(thetas, axis=0)
    ranks = np.minimum(size if cuts[0].max_rank is None else cuts[0].max_rank, size)

    def accepted(p: Floats, theta: Floats) -> NDArray[Any]:
        passed = np.logical_and.accumulate(p > theta[:, None], axis=1).sum(axis=1)
        return np.asarray(np.maximum(1, np.minimum(passed, ranks)))

    def rejected(p: Floats, n: NDArray[Any]) -> Floats:  # rank n + 1, or the last stored one
        return np.take_along_axis(p, np.minimum(n, k - 1)[:, None], axis=1)[:, 0]

    fewest, largest = accepted(low, most), accepted(high, least)
    beyond = np.minimum(np.minimum(np.maximum(most, 0.0), tail[1]), high[:, -1])
    lower, active = _cost(low, fewest, np.where(fewest < k, rejected(high, fewest), beyond))
    everything = (fewest >= k) & (ranks >= size) & all_pass(most, tail[0], high[:, -1], others)
    everything |= fewest >= size
    upper, _ = _cost(high, largest, rejected(low, largest))
    return (
        np.where(everything, np.inf, lower),
        np.where(largest >= k, np.inf, upper),  # what is not listed may be as improbable as 0
        np.where(everything, 0, active),
    )


def _cost(p: Floats, n: NDArray[Any], b: Floats) -> tuple[Floats, NDArray[np.int32]]:
    """Return M of a token of probability b besides the n largest of p (N, K), and its |A|."""
    last = b[:, None]  # keeps the other tokens out of the active set
    others = np.where(np.arange(p.shape[1]) < n[:, None], np.maximum(p, last), last)
    p0 = others[:, 0]
    return mode_cost(p0, (others - p0[:, None]) / p0[:, None], (b - p0) / p0)

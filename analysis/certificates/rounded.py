"""Certificates of steps with rounded log-probabilities and an unknown tail.

Each stored probability lies between two ends (`TopK.prob_range`). Let n be the accepted count and M
the divergence that makes rank n + 1 a mode of q. M rises in n. For a given n it falls in the
probability of rank n + 1 and rises in those of the ranks before it: at the closest draft q the
derivative by p is log(p / q) for KL, and has that sign for total variation. So M is least with n
least, rank n + 1 at its upper end and the ranks before it at their lower ends. It is largest the
other way round. A tree's certificate rises in p0 and falls in the next m. These corners need not
sum to 1. The two divergences depend on the active tokens alone, so that does not matter.

A tree ignores a token above the level of the active set, and a single draft ignores a token below
the one that is made a mode. So where ends cross, the smaller ones are left out.

Where all stored tokens may be accepted, the first rejected one lies in the tail. Its probability b
is bounded by the tail's mass, rank K and the threshold, as in `truncation` but without an entropy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..rules.builtin import Tree
from ..rules.rule import Cut, Rule
from ..topk import Floats, TopK
from .divergences import Divergence, ratios
from .kernel_types import KL, TV, Certificates
from .truncation import MARGIN, TruncatedSteps, upper_bound

Counts = NDArray[np.integer[Any]]
Exact = Callable[[TopK, Sequence[Rule]], Certificates]


def rounded(
    dist: TopK, rules: Sequence[Rule], divergence: Divergence, exact: Exact
) -> Certificates:
    """Return the certificates of steps with rounded log-probabilities, as intervals.

    The accepted counts are those of the printed values. They may differ from the true ones where
    a probability is as close to a threshold as its error; the ends allow for that.

    Args:
        dist: N steps with a `log_prob_error`.
        rules: R rules, thresholds or trees.
        divergence: of the certificates.
        exact: certifies distributions without errors.

    Raises:
        ValueError: a rule compares raw logits or returns counts, or the divergence is neither KL
            nor total variation.
    """
    if divergence.kind not in (KL, TV):
        raise ValueError("rounded log-probabilities are certified in kl and tv only")
    certificates = exact(replace(dist, log_prob_error=None), rules)
    box = Box(dist)
    for column, rule in enumerate(rules):
        if isinstance(rule, Tree):
            least, most = (exact(corner, [rule]) for corner in (box.relaxed, box.strict))
            lower, upper, active = least.lower[:, 0], most.upper[:, 0], least.active_size[:, 0]
        else:
            lower, upper, active = box.single(rule, divergence)
        certificates.lower[:, column], certificates.upper[:, column] = (
            lower * (1 - MARGIN),
            upper * (1 + MARGIN),
        )
        certificates.active_size[:, column] = active
    return certificates


class Box:
    """Steps with a range for each probability: `low` and `high`, (N, K).

    At the corner `strict` the fewest tokens are accepted, at `relaxed` the most: p0 is at one end,
    the other tokens and the entropy are at the opposite ends.
    """

    def __init__(self, dist: TopK) -> None:
        """Take N steps with a `log_prob_error`."""
        self.dist = dist
        self.low, self.high = dist.prob_range

        def corner(p0: Floats, others: Floats, entropy: Floats) -> TopK:
            probs = np.column_stack([p0, np.minimum(others[:, 1:], p0[:, None])])
            return _described(dist, probs, entropy)

        least, most = dist.entropy_range
        self.strict = corner(self.high[:, 0], self.low, least)
        self.relaxed = corner(self.low[:, 0], self.high, most)

    def single(
        self, rule: Rule, divergence: Divergence
    ) -> tuple[Floats, Floats, NDArray[np.int32]]:
        """Return lower, upper and |A| of a token rule, (N,) each."""
        theta_low, theta_high, most_rank = self.thresholds(rule)
        fewest, most = (
            np.maximum(1, np.minimum(np.sum(np.logical_and.accumulate(p > t[:, None], 1), 1), cap))
            for p, t, cap in ((self.low, theta_high, most_rank), (self.high, theta_low, most_rank))
        )
        lower, active = self._lower_end(divergence, fewest, theta_high, most_rank)
        return lower, self._upper_end(divergence, most, theta_low), active

    def thresholds(self, rule: Rule) -> tuple[Floats, Floats, NDArray[np.int64]]:
        """Return the (N,) least and largest threshold of a rule, and its largest rank.

        Raises:
            ValueError: the rule is not a threshold.
        """
        cuts = [rule.form(corner) for corner in (self.strict, self.relaxed)]
        size, cut = self.dist.vocab_size, cuts[0]
        if not isinstance(cut, Cut):
            raise ValueError(
                f"rule {rule.label!r} gives counts, and these log-probabilities are rounded: give "
                "its class a method cut(dist)"
            )
        ends = [
            cut.offset + cut.slope * p0
            for cut in cuts
            if isinstance(cut, Cut)
            for p0 in (self.low[:, 0], self.high[:, 0])
        ]
        low, high = np.min(ends, axis=0), np.max(ends, axis=0)
        if 0 < cut.strictly_above_rank <= size:
            gate = cut.strictly_above_rank - 1
            low, high = np.maximum(low, self.low[:, gate]), np.maximum(high, self.high[:, gate])
        ranks = np.minimum(size if cut.max_rank is None else cut.max_rank, size)
        return low, high, np.broadcast_to(np.asarray(ranks, dtype=np.int64), low.shape)

    def _lower_end(
        self, divergence: Divergence, n: Counts, theta: Floats, most_rank: NDArray[np.int64]
    ) -> tuple[Floats, NDArray[np.int32]]:
        """Return the least M of rank n + 1, and its |A|, if at least n tokens are accepted."""
        k, size = self.dist.k, self.dist.vocab_size
        inside = n < k
        b = np.take_along_axis(self.high, np.minimum(n, k - 1)[:, None], 1)[:, 0]
        tail_low, tail_high = self.dist.tail_range
        beyond = np.minimum(np.minimum(np.maximum(theta, 0.0), tail_high), self.high[:, -1])
        value, active = _mode_cost(divergence, self.low, n, np.where(inside, b, beyond))
        # all of the tail is certain to pass if the largest token has to exceed theta
        largest_least = tail_low - (size - k - 1) * self.high[:, -1]
        everything = ~inside & (most_rank >= size) & ((theta < 0) | (largest_least > theta))
        everything |= n >= size
        return np.where(everything, np.inf, value), np.where(everything, 0, active)

    def _upper_end(self, divergence: Divergence, n: Counts, theta: Floats) -> Floats:
        """Return the largest M of rank n + 1, if at most n tokens are accepted."""
        k, size = self.dist.k, self.dist.vocab_size
        b = np.take_along_axis(self.low, np.minimum(n, k - 1)[:, None], 1)[:, 0]
        value, _ = _mode_cost(divergence, self.high, n, b)
        rows = np.flatnonzero((n >= k) & (n < size))
        if len(rows):
            value[rows] = self._beyond(divergence, rows, theta[rows])
        return np.where(n >= size, np.inf, value)

    def _beyond(self, divergence: Divergence, rows: NDArray[np.intp], theta: Floats) -> Floats:
        """Return the largest M of a token of the tail that is not above theta."""
        others, high = self.dist.vocab_size - self.dist.k, self.high[rows]
        (tail_low, tail_high), p_k = (end[rows] for end in self.dist.tail_range), high[:, -1]
        with np.errstate(divide="ignore", invalid="ignore"):
            fitting = np.where(theta > 0, np.ceil(tail_high / theta) - 1.0, others)
        most = np.clip(np.where(theta < 0, others, fitting), 0.0, others)
        j = np.minimum(most, others - 1.0)
        b = np.maximum(0.0, tail_low - j * p_k) / (others - j)
        dist = _described(self.dist[rows], high, np.zeros(len(rows)))
        with np.errstate(divide="ignore"):
            dist, log_b = replace(dist, log_tail=np.log(tail_high)), np.log(b)
        bound = upper_bound(TruncatedSteps(dist, divergence), log_b, most)
        return np.where(most >= others, np.inf, bound)


def _mode_cost(
    divergence: Divergence, p: Floats, n: Counts, b: Floats
) -> tuple[Floats, NDArray[np.int32]]:
    """Return M of a token of probability b besides the n largest of p (N, K), and its |A|.

    The other tokens are set to b, which keeps them out of the active set: they are not above the
    level.
    """
    last = b[:, None]
    others = np.where(np.arange(p.shape[1]) < n[:, None], np.maximum(p, last), last)
    p0 = others[:, 0]
    return divergence.least(p0, ratios(others, p0[:, None]), ratios(b, p0))


def _described(dist: TopK, probs: Floats, entropy: Floats) -> TopK:
    """Return steps with the same tokens and other probabilities, which need not sum to 1."""
    with np.errstate(divide="ignore"):
        return replace(
            dist,
            top_surprisal=-np.log(probs[:, 0]),
            stored_probs=np.ascontiguousarray(probs),
            entropy=entropy,
            log_prob_error=None,
        )

"""Certificates of steps with rounded log-probabilities and an unknown tail.

Each stored probability lies between two ends (`TopK.prob_range`). Let n be the accepted count and M
the KL that makes rank n + 1 a mode of q. M rises in n. For a given n it falls in the probability of
rank n + 1 and rises in those of the ranks before it: at the closest draft q the derivative by p is
log(p / q). So M is least with n least, rank n + 1 at its upper end and the ranks before it at their
lower ends. It is largest the other way round. A tree's certificate rises in p0 and falls in the
next m. These corners need not sum to 1: M depends on the active tokens alone.

A tree ignores a token above the level of the active set, and a single draft ignores a token below
the one that is made a mode. So where ends cross, the smaller ones are left out.

Where all stored tokens may be accepted, the first rejected one lies in the tail, and is bounded as
in `truncation`.
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
from .kernel_types import Certificates
from .truncation import MARGIN, TruncatedSteps, all_pass, first_rejected, mode_cost, upper_bound

Exact = Callable[[TopK, Sequence[Rule]], Certificates]


def rounded(dist: TopK, rules: Sequence[Rule], exact: Exact) -> Certificates:
    """Return the certificates of steps with rounded log-probabilities, as intervals.

    The accepted counts are those of the printed values. They may differ from the true ones where
    a probability is as close to a threshold as its error; the ends allow for that.

    Args:
        dist: N steps with a `log_prob_error`.
        rules: R rules, thresholds or trees.
        exact: certifies distributions without errors.

    Raises:
        ValueError: a rule compares raw logits or returns counts.
    """
    certificates = exact(replace(dist, log_prob_error=None), rules)
    (low, high), (least, most) = dist.prob_range, dist.entropy_range
    # the corners where the fewest and where the most tokens are accepted: p0 is at one end, the
    # other tokens and the entropy are at the opposite ends
    strict = _described(dist, np.column_stack([high[:, 0], low[:, 1:]]), least)
    relaxed = _described(dist, np.column_stack([low[:, 0], high[:, 1:]]), most)
    for column, rule in enumerate(rules):
        if isinstance(rule, Tree):
            lower = exact(relaxed, [rule])
            upper, active = exact(strict, [rule]).upper[:, 0], lower.active_size[:, 0]
            ends = lower.lower[:, 0], upper, active
        else:
            ends = _by_threshold(dist, *_thresholds(dist, rule, strict, relaxed))
        certificates.lower[:, column] = ends[0] * (1 - MARGIN)
        certificates.upper[:, column] = ends[1] * (1 + MARGIN)
        certificates.active_size[:, column] = ends[2]
    return certificates


def _thresholds(
    dist: TopK, rule: Rule, strict: TopK, relaxed: TopK
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Return the (N,) least and largest threshold of a rule, and its largest rank.

    Raises:
        ValueError: the rule is not a threshold.
    """
    (low, high), size = dist.prob_range, dist.vocab_size
    cuts = [cut for cut in map(rule.form, (strict, relaxed)) if isinstance(cut, Cut)]
    if not cuts:
        raise ValueError(
            f"rule {rule.label!r} gives counts, and these log-probabilities are rounded: give "
            "its class a method cut(dist)"
        )
    ends = [cut.offset + cut.slope * p0 for cut in cuts for p0 in (low[:, 0], high[:, 0])]
    least, most = np.min(ends, axis=0), np.max(ends, axis=0)
    cut = cuts[0]
    if 0 < cut.strictly_above_rank <= size:
        gate = cut.strictly_above_rank - 1
        least, most = np.maximum(least, low[:, gate]), np.maximum(most, high[:, gate])
    ranks = np.minimum(size if cut.max_rank is None else cut.max_rank, size)
    return least, most, np.broadcast_to(np.asarray(ranks, dtype=np.int64), least.shape)


def _by_threshold(
    dist: TopK, least: Floats, most: Floats, ranks: NDArray[np.int64]
) -> tuple[Floats, Floats, NDArray[np.int32]]:
    """Return lower, upper and |A| of a rule with thresholds in [least, most], (N,) each."""
    (low, high), (tail_low, tail_high) = dist.prob_range, dist.tail_range
    k, size, others = dist.k, dist.vocab_size, dist.vocab_size - dist.k

    def accepted(p: Floats, theta: Floats) -> NDArray[Any]:
        passed = np.logical_and.accumulate(p > theta[:, None], axis=1).sum(axis=1)
        return np.asarray(np.maximum(1, np.minimum(passed, ranks)))

    fewest, largest = accepted(low, most), accepted(high, least)
    beyond = np.minimum(np.minimum(np.maximum(most, 0.0), tail_high), high[:, -1])
    lower, active = _cost(low, fewest, np.where(fewest < k, _at(high, fewest), beyond))
    everything = (fewest >= k) & (ranks >= size) & all_pass(most, tail_low, high[:, -1], others)
    everything |= fewest >= size
    upper, _ = _cost(high, largest, _at(low, largest))
    rows = np.flatnonzero((largest >= k) & (largest < size))
    if len(rows):
        tail = tail_low[rows], tail_high[rows]
        b, _, unseen = first_rejected(least[rows], tail, high[rows, -1], others)
        with np.errstate(divide="ignore"):
            corner = replace(dist[rows], log_tail=np.log(tail[1]))
        corner = _described(corner, high[rows], corner.entropy)
        bound = upper_bound(TruncatedSteps(corner), b, unseen)
        unlimited = (unseen >= others) | (least[rows] < 0)
        upper[rows] = np.where(unlimited, np.inf, bound)
    return (
        np.where(everything, np.inf, lower),
        np.where(largest >= size, np.inf, upper),
        np.where(everything, 0, active),
    )


def _at(p: Floats, n: NDArray[Any]) -> Floats:
    """Return the probability of rank n + 1, or of the last stored one."""
    return np.take_along_axis(p, np.minimum(n, p.shape[1] - 1)[:, None], 1)[:, 0]


def _cost(p: Floats, n: NDArray[Any], b: Floats) -> tuple[Floats, NDArray[np.int32]]:
    """Return M of a token of probability b besides the n largest of p (N, K), and its |A|.

    The other tokens are set to b, which keeps them out of the active set: they are not above the
    level.
    """
    last = b[:, None]
    others = np.where(np.arange(p.shape[1]) < n[:, None], np.maximum(p, last), last)
    p0 = others[:, 0]
    return mode_cost(p0, (others - p0[:, None]) / p0[:, None], (b - p0) / p0)


def _described(dist: TopK, probs: Floats, entropy: Floats) -> TopK:
    """Return steps with the same tokens and other probabilities, which need not sum to 1."""
    probs = np.minimum(probs, probs[:, :1])
    return replace(
        dist,
        top_surprisal=-np.log(probs[:, 0]),
        stored_probs=np.ascontiguousarray(probs),
        entropy=entropy,
        log_prob_error=None,
    )

"""Certificates of steps with rounded log-probabilities and an unknown tail, as intervals.

Each stored probability lies between two ends (`TopK.prob_range`). M of rank n + 1 rises in n, falls
in the probability of rank n + 1 and rises in those before it; a tree's certificate rises in p0 and
falls in the next m. So the ends of M are at corners of the ranges (docs/method.md). These need not
sum to 1, as M depends on the active tokens alone. Where ends cross, the smaller ones are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import RuleError
from ..rules import Cut, Rule, Tree
from ..topk import Floats, TopK
from .intervals import MARGIN, Ends, all_pass, certify_forms, mode_cost
from .kernel import Certificates


def certify_rounded(dist: TopK, rules: Sequence[Rule]) -> Certificates:
    """Return the certificates of steps with a `log_prob_error` under thresholds and trees.

    The accepted counts are those of the printed values. They may differ from the true ones where
    a probability is as close to a threshold as its error; the ends allow for that.

    Raises:
        ValueError: a rule compares raw logits or returns counts.
    """
    printed = replace(dist, log_prob_error=None)
    forms = [rule if isinstance(rule, Tree) else rule.form(printed) for rule in rules]
    result = certify_forms(printed, forms)
    (low, high), (least, most) = dist.prob_range, dist.entropy_range
    # the corners where the fewest and where the most tokens are accepted: p0 is at one end, the
    # other tokens and the entropy are at the opposite ends
    strict = _corner(printed, np.column_stack([high[:, 0], low[:, 1:]]), entropy=least)
    relaxed = _corner(printed, np.column_stack([low[:, 0], high[:, 1:]]), entropy=most)
    for column, rule in enumerate(rules):
        if isinstance(rule, Tree):
            lower, upper = certify_forms(relaxed, [rule]), certify_forms(strict, [rule])
            ends = lower.lower[:, 0], upper.upper[:, 0], lower.active_size[:, 0]
        else:
            cuts = [cut for cut in map(rule.form, (strict, relaxed)) if isinstance(cut, Cut)]
            if not cuts:
                raise RuleError(
                    f"rule {rule.label!r} gives counts, and these log-probabilities are rounded: "
                    "give its class a method cut(dist)"
                )
            ends = _by_threshold(dist, cuts)
        result.lower[:, column] = ends[0] * (1 - MARGIN)
        result.upper[:, column] = ends[1] * (1 + MARGIN)
        result.active_size[:, column] = ends[2]
    return result


def _corner(dist: TopK, probs: Floats, **columns: Any) -> TopK:
    """Return steps with the same tokens and other probabilities, which need not sum to 1."""
    probs = np.minimum(probs, probs[:, :1])
    return replace(dist, top_surprisal=-np.log(probs[:, 0]), stored_probs=probs, **columns)


def _by_threshold(dist: TopK, cuts: Sequence[Cut]) -> Ends:
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
    """Return M of a token of probability b besides the n largest of p (N, K), and its |A|.

    The other tokens are set to b, which keeps them out of the active set.
    """
    last = b[:, None]
    others = np.where(np.arange(p.shape[1]) < n[:, None], np.maximum(p, last), last)
    p0 = others[:, 0]
    return mode_cost(p0, (others - p0[:, None]) / p0[:, None], (b - p0) / p0)

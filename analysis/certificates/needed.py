"""How many tokens a rule has to accept at a step, so that eps is certified there.

The certificate of a rule that accepts n tokens is M of rank n + 1, the first one that is rejected,
and M grows with the rank. So of each step one number says which rules certify eps there: all that
accept at least so many tokens, whatever their thresholds are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..rules.rule import UNKNOWN, Counts, Coverage, Cut, Rule
from ..topk import Floats, TopK
from .certify import certify

AT_ONCE = (2, 6, 24, 96)  # counts tried in one pass, over the steps that are still open


@dataclass(frozen=True)
class First(Rule):
    """Accept the n most probable tokens."""

    n: int

    def cut(self, _dist: TopK, /) -> Cut:
        """Return the limit to rank n."""
        return Cut(max_rank=self.n)


def least_counts(dist: TopK, eps: float, divergence: str = "kl") -> Counts:
    """Return the least number of accepted tokens that certifies eps at each of N steps.

    Args:
        dist: N steps, of which all stored numbers are exact.
        eps: at least 0; certified is what exceeds it.
        divergence: as `certify` names it.

    Returns:
        (N,), at least 1, at most K; K + 1 where even the K stored tokens are too few, or where
        that can't be told from them: the certificate of a rule that accepts them all, and may
        accept more, is then to be asked for.

    Example:
        >>> dist = TopK.from_probabilities([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1]])
        >>> least_counts(dist, 0.06).tolist()
        [2, 2]
    """
    whole = dist.k == dist.vocab_size  # then a rule that accepts all rejects nothing
    counts = np.full(len(dist), dist.k if whole else dist.k + 1, dtype=np.int32)
    open_, tried = np.arange(len(dist)), 0
    for most in (*AT_ONCE, dist.k - 1):
        last = min(most, dist.k - 1)
        if last <= tried or not len(open_):
            continue
        rules = [First(n) for n in range(tried + 1, last + 1)]
        part = dist if len(open_) == len(dist) else dist[open_]
        certified = certify(part, rules, divergence=divergence).lower > eps
        found = certified.any(axis=1)
        counts[open_[found]] = tried + 1 + certified[found].argmax(axis=1)
        open_, tried = open_[~found], last
    return counts


@dataclass(frozen=True, eq=False)
class Needed:
    """What N steps need of a rule that goes by ranks, so that eps is certified.

    Attributes:
        dist: the steps.
        counts: (N,) tokens that have to be accepted, of `least_counts`.
    """

    dist: TopK
    counts: Counts

    @cached_property
    def _p(self) -> Floats:
        """(N,) the probability of the last token to be accepted, to the bit as in `probs`."""
        dist = self.dist
        at = np.arange(len(dist)), np.minimum(self.counts, dist.k) - 1
        if dist.logits is None:
            assert dist.stored_probs is not None
            return np.asarray(dist.stored_probs[at])
        below = dist.logits[at] - dist.logits[:, 0].astype(np.float64)
        return np.asarray(np.exp(below / dist.temperature - dist.top_surprisal))

    def _first(self, k: int) -> TopK:
        """The k most probable tokens of each step, for rules that compare their raw logits."""
        columns: dict[str, Any] = {
            name: getattr(self.dist, name) for name in ("ids", "logits", "stored_probs")
        }
        first = {name: x[:, :k].copy() for name, x in columns.items() if x is not None}
        return replace(self.dist, **first)

    def met(self, rule: Rule) -> NDArray[np.bool_] | None:
        """Return at which steps a rule accepts enough, (N,); None for a rule of other than ranks.

        False where `counts` does not say what is enough.

        Raises:
            ValueError: the rule says nothing, or needs raw logits that are not known.
        """
        known = self.counts <= self.dist.k
        if not rule.decided_by:
            return known & (rule.accepted_count(self._first(rule.minimum_k)) >= self.counts)
        form = rule.form(self.dist)
        if isinstance(form, Coverage):
            return None
        if isinstance(form, Cut):
            passes = self._p > form.threshold(self.dist)
            if form.max_rank is not None:
                passes &= self.counts <= form.max_rank
            return np.asarray(known & (passes | (self.counts == 1)))
        count = rule.accepted_count(self.dist)
        return np.asarray(known & ((count >= self.counts) | (count == UNKNOWN)))

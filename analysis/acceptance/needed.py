"""How many tokens a rule has to accept at a step, so that eps is certified there.

The certificate of a rule that accepts n tokens is M of rank n + 1, the first one that is rejected,
and M grows with the rank. So of each step one number says which rules certify eps there: all that
accept at least so many tokens, whatever their thresholds are.
"""

from __future__ import annotations

import numpy as np

from ..certificates.certify import certify
from ..rules.builtin import FirstRanks
from ..rules.rule import Counts, Cut, Rule
from ..statistics.bootstrap import Flags, Floats
from ..topk import TopK

AT_ONCE = (2, 6, 24, 96)  # counts tried in one pass, over the steps that are still open


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
        rules = [FirstRanks(n) for n in range(tried + 1, last + 1)]
        part = dist if len(open_) == len(dist) else dist[open_]
        certified = certify(part, rules, divergence=divergence).lower > eps
        found = certified.any(axis=1)
        counts[open_[found]] = tried + 1 + certified[found].argmax(axis=1)
        open_, tried = open_[~found], last
    return counts


def probability_at(dist: TopK, ranks: Counts) -> Floats:
    """Return the (N,) probabilities of stored ranks, to the bit as `dist.probs` has them."""
    at = np.arange(len(dist)), np.minimum(ranks, dist.k) - 1
    if dist.logits is None:
        assert dist.stored_probs is not None
        return np.asarray(dist.stored_probs[at])
    below = dist.logits[at] - dist.logits[:, 0].astype(np.float64)
    return np.asarray(np.exp(below / dist.temperature - dist.top_surprisal))


def accepts_rank(dist: TopK, ranks: Counts, p: Floats, rule: Rule) -> Flags | None:
    """Return at which steps a rule accepts the token of a rank, (N,); None if it has no threshold.

    Args:
        dist: N steps.
        ranks: (N,) of the tokens, from 1.
        p: (N,) their probabilities.
        rule: the rule.

    Raises:
        ValueError: the rule says nothing, or needs raw logits that are not known.
    """
    form = rule.form(dist)
    if not isinstance(form, Cut):
        return None
    passes = p > form.threshold(dist)
    if form.max_rank is not None:
        passes &= ranks <= form.max_rank
    return np.asarray(passes | (ranks == 1))

"""Drafted tokens judged by a rule: the values that it needs, and its verdict on each token."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from analysis.decoding.schemes import NOTHING
from analysis.rules import Rule
from analysis.topk import TopK
from pipeline.models.devices import read
from pipeline.models.logit_statistics import chosen_statistics, top_k

SEEN = 16  # most probable tokens that a rule sees which does not say what decides; a threshold
# decides on those beyond them, and a rule without one is shown all tokens when it has to


def asked(rule: Rule, logits: Tensor, drafted: Tensor, k: int | None = None) -> list[Tensor]:
    """Return the values that a rule needs at drafted tokens (n,) under logits (n, V), as n rows.

    It sees the k most probable tokens; None is as many as it says that it looks at.
    """
    if k is None:
        all_ = rule.decided_by == Rule.decided_by
        k = max(SEEN, rule.minimum_k) if all_ else rule.minimum_k
    values, ids = top_k(logits, min(k, logits.shape[1]))
    if values.itemsize < 4:  # NumPy has no bfloat16
        values = values.float()
    own = logits.gather(1, drafted.clamp(min=0)[:, None])[:, 0].to(values.dtype)
    return [drafted, ids, values, own, *chosen_statistics(logits, ids, rule.decided_by)]


def judged(
    rule: Rule,
    logits: Tensor,
    drafted: Tensor,
    values: list[NDArray[Any]] | None = None,
    *,
    beyond_first: bool = False,
) -> NDArray[np.bool_]:
    """Return a mask (n,) of the drafted tokens that a rule accepts; NOTHING is none.

    Args:
        rule: the rule.
        logits: (n, V) raw logits of the target at the tokens.
        drafted: (n,) the tokens.
        values: those that the rule needs, already read. A rule without a threshold that has to see
            all tokens reads them: one wait more.
        beyond_first: leave out the argmax, on which a draw decides above temperature 0.
    """
    size = logits.shape[1]
    accepted = _accepted(rule, values or read(*asked(rule, logits, drafted)), size, beyond_first)
    if accepted is None:
        accepted = _accepted(rule, read(*asked(rule, logits, drafted, size)), size, beyond_first)
        assert accepted is not None
    return accepted


def _accepted(
    rule: Rule, given: list[NDArray[Any]], size: int, beyond_first: bool
) -> NDArray[np.bool_] | None:
    """Return a mask of the accepted tokens; None where the rule needs those behind the K shown.

    Of a token that is not among the K, only that counts.
    """
    tokens, ids, values, own, *statistics = given
    by_name = dict(zip(rule.decided_by, statistics, strict=True))
    unknown = np.full(len(tokens), np.nan)
    surprisal, log_tail, entropy = (by_name.get(name, unknown) for name in Rule.decided_by)
    dist = TopK(ids.astype(np.int32), values, surprisal, log_tail, entropy=entropy, vocab_size=size)
    is_it = ids == tokens[:, None]
    rank = np.where(is_it.any(1), is_it.argmax(1), ids.shape[1]) + 1
    behind = rank > dist.k
    if behind.any() and rule.cut(dist) is None and min(rule.accepted_count(dist)[behind]) < 0:
        return None
    log_prob = (own.astype(np.float64) - values[:, 0]) - dist.top_surprisal
    accepted = rule.accepts(dist, rank, log_prob) & (tokens != NOTHING)
    return accepted & (rank > 1) if beyond_first else accepted

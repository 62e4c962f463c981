"""What a rule says of drafted tokens, from no more of the target's logits than it asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from analysis.rules import Drafted, Rule
from analysis.topk import TopK
from pipeline.models import devices
from pipeline.models.devices import read
from pipeline.models.logit_statistics import chosen_statistics, logit_statistics, top_k_unread

STORED = 16  # most probable tokens that a rule sees which does not say what decides; a threshold
# decides on those beyond them, and a rule without one is shown all tokens when it has to

Numbers = NDArray[Any]
Flags = NDArray[np.bool_]


class Judge:
    """What a rule says of n drafted tokens, one at a time.

    Attributes:
        columns: n rows of all that the rule asks for, where to read is to wait: they are read with
            the rest of the call. Elsewhere empty: the rule asks when a token comes to be judged.
    """

    def __init__(
        self, rule: Rule | None, logits: Tensor, drafted: Tensor, *, argmax: bool = True
    ) -> None:
        """Judge `drafted` (n,) under the target's raw logits (n, V).

        No rule accepts nothing; without `argmax` a rule accepts the argmax neither.
        """
        self._rule, self._logits, self._drafted, self._argmax = rule, logits, drafted, argmax
        self.columns: list[Tensor] = []
        if rule is not None and devices.waits(logits.device):
            self.columns = columns(rule, logits, drafted)

    def of(self, found: list[Numbers]) -> Callable[[int], bool]:
        """Return what says whether the i-th token is accepted, from what `columns` hold."""
        rule, logits, drafted = self._rule, self._logits, self._drafted
        least = 1 if self._argmax else 2
        if rule is None:
            return lambda _: False
        if found:
            return judged(rule, logits, drafted, found, least).item
        return lambda i: judged(rule, logits[i : i + 1], drafted[i : i + 1], None, least).item()


def columns(rule: Rule, logits: Tensor, drafted: Tensor, k: int | None = None) -> list[Tensor]:
    """Return what a rule asks for at drafted tokens (n,) under raw logits (n, V), n rows of each.

    It sees the k most probable tokens; None is as many as it says that it looks at.
    """
    if k is None:
        all_ = rule.decided_by == Rule.decided_by
        k = max(STORED, rule.minimum_k) if all_ else rule.minimum_k
    values, ids = top_k_unread(logits, min(k, logits.shape[1]))
    if values.itemsize < 4:  # NumPy has no bfloat16
        values = values.float()
    mine = logits.gather(1, drafted[:, None])[:, 0].to(values.dtype)
    return [drafted, ids, values, mine, *chosen_statistics(logits, ids, rule.decided_by)]


def judged(
    rule: Rule,
    logits: Tensor,
    drafted: Tensor,
    found: list[Numbers] | None = None,
    least_rank: int = 1,
) -> Flags:
    """Say which drafted tokens (n,) a rule accepts, from its columns, which None reads.

    A rule without a threshold that has to see all tokens reads them: one wait more.
    """
    size = logits.shape[1]
    accepted = from_columns(rule, found or read(*columns(rule, logits, drafted)), size, least_rank)
    if accepted is None:
        accepted = from_columns(rule, read(*columns(rule, logits, drafted, size)), size, least_rank)
        assert accepted is not None
    return accepted


def from_columns(rule: Rule, found: list[Numbers], size: int, least_rank: int = 1) -> Flags | None:
    """Say which of n tokens a rule accepts; None where it can't without those behind the K shown.

    Of a token that is not among the K, only that counts.
    """
    tokens, ids, values, mine, *statistics = found
    known = dict(zip(rule.decided_by, statistics, strict=True))
    unknown = np.full(len(tokens), np.nan)
    surprisal, log_tail, entropy = (known.get(name, unknown) for name in Rule.decided_by)
    dist = TopK(ids.astype(np.int32), values, surprisal, log_tail, entropy, size)
    is_it = ids == tokens[:, None]
    rank = np.where(is_it.any(1), is_it.argmax(1), ids.shape[1]) + 1
    behind = rank > dist.k
    if behind.any() and rule.cut(dist) is None and min(rule.accepted_count(dist)[behind]) < 0:
        return None
    log_prob = (mine.astype(np.float64) - values[:, 0]) - dist.top_surprisal
    return rule.accepts(dist, Drafted(rank, log_prob)) & (rank >= least_rank)


def ranked(logits: Tensor, tokens: Tensor, k: int) -> tuple[TopK, Numbers, Numbers]:
    """Return the top K of raw logits (n, V), ranks and log-probabilities of `tokens` (n,)."""
    size = logits.shape[1]
    found = logit_statistics(logits, min(k, size))
    mine = logits.gather(1, tokens[:, None])
    before = torch.arange(size, device=logits.device)[None] < tokens[:, None]
    before_it = ((logits > mine) | ((logits == mine) & before)).sum(1)
    ids, top, surprisal, log_tail, entropy, ahead, given = read(
        found.top_ids,
        found.top_logits,
        found.top_surprisal,
        found.log_tail,
        found.entropy,
        before_it,
        mine[:, 0].double(),
    )
    dist = TopK(ids.astype(np.int32), top, surprisal, log_tail, entropy, size)
    return dist, 1 + ahead, (given - top[:, 0]) - surprisal

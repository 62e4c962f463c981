"""The drafter closest to the target that can still be rejected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from ..rules.builtin import Tree
from ..rules.rule import Rule
from ..topk import Floats, TopK
from .bounds import phi

if TYPE_CHECKING:
    from numpy.typing import NDArray


def extremal_draft(p: ArrayLike, rule: Rule) -> tuple[Floats, float]:
    """Return the q* at which KL(p || q) is least among the drafts that can be rejected.

    q* is level on the active tokens and p elsewhere (Lemma 4.2; Theorem 5.1 for trees); at the
    tie it makes, the worst case is rejection.

    Args:
        p: (V,), the target, summing to one.
        rule: any rule that needs no raw logits.

    Returns:
        q*, (V,) in the order of p, and KL(p || q*) in nats: the rule's certificate.

    Raises:
        ValueError: the rule rejects nothing at this p, or p is no distribution.

    Example:
        >>> from analysis.rules import StrictGreedy, Tree
        >>> q, kl = extremal_draft([0.1, 0.6, 0.3], StrictGreedy())
        >>> q.round(6).tolist(), round(kl, 6)
        ([0.1, 0.45, 0.45], 0.05097)
        >>> extremal_draft([0.1, 0.6, 0.3], Tree(m=2))[0].round(6).tolist()
        [0.333333, 0.333333, 0.333333]
    """
    dist = TopK.from_probabilities(np.asarray(p, dtype=np.float64)[None, :])
    ranked = dist.probs[0]
    if isinstance(rule, Tree):
        accepted, active_ranks = rule.m, _tree_active
    else:
        accepted, active_ranks = int(rule.accepted_count(dist)[0]), _single_active
    if accepted >= len(ranked):
        raise ValueError(
            f"rule {rule.label!r} rejects nothing at this p (p0={ranked[0]:.6g}, "
            f"V={len(ranked)}): there is no draft to show"
        )
    active = active_ranks(ranked, accepted)
    e = (ranked[active] - ranked[0]) / ranked[0]  # p / p0 - 1: nothing is lost at near-ties
    mean = float(e.mean())
    level = float(ranked[0] * (1.0 + mean))
    q = np.asarray(p, dtype=np.float64).copy()
    q[dist.ids[0][active]] = level
    return q, float(level * np.sum(phi((e - mean) / (1.0 + mean))))


def _single_active(ranked: Floats, token: int) -> NDArray[np.intp]:
    """Return the ranks (from 0) of A: the token, and those above the level they share with it."""
    count = 1
    while count < token and ranked[count] > (ranked[:count].sum() + ranked[token]) / (count + 1):
        count += 1
    return np.append(np.arange(count), token)


def _tree_active(ranked: Floats, token: int) -> NDArray[np.intp]:
    """Return the ranks (from 0) of A: x0, and those of ranks 2..m+1 below their shared level."""
    m, first = token, token + 1
    while first > 1 and ranked[first - 1] < (ranked[0] + ranked[first : m + 1].sum()) / (
        m + 2 - first
    ):
        first -= 1
    return np.append(0, np.arange(first, m + 1))

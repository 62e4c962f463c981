"""The certificates in plain NumPy, one step at a time. Read this first.

`kernel` computes the same numbers for millions of steps, and `truncation` bounds them where only
the top K tokens are stored. Here all tokens are stored, and every line is a line of the paper. The
tests compare the kernel with this file.

p is the target's distribution, ranked by decreasing probability; p[0] is the argmax x0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..rules.builtin import Tree
from ..rules.rule import Rule
from ..topk import Floats, TopK
from .bounds import phi


def certify_plainly(dist: TopK, rules: Sequence[Rule]) -> Floats:
    """Return the (N, R) certificates of N fully stored steps under R rules.

    Raises:
        ValueError: some tokens are not stored.

    Examples:
        >>> from analysis.rules import Additive, StrictGreedy, Tree
        >>> p = TopK.from_probabilities([[0.5, 0.3, 0.15, 0.05]])
        >>> certify_plainly(p, [StrictGreedy(), Additive(0.3), Tree(2)]).round(4).tolist()
        [[0.0253, 0.0994, 0.1001]]
    """
    if dist.k < dist.vocab_size:
        raise ValueError(f"K={dist.k} of V={dist.vocab_size} tokens are stored: store all")
    rows = [dist[step : step + 1] for step in range(len(dist))]
    return np.array([[certificate_of(row, rule) for rule in rules] for row in rows])


def certificate_of(dist: TopK, rule: Rule) -> float:
    """Return the least KL(p || q) at which a draft can be rejected at one step (Theorem 4.4).

    A token rule accepts the n most probable tokens. The cheapest rejection makes the next one,
    rank n + 1, a mode of q. Where all tokens are accepted no divergence leads to a rejection:
    +inf.
    """
    active = active_tokens(dist, rule)
    return math.inf if active is None else level_cost(dist.probs[0][active])[1]


def active_tokens(dist: TopK, rule: Rule) -> NDArray[np.intp] | None:
    """Return the active set of one step, as ranks from 0; None if nothing is rejected."""
    p = dist.probs[0]
    if isinstance(rule, Tree):
        return tree_active(p, rule.m) if rule.m < len(p) else None
    n = int(rule.accepted_count(dist)[0])
    return single_active(p, n) if n < len(p) else None


def single_active(p: Floats, x: int) -> NDArray[np.intp]:
    """Return the active set A of token x: q*, with x as a mode, is constant on A and p elsewhere.

    Lemma 4.2: A is x and the tokens above the level c = max over j of (p(x) + P_j) / (j + 1),
    where P_j is the sum of the j most probable other tokens.

    Args:
        p: (V,) ranked.
        x: index of the token, at least 1.
    """
    others = np.delete(np.arange(len(p)), x)
    means = (p[x] + np.append(0.0, np.cumsum(p[others]))) / np.arange(1, len(p) + 1)
    return np.append(others[: int(np.argmax(means))], x)


def tree_active(p: Floats, m: int) -> NDArray[np.intp]:
    """Return the active set A of a tree: the m tokens next to x0 have to reach it under q.

    Theorem 5.1: q* is constant on x0 and on those of them below the level r = min over j of
    (p0 + S_j) / (j + 1), where S_j is the sum of the j least probable of them.

    Args:
        p: (V,) ranked.
        m: less than V.
    """
    rivals = np.arange(m, 0, -1)  # from rank m + 1 up to rank 2
    means = (p[0] + np.append(0.0, np.cumsum(p[rivals]))) / np.arange(1, m + 2)
    return np.append(0, rivals[: int(np.argmin(means))])


def level_cost(active: Floats) -> tuple[float, float]:
    """Return the mean c of the (k,) active probabilities, and KL(p || q*).

    q* is c on the active set and p elsewhere. The KL is sum p log(p / c) = c sum phi(p / c - 1),
    whose terms do not cancel. p / c - 1 is computed from differences to the largest probability,
    which keeps its digits at near-ties.
    """
    top = active.max()
    e = (active - top) / top
    mean = float(e.mean())
    c = float(top * (1.0 + mean))
    return c, c * float(phi((e - mean) / (1.0 + mean)).sum())


def extremal_draft(p: ArrayLike, rule: Rule) -> tuple[Floats, float]:
    """Return q*, the draft closest to p in KL(p || q) among those that can be rejected.

    q*(y) = c for y in A, the mean of p over A, and q*(y) = p(y) elsewhere (Lemma 4.2; Theorem 5.1
    for trees). It makes a tie, and the worst case of a tie is rejection.

    Args:
        p: (V,), the target, summing to one.
        rule: any rule that does not need raw logits.

    Returns:
        q*, (V,) in the order of p, and KL(p || q*) in nats: the rule's certificate.

    Raises:
        ValueError: the rule rejects nothing at this p, or p is not one distribution.

    Examples:
        >>> from analysis.rules import StrictGreedy, Tree
        >>> q, kl = extremal_draft([0.1, 0.6, 0.3], StrictGreedy())
        >>> q.round(6).tolist(), round(kl, 6)
        ([0.1, 0.45, 0.45], 0.05097)
        >>> extremal_draft([0.1, 0.6, 0.3], Tree(m=2))[0].round(6).tolist()
        [0.333333, 0.333333, 0.333333]
    """
    q = np.array(p, dtype=np.float64)
    if q.ndim != 1:
        raise ValueError(f"p has the shape {q.shape}: give the (V,) probabilities of one step")
    dist = TopK.from_probabilities(q)
    active = active_tokens(dist, rule)
    if active is None:
        raise ValueError(
            f"rule {rule.label!r} rejects nothing at this p: there is no draft to show"
        )
    level, cost = level_cost(dist.probs[0][active])
    q[dist.ids[0][active]] = level
    return q, cost

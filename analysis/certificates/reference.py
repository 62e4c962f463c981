"""The certificates in plain NumPy, one step at a time: read this first.

`kernel` computes the same numbers for millions of steps, `truncation` what they can be where only
the top K tokens are stored. Here everything is known, and every line is a line of the paper. The
tests hold the kernel against this file.

p is the target's distribution, ranked by decreasing probability; p[0] is the argmax x0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..rules.builtin import Tree
from ..rules.rule import Rule
from ..topk import Floats, TopK
from .bounds import phi


def certify(dist: TopK, rules: Sequence[Rule]) -> Floats:
    """Return the (N, R) certificates of N steps, whose tokens are all stored, under R rules.

    Raises:
        ValueError: some tokens are not stored.

    Example:
        >>> from analysis.rules import Additive, StrictGreedy, Tree
        >>> p = TopK.from_probabilities([[0.5, 0.3, 0.15, 0.05]])
        >>> certify(p, [StrictGreedy(), Additive(0.3), Tree(2)]).round(4).tolist()
        [[0.0253, 0.0994, 0.1001]]
    """
    if dist.k < dist.vocab_size:
        raise ValueError(f"K={dist.k} of V={dist.vocab_size} tokens are stored: store all")
    rows = [dist[at : at + 1] for at in range(len(dist))]
    return np.array([[certificate_of(row, rule) for rule in rules] for row in rows])


def certificate_of(dist: TopK, rule: Rule) -> float:
    """Return the least KL(p || q) at which a draft can be rejected at one step (Theorem 4.4).

    A rule of tokens accepts the n most probable tokens. The cheapest way to be rejected is to
    make the next one, rank n + 1, a mode of q. Where all tokens are accepted nothing is rejected,
    at no divergence: +inf.
    """
    p = dist.probs[0]
    if isinstance(rule, Tree):
        return tree(p, rule.m) if rule.m < len(p) else math.inf
    n = int(rule.accepted_count(dist)[0])
    return single_token(p, n) if n < len(p) else math.inf


def single_token(p: Floats, x: int) -> float:
    """Return M(x), the least KL(p || q) that makes token x a mode of q (Lemma 4.2).

    Args:
        p: (V,) ranked.
        x: index of the token, at least 1.

    q* is level on a set A, and equals p elsewhere. A is x with the tokens above the level, which
    is the largest mean of x with the j most probable other tokens.
    """
    others = np.delete(p, x)
    means = (p[x] + np.append(0.0, np.cumsum(others))) / np.arange(1, len(p) + 1)
    size = int(np.argmax(means))  # how many others are in A
    return level_cost(np.append(others[:size], p[x]))


def tree(p: Floats, m: int) -> float:
    """Return the least KL(p || q) at which x0 is not among the m top tokens of q (Theorem 5.1).

    Args:
        p: (V,) ranked.
        m: less than V.

    The m next tokens have to reach x0. q* is level on x0 and those of them below the level, which
    is the smallest mean of x0 with the j least probable of them.
    """
    rivals = p[m:0:-1]  # from rank m + 1 up to rank 2
    means = (p[0] + np.append(0.0, np.cumsum(rivals))) / np.arange(1, m + 2)
    size = int(np.argmin(means))
    return level_cost(np.append(rivals[:size], p[0]))


def level_cost(active: Floats) -> float:
    """Return KL(p || q*) where q* is the mean of the (k,) active probabilities, and p elsewhere.

    sum p log(p / c) with c the mean, which is c sum phi(p / c - 1): no terms cancel.
    """
    c = float(active.mean())
    return c * float(phi(active / c - 1.0).sum())

"""How wide a draft tree has to be: as wide as a certificate from the drafter's side says."""

from __future__ import annotations

import numpy as np

from ..rules.tree import Tree
from ..statistics.bootstrap import Integers
from ..topk import TopK
from .confidence import measures


def least_width(q: TopK, measure: str, distance: float, widest: int) -> Integers:
    """Return how many of its first choices a drafter must offer to be sure that one is accepted.

    Args:
        q: its N distributions.
        measure: certified or certified_tv.
        distance: to the target, that is not exceeded: nats, or total variation.
        widest: the most that it offers.

    Returns:
        (N,) the least m with C(q) of Tree(m) above the distance; `widest` where there is none.

    Example:
        >>> q = TopK.from_probabilities([[0.9, 0.06, 0.04], [0.4, 0.4, 0.2]])
        >>> least_width(q, "certified", 0.05, 2).tolist()
        [1, 2]
    """
    found = np.full(len(q), widest)
    for m in range(widest - 1, 0, -1):
        sure = measures(q, (measure,), Tree(m))[measure] > distance
        found[sure] = m
    return found

"""The tree tau* of a given size and depth with the most expected tokens.

Expected tokens are the zero-order prediction of `tree_tokens_per_call`, from the acceptance R over
sibling indices. Where R does not increase, the k nodes of largest probability form a tree, and a
heap finds them (Algorithm 3 of arXiv 2504.15475). Where R increases somewhere, child 2 may be more
probable than child 1 but cannot be drafted without it, and the tree found may not be the best.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from ..topk import Floats
from .topology import ROOT, Topology

SUM_ROUNDING = 1e-9  # by which the sum of rates may exceed 1


def optimal(rates: Sequence[float] | Floats, k: int, depth: int | None = None) -> Topology:
    """Return tau*(k), the tree of k nodes with the most expected tokens, of any or some depth.

    Algorithm 3 and equation (2) of arXiv 2504.15475, in O(k log k). `rates` (J,) are R(1), R(2),
    ...: the probability that child i is the accepted one. Only these indices are drafted;
    acceptance beyond them is unknown and counts as 0.

    Raises:
        ValueError: rates are not probabilities, or no tree of k nodes has that depth and width.

    >>> optimal([0.6, 0.3], 4)
    Topology(parents=(-1, 0, -1, 1))
    """
    tree, _ = best_trees(rates, k, depth)
    if len(tree) < k:
        deepest = k if depth is None else depth
        raise ValueError(
            f"k={k} is not allowed: no tree of depth {deepest} at most has so many nodes with at "
            f"most {len(rates)} children each; give a smaller k, or more depth or rates"
        )
    return tree


def best_trees(
    rates: Sequence[float] | Floats, k: int, depth: int | None = None
) -> tuple[Topology, Floats]:
    """Return the largest tau* of at most k nodes, whose first n nodes are tau*(n).

    The tree grows by the most probable candidate, whose first child and next sibling become
    candidates. Ties go to the shallower node, then to the older candidate. Arguments are those of
    `optimal`.

    Returns:
        The tree of n nodes; and (n + 1,) expected tokens of its first 0, 1, ..., n nodes.
    """
    probabilities = np.asarray(rates, dtype=np.float64)
    if (
        probabilities.ndim != 1
        or not (probabilities >= 0).all()
        or probabilities.sum() > 1 + SUM_ROUNDING
    ):
        raise ValueError(
            f"rates={rates} are not allowed: give probabilities of events that exclude each "
            "other: at least 0, with a sum of at most 1"
        )
    levels = k if depth is None else depth
    parents: list[int] = []
    tokens = [1.0]
    waiting: list[tuple[float, int, int, int, int, float]] = []

    def wait(parent: int, above: float, depth: int, index: int) -> None:
        if depth <= levels and index < len(probabilities):
            probability = above * float(probabilities[index])
            ticket = 2 * len(parents) + bool(index)  # unique: each node adds two candidates
            heapq.heappush(waiting, (-probability, depth, ticket, parent, index, above))

    wait(ROOT, 1.0, 1, 0)
    while waiting and len(parents) < k:
        negative, level, _, parent, index, above = heapq.heappop(waiting)
        parents.append(parent)
        tokens.append(tokens[-1] - negative)
        wait(len(parents) - 1, -negative, level + 1, 0)
        wait(parent, above, level, index + 1)
    return Topology(tuple(parents)), np.array(tokens)

"""The tree tau* of a given size and depth with the most expected tokens.

Expected tokens are the zero-order prediction of `tree_tokens_per_call`, from the acceptance R over
sibling indices. Where R does not increase, the k nodes of largest probability form a tree, and a
heap finds them (Algorithm 3 of arXiv 2504.15475). Where R increases somewhere, they may not form a
tree, as child 2 cannot be drafted without child 1. Then a dynamic program replaces the heap.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from .topology import ROOT, Floats, Topology

SUM_ROUNDING = 1e-9  # by which the sum of rates may exceed 1

Best = tuple[Floats, Callable[[int], Topology]]  # as `best_trees` returns them


def optimal(rates: Sequence[float] | Floats, k: int, depth: int | None = None) -> Topology:
    """Return tau*(k), the tree of k nodes with the most expected tokens.

    Algorithm 3 and equation (2) of arXiv 2504.15475, in O(k log k). Where R increases somewhere it
    takes O(depth J k^2) with tables of k^2 numbers, which suits drafted trees but not thousands of
    nodes. Only the indices of `rates` are drafted; acceptance beyond them is unknown and counts as
    0. If R does not increase, the first n nodes of tau*(k) are tau*(n).

    Args:
        rates: (J,) R(1), R(2), ...: the probability that child i is the accepted one.
        k: drafted tokens, at least 0.
        depth: the largest depth; None for any.

    Raises:
        ValueError: rates are not probabilities, or no tree of k nodes has that depth and width.

    Examples:
        >>> optimal([0.6, 0.3], 4)
        Topology(parents=(-1, 0, -1, 1))
    """
    return best_trees(rates, k, depth)[1](k)


def best_trees(rates: Sequence[float] | Floats, k: int, depth: int | None = None) -> Best:
    """Return the best trees of all sizes up to k; arguments and errors as for `optimal`.

    Returns:
        (k + 1,) expected tokens of the best tree of 0, 1, ..., k nodes, -inf for a size that no
        tree of this depth and width has; and a function from a size to its best tree.
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
    if k < 0 or (depth is not None and depth < 0):
        raise ValueError(f"k={k}, depth={depth} are not allowed: give integers of at least 0")
    levels = k if depth is None else min(depth, k)
    monotone = bool((np.diff(probabilities) <= 0).all())
    return (_by_heap if monotone else _by_program)(probabilities, k, levels)


def _refuse(size: int, levels: int, width: int) -> None:
    raise ValueError(
        f"k={size} is not allowed: no tree of depth {levels} at most has so many nodes with at "
        f"most {width} children each; give a smaller k, or more depth or rates"
    )


def _by_heap(rates: Floats, k: int, levels: int) -> Best:
    """Grow the tree by the most probable candidate; its first child and next sibling become ones.

    Ties go to the shallower node, then to the older candidate.
    """
    parents: list[int] = []
    tokens = [1.0]
    waiting: list[tuple[float, int, int, int, int, float]] = []

    def wait(parent: int, above: float, depth: int, index: int) -> None:
        if depth <= levels and index < len(rates):
            probability = above * float(rates[index])
            ticket = 2 * len(parents) + bool(index)  # unique: each node adds two candidates
            heapq.heappush(waiting, (-probability, depth, ticket, parent, index, above))

    wait(ROOT, 1.0, 1, 0)
    while waiting and len(parents) < k:
        negative, depth, _, parent, index, above = heapq.heappop(waiting)
        parents.append(parent)
        tokens.append(tokens[-1] - negative)
        wait(len(parents) - 1, -negative, depth + 1, 0)
        wait(parent, above, depth, index + 1)

    def tree(size: int) -> Topology:
        if size > len(parents):
            _refuse(size, levels, len(rates))
        return Topology(tuple(parents[:size]))

    return np.array(tokens + [-np.inf] * (k + 1 - len(tokens))), tree


def _by_program(rates: Floats, k: int, levels: int) -> Best:
    """Divide n nodes among the children of a node by dynamic programming (arXiv 2402.12374).

    Let V_d(n) be the most expected tokens that n nodes in d levels add below an accepted node. With
    s nodes for child i and its descendants, and n - s for the children after it,
    W_i(n) = max over s >= 1 of R(i) (1 + V_{d-1}(s - 1)) + W_{i+1}(n - s), and V_d = W_1.
    """
    sizes = np.arange(k + 1)
    rest = sizes[:, None] - sizes[None, :]  # (n, s) -> n - s
    nothing = np.where(sizes == 0, 0.0, -np.inf)
    added = [nothing]  # V_d by d
    shares: list[list[np.ndarray]] = [[]]  # s by d, i and n
    for _ in range(levels):
        possible = np.isfinite(added[-1][:-1])
        chosen: list[np.ndarray] = []
        after = nothing
        for rate in rates[::-1]:
            own = np.full(k + 1, -np.inf)  # s = 0 means no child
            own[1:][possible] = rate * (1 + added[-1][:-1][possible])
            both = np.where(rest >= 0, own[None, :] + after[np.maximum(rest, 0)], -np.inf)
            chosen.insert(0, both.argmax(axis=1))
            after = np.where(sizes == 0, 0.0, both.max(axis=1))
        added.append(after)
        shares.append(chosen)
        if np.array_equal(added[-1], added[-2]):
            break

    def tree(size: int) -> Topology:
        if added[-1][size] == -np.inf:
            _refuse(size, levels, len(rates))
        parents: list[int] = []
        below = deque([(ROOT, size, len(added) - 1)])
        while below:
            parent, nodes, level = below.popleft()
            for chosen in shares[level]:
                if nodes == 0:
                    break
                share = int(chosen[nodes])
                below.append((len(parents), share - 1, level - 1))
                parents.append(parent)
                nodes -= share
        return Topology(tuple(parents))

    return 1 + added[-1], tree

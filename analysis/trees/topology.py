"""Shapes of draft trees as data, and their expected tokens per call.

A tree of n drafted tokens is a list of parents. Node v follows node parents[v]; -1 is the text so
far. Parents come before their children, and siblings are in the order in which they are drafted and
tested. The i-th child of a node has sibling index i, from 1.

tau* is the tree of a given size and depth with the most expected tokens (`tree_tokens_per_call`).
Where the acceptance R over sibling indices does not increase, the k nodes of largest probability
form a tree, and a heap finds them (Algorithm 3 of arXiv 2504.15475). Where it increases somewhere,
child 2 may be more probable than child 1 but cannot be drafted without it, and the tree found may
not be the best.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..topk import Floats

ROOT = -1
SUM_ROUNDING = 1e-9  # by which the sum of rates may exceed 1


@dataclass(frozen=True)
class Topology:
    """The shape of a draft tree, from the parent of each of its n nodes.

    Raises:
        ValueError: a node does not come after its parent.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        for node, parent in enumerate(self.parents):
            if not ROOT <= parent < node:
                raise ValueError(
                    f"parents[{node}]={parent} is not allowed: give {ROOT} or an earlier node"
                )

    def __len__(self) -> int:
        """Return n, the number of drafted tokens."""
        return len(self.parents)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """The children of each node in order; children[-1], the last entry, are the root's."""
        children: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for node, parent in enumerate(self.parents):
            children[parent].append(node)
        return tuple(tuple(nodes) for nodes in children)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """The depth of each node, from 1: drafted tokens on its path, itself included."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def siblings(self) -> tuple[int, ...]:
        """The sibling index of each node, from 1."""
        indices = [0] * len(self)
        for nodes in self.children:
            for index, node in enumerate(nodes, 1):
                indices[node] = index
        return tuple(indices)

    @property
    def depth(self) -> int:
        """The length of the longest path, which is the number of the drafter's passes."""
        return max(self.depths, default=0)

    @cached_property
    def is_chain(self) -> bool:
        """Whether every node follows the one before it; an empty tree is a chain."""
        return self.parents == tuple(range(ROOT, len(self) - 1))

    def by_level(self) -> Topology:
        """Return the tree with nodes renumbered by depth, siblings in order."""
        return self._subtree(sorted(range(len(self)), key=self.depths.__getitem__))

    def within(self, depth: int) -> Topology:
        """Return the tree without nodes deeper than `depth`; drafts are cut so at an answer's end.

        >>> symmetric(2, 3).within(1)
        Topology(parents=(-1, -1))
        """
        return self._subtree([node for node, level in enumerate(self.depths) if level <= depth])

    def _subtree(self, nodes: Sequence[int]) -> Topology:
        """Return the tree of `nodes`, which have their parents, renumbered in this order."""
        number = {ROOT: ROOT, **{node: new for new, node in enumerate(nodes)}}
        return Topology(tuple(number[self.parents[node]] for node in nodes))


@dataclass(frozen=True)
class DynamicTree:
    """A dynamic draft tree, grown anew in each call (EAGLE-2, arXiv 2406.16858).

    Level by level, the `width` nodes of highest value get `width` children each. In the end the
    `nodes` of highest value are kept. The value of a node is the drafter's probability of its path.
    It never exceeds the value of the parent, so the kept nodes form a tree.
    """

    width: int  # children of a node, and number of nodes of a level that get children
    nodes: int  # largest number of nodes kept
    depth: int  # largest number of levels

    def __len__(self) -> int:
        """Return the largest number of nodes of a grown tree."""
        return min(self.nodes, self.width + (self.depth - 1) * self.width**2)

    @property
    def nodes_read(self) -> int:
        """The largest number of nodes that the drafter processes, kept or not."""
        return (self.depth - 1) * self.width


def expansion(widths: Sequence[int]) -> Topology:
    """Return the tree in which each node of level i - 1 has widths[i - 1] children.

    >>> expansion([2, 1])
    Topology(parents=(-1, -1, 0, 1))
    """
    parents: list[int] = []
    level = [ROOT]
    for width in widths:
        grown = [parent for parent in level for _ in range(width)]
        level = list(range(len(parents), len(parents) + len(grown)))
        parents += grown
    return Topology(tuple(parents))


def sequence(k: int) -> Topology:
    """Return a chain of k tokens."""
    return expansion([1] * k)


def batch(k: int) -> Topology:
    """Return k alternatives for a single token."""
    return expansion([k])


def symmetric(m: int, depth: int) -> Topology:
    """Return the tree in which every node has m children (Section 3.3 of arXiv 2606.30265)."""
    return expansion([m] * depth)


def spec_infer(depth: int = 8) -> Topology:
    """Return SpecInfer's tree: three chains that share their first two tokens (arXiv 2305.09781).

    Its expansion is (1, 1, 3, 1, 1, 1, 1, 1): 20 nodes at the depth of 8 that its authors use.
    """
    return expansion([1, 1, 3, *[1] * max(0, depth - 3)][:depth])


def tree_tokens_per_call(tree: Topology, rates: Sequence[float] | Floats) -> float:
    """Return the expected tokens of a target call: the accepted ones and the one after them.

    Equation (2) of arXiv 2504.15475 plus one token. It is a zero-order prediction: every level
    accepts child i with the same probability R(i), independently of other levels. So a node is
    accepted with the product of R over the sibling indices on its path. With correlated acceptance
    the true number differs. `rates` (J,) are R(1), R(2), ...

    Raises:
        ValueError: a node has a sibling index above J.

    >>> round(tree_tokens_per_call(sequence(5), [0.8]), 2)
    3.69
    """
    widest = max(tree.siblings, default=0)
    if widest > len(rates):
        raise ValueError(
            f"rates has {len(rates)} values, the tree a node with sibling index {widest}: give "
            "the acceptance of every index that the tree has"
        )
    accepted = np.ones(len(tree) + 1)  # the last entry is the root
    for node, (parent, index) in enumerate(zip(tree.parents, tree.siblings, strict=True)):
        accepted[node] = accepted[parent] * rates[index - 1]
    return 1.0 + float(accepted[:-1].sum())


def optimal(rates: Sequence[float] | Floats, k: int, depth: int | None = None) -> Topology:
    """Return tau*(k), the tree of k nodes, at most `depth` deep, with the most expected tokens.

    Algorithm 3 and equation (2) of arXiv 2504.15475, in O(k log k). `rates` (J,) are R(1), R(2),
    ...: the probability that child i is the accepted one. The tree uses only these J indices, since
    the acceptance of others is unknown. Without `depth` any depth is allowed.

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
    """Return the largest tau* of at most k nodes, and the expected tokens of all smaller ones.

    In each step the most probable candidate joins the tree, and its first child and next sibling
    become candidates. Ties go to the shallower node, then to the older candidate.

    Returns:
        The tree, of n <= k nodes, whose first i nodes are tau*(i); and (n + 1,) the expected tokens
        per call of its first 0, ..., n nodes.
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
    candidates: list[tuple[float, int, int, int, int, float]] = []  # a heap

    def add_candidate(parent: int, above: float, depth: int, index: int) -> None:
        if depth <= levels and index < len(probabilities):
            probability = above * float(probabilities[index])
            age = 2 * len(parents) + bool(index)  # unique: each node adds two candidates
            heapq.heappush(candidates, (-probability, depth, age, parent, index, above))

    add_candidate(ROOT, 1.0, 1, 0)
    while candidates and len(parents) < k:
        negative, level, _, parent, index, above = heapq.heappop(candidates)
        parents.append(parent)
        tokens.append(tokens[-1] - negative)
        add_candidate(len(parents) - 1, -negative, level + 1, 0)
        add_candidate(parent, above, level, index + 1)
    return Topology(tuple(parents)), np.array(tokens)

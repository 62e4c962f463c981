"""Shapes of draft trees as data, and the tokens that a shape is expected to emit.

A tree of n drafted tokens is a list of parents. Node v follows node parents[v], or -1: the text so
far. Parents come before their children, and the children of a node in the order in which they are
drafted and tested. The i-th child of its parent has sibling index i, from 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
ROOT = -1


@dataclass(frozen=True)
class Topology:
    """The shape of a draft tree.

    Attributes:
        parents: for each of the n nodes the node it follows, -1 for the text so far.

    Raises:
        ValueError: a node does not come after its parent.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        for node, parent in enumerate(self.parents):
            if not ROOT <= parent < node:
                raise ValueError(
                    f"parents[{node}]={parent} is not allowed: give {ROOT} (the text so far) or an "
                    f"earlier node, below {node}"
                )

    def __len__(self) -> int:
        """Return n, the number of drafted tokens."""
        return len(self.parents)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """The children of each node in order; children[-1], the last entry, are the root's."""
        found: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for node, parent in enumerate(self.parents):
            found[parent].append(node)
        return tuple(tuple(nodes) for nodes in found)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """How many drafted tokens lead to each node, itself counted: from 1."""
        found: list[int] = []
        for parent in self.parents:
            found.append(1 if parent == ROOT else found[parent] + 1)
        return tuple(found)

    @cached_property
    def siblings(self) -> tuple[int, ...]:
        """The sibling index of each node, from 1."""
        found = [0] * len(self)
        for nodes in self.children:
            for index, node in enumerate(nodes, 1):
                found[node] = index
        return tuple(found)

    @property
    def depth(self) -> int:
        """The longest chain of drafted tokens: how many passes of the drafter a tree takes."""
        return max(self.depths, default=0)

    @cached_property
    def is_chain(self) -> bool:
        """Whether every node follows the one before it; no nodes are a chain too."""
        return self.parents == tuple(range(ROOT, len(self) - 1))

    def by_level(self) -> Topology:
        """Return the tree with its nodes numbered by depth; siblings stay in order.

        Examples:
            >>> Topology((-1, 0, -1)).by_level()
            Topology(parents=(-1, -1, 0))
        """
        order = sorted(range(len(self)), key=self.depths.__getitem__)
        number = {ROOT: ROOT, **{node: at for at, node in enumerate(order)}}
        return Topology(tuple(number[self.parents[node]] for node in order))

    def within(self, depth: int) -> Topology:
        """Return the tree without the nodes below `depth`: drafts shorten where an answer ends.

        Examples:
            >>> symmetric(2, 3).within(1)
            Topology(parents=(-1, -1))
        """
        number = {ROOT: ROOT}
        for node, at in enumerate(self.depths):
            if at <= depth:
                number[node] = len(number) - 1
        return Topology(tuple(number[self.parents[node]] for node in number if node != ROOT))


@dataclass(frozen=True)
class Growth:
    """A tree without a shape of its own: each call grows one (EAGLE-2, arXiv 2406.16858).

    Level after level, the `width` most valued nodes of a depth get `width` children each; then the
    most valued of all nodes are kept. The value of a node is the probability of its path, as the
    drafter says. No value exceeds that of its parent, so what is kept is a tree.

    Attributes:
        width: children of a node, and nodes of a depth that get children.
        nodes: that are kept, at most.
        depth: levels, at most.
    """

    width: int
    nodes: int
    depth: int

    def __len__(self) -> int:
        """Return the most nodes that a tree of it has."""
        return min(self.nodes, self.width + (self.depth - 1) * self.width**2)

    @property
    def read(self) -> int:
        """The most nodes that its drafter reads, kept or not."""
        return (self.depth - 1) * self.width


def expansion(widths: Sequence[int]) -> Topology:
    """Return the tree whose nodes of level i - 1 have widths[i - 1] children each, level by level.

    Raises:
        ValueError: a width is below 1.

    Examples:
        >>> expansion([2, 1])
        Topology(parents=(-1, -1, 0, 1))
    """
    parents: list[int] = []
    level = [ROOT]
    for at, width in enumerate(widths):
        if width < 1:
            raise ValueError(f"widths[{at}]={width} is not allowed: give an integer of at least 1")
        grown = [parent for parent in level for _ in range(width)]
        level = list(range(len(parents), len(parents) + len(grown)))
        parents += grown
    return Topology(tuple(parents))


def sequence(k: int) -> Topology:
    """Return a chain of k tokens."""
    return expansion([1] * k)


def batch(k: int) -> Topology:
    """Return k alternatives of one token."""
    return expansion([k] if k else [])


def symmetric(m: int, depth: int) -> Topology:
    """Return the tree in which every token has m alternatives: m + m^2 + ... + m^depth nodes.

    Section 3.3 of arXiv 2606.30265.
    """
    return expansion([m] * depth)


def spec_infer(depth: int = 8) -> Topology:
    """Return SpecInfer's tree: three chains that share their first two tokens (arXiv 2305.09781).

    Its expansion is (1, 1, 3, 1, 1, 1, 1, 1): 20 nodes at the depth of 8 that its authors use.
    """
    return expansion([1, 1, 3, *[1] * max(0, depth - 3)][:depth])


def tree_tokens_per_call(tree: Topology, rates: Sequence[float] | Floats) -> float:
    """Return the expected tokens of a target call: the accepted ones, and the one after them.

    Equation (2) of arXiv 2504.15475 with one token more, in the zero-order prediction: every level
    accepts child i with the same probability R(i), whatever came before, so a node is accepted with
    the product of R over the sibling indices of its path. Correlated acceptance emits more or less.

    Args:
        tree: n nodes.
        rates: (J,) R(1), R(2), ...: the probability that child i is the accepted one.

    Raises:
        ValueError: a node has a sibling index above J.

    Examples:
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

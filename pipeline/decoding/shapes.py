"""What the shape of a draft means for the passes over it, made once a shape and device.

Of shapes that calls choose anew (`Growth`) the latest are kept.

Nodes are in level order (`Topology.by_level`). Of a chain nothing is made: each token sees all
before it, which models do by themselves.
"""

from __future__ import annotations

from functools import cache, lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from analysis.trees.topology import ROOT, Topology, sequence
from pipeline.models.devices import send
from pipeline.models.fixed_passes import TreePass, tree_pass

LATEST = 128  # shapes
kept = lru_cache(LATEST)
chain = cache(sequence)  # of every length, for the laws on trees
within = kept(Topology.within)


class Level(NamedTuple):
    """One pass of a drafter: the nodes of a depth that have children are read, these are drafted.

    Attributes:
        width: children of the node that has most.
        children: (c,) which of the rows x width tokens are drafted; None is all.
        inner: (r,) which of the depth's nodes are read; None is all.
        above: (r,) of each, which of the nodes read in the pass before is its parent; None is the
            same one, or the only one.
        tree: how they are read; None as a text.
    """

    width: int = 1
    children: Tensor | None = None
    inner: Tensor | None = None
    above: Tensor | None = None
    tree: TreePass | None = None

    def drafted(self, tokens: Tensor) -> Tensor:
        """Return the drafted (c,) of the tokens (r, width) that a choice found."""
        flat = tokens.reshape(-1)
        return flat if self.children is None else flat[self.children]

    def read(self, tokens: Tensor) -> Tensor:
        """Return what is read (r,) of the tokens of the depth."""
        return tokens if self.inner is None else readable(tokens[self.inner])


def readable(tokens: Tensor) -> Tensor:
    """Return tokens that a model can read: NOTHING, which no text goes on with, becomes 0."""
    return tokens.clamp(min=0)


@kept
def parents(tree: Topology) -> tuple[int, ...]:
    """Return the nodes with children, the root first: the order in which a drafter reads them."""
    return tuple(node for node in range(ROOT, len(tree)) if tree.children[node])


@kept
def columns(tree: Topology) -> dict[int, int]:
    """Return where each node that a drafter reads lies in its cache, after the text."""
    return {node: at for at, node in enumerate(parents(tree)[1:])}


@kept
def offsets(tree: Topology, device: torch.device) -> Tensor:
    """Return (n + 1,) the depths of the root and of all nodes."""
    return send((0, *tree.depths), device)


@kept
def verification(tree: Topology, device: torch.device, dtype: torch.dtype) -> TreePass | None:
    """Return how a target reads the last token of the text, which is the root, and all nodes."""
    if tree.is_chain:
        return None
    seen = np.eye(len(tree) + 1, dtype=np.bool_)
    for node, parent in enumerate(tree.parents):
        seen[node + 1] |= seen[parent + 1]
    return tree_pass(send(seen, device), offsets(tree, device), dtype)


@kept
def levels(tree: Topology, device: torch.device, dtype: torch.dtype) -> tuple[Level, ...]:
    """Return the passes of a drafter over a tree, one for each depth."""
    if tree.is_chain:
        return (Level(),) * len(tree)
    starts = [ROOT, *(tree.depths.index(depth) for depth in range(1, tree.depth + 1)), len(tree)]
    made: list[Level] = []
    before: list[int] = []
    for depth, (start, stop) in enumerate(pairwise(starts[:-1])):
        inner = [node for node in range(start, stop) if tree.children[node]]
        width = max(len(tree.children[node]) for node in inner)
        row = {node: at for at, node in enumerate(inner)}
        children = [
            row[tree.parents[node]] * width + tree.siblings[node] - 1
            for node in range(stop, starts[depth + 2])
        ]
        level = Level(width, send(children, device))
        if depth:
            level = level._replace(
                inner=send([node - start for node in inner], device),
                above=send([before.index(tree.parents[n]) for n in inner], device),
                tree=_read_after(tree, inner, device, dtype),
            )
        made.append(level)
        before = inner
    return tuple(made)


def _read_after(
    tree: Topology, nodes: list[int], device: torch.device, dtype: torch.dtype
) -> TreePass:
    """Return how a drafter reads nodes of a depth after all that it reads of smaller depths."""
    at = columns(tree)
    seen = torch.zeros(len(nodes), at[nodes[-1]] + 1, dtype=torch.bool)
    for row, node in enumerate(nodes):
        while node != ROOT:
            seen[row, at[node]] = True
            node = tree.parents[node]
    depth = torch.full((len(nodes),), tree.depths[nodes[0]] - 1, device=device)
    return tree_pass(seen.to(device), depth, dtype)

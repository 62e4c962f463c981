"""Builds draft trees level by level, of a fixed shape or grown by each call.

Each pass of the drafter reads the nodes of one level that get children, and gives candidates for
the next level. A fixed shape says which these are (`StaticTreeBuilder`). A dynamic tree (EAGLE-2)
keeps the candidates with the highest value (`DynamicTreeBuilder`); the device chooses them, so the
host waits only once per call. The value of a node is the product, along its path, of the drafter's
probabilities; in an exponential race they are replaced by q_i / e_i, normalised: a guess of how
probably i also wins the target's race. Nodes are in level order (`Topology.by_level`). A chain
needs no mask, because each token attends to all before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from analysis.decoding.schemes import NOTHING
from analysis.trees.topology import ROOT, DynamicTree, Topology, sequence
from pipeline.decoding.sampling import GreedySampler, Sampler, first_tokens
from pipeline.models.devices import to_device, to_numpy
from pipeline.models.kv_session import TreePass, tree_pass

cached_shape = lru_cache(128)  # dynamic trees have new shapes at each call: the latest are kept
within = cached_shape(Topology.within)
chain = cached_shape(sequence)


@dataclass(frozen=True)
class Draft:
    """Drafted tokens on the nodes of a tree."""

    tokens: Tensor  # (n,) on the target's device; NOTHING where none could be drafted
    tree: Topology  # the shape, in level order; in a chain each node has one child
    # (r, V) the distributions that tokens were drawn from, after the text and after each node with
    # children, in order; None if they were not drawn
    weights: Tensor | None = None
    # (r,) the score of the first child of each of these, not finite only if the drafter's logits
    # are broken; None if no model drafted
    best_scores: Tensor | None = None


def readable(tokens: Tensor) -> Tensor:
    """Return tokens that a model can read: NOTHING becomes 0, and is never accepted."""
    return tokens.clamp(min=0)


@cached_shape
def inner_nodes(tree: Topology) -> tuple[int, ...]:
    """Return the nodes with children, the root first: the order in which a drafter reads them."""
    return tuple(node for node in range(ROOT, len(tree)) if tree.children[node])


@cached_shape
def verification_pass(tree: Topology, device: torch.device, dtype: torch.dtype) -> TreePass | None:
    """Return the target's pass over the last token of the text (the root) and all nodes.

    None for a chain.
    """
    if tree.is_chain:
        return None
    seen = np.eye(len(tree) + 1, dtype=np.bool_)
    for node, parent in enumerate(tree.parents):
        seen[node + 1] |= seen[parent + 1]
    return tree_pass(to_device(seen, device), to_device((0, *tree.depths), device), dtype)


class AncestorMask:
    """Masks of a drafter's passes, level by level: a node sees the text and its ancestors."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._depth = 0
        self._seen = torch.zeros((1, 0), dtype=torch.bool, device=device)

    def next_level(self, parents: Tensor) -> TreePass:
        """Return the pass over the next r nodes; `parents` (r,) are rows of the pass before."""
        sees_itself = torch.eye(len(parents), dtype=torch.bool, device=parents.device)
        self._seen = torch.cat([self._seen[parents], sees_itself], 1)
        offsets = torch.full((len(parents),), self._depth, device=parents.device)
        self._depth += 1
        return tree_pass(self._seen, offsets, self._dtype)


class Level(NamedTuple):
    """A level of a fixed shape: a pass over its r' parents gives r' x width candidates for it."""

    width: int  # the most children of a parent
    nodes: Tensor  # (c,) which of the candidates are nodes of the level
    inner: Tensor  # (r,) which of these nodes have children
    parents: Tensor  # (r,) the parent of each of these, as a row of the pass before


@cached_shape
def levels_of(tree: Topology, device: torch.device) -> tuple[Level, ...]:
    """Return the levels of a tree."""
    starts = [*(tree.depths.index(depth) for depth in range(1, tree.depth + 1)), len(tree)]
    read = [ROOT]  # the nodes of the last pass
    levels = []
    for start, stop in pairwise(starts):
        row = {node: index for index, node in enumerate(read)}
        width = max(len(tree.children[node]) for node in read)
        nodes = range(start, stop)
        candidates = [row[tree.parents[node]] * width + tree.siblings[node] - 1 for node in nodes]
        read = [node for node in nodes if tree.children[node]]
        inner = to_device([node - start for node in read], device)
        parents = to_device([row[tree.parents[node]] for node in read], device)
        levels.append(Level(width, to_device(candidates, device), inner, parents))
    return tuple(levels)


class StaticTreeBuilder:
    """Builds a draft of a fixed shape; its first token is at `position` of the answer."""

    def __init__(
        self, tree: Topology, sampler: Sampler, position: int, device: torch.device
    ) -> None:
        self.depth = tree.depth
        self._tree = tree
        self._sampler = sampler
        self._position = position
        self._levels = None if tree.is_chain else levels_of(tree, device)
        self._tokens: list[Tensor] = []
        self._best_scores: list[Tensor] = []
        self._weights: list[Tensor] = []

    def add(self, logits: Tensor) -> None:
        """Add the next level, from the logits (r, V) of the nodes that are its parents."""
        depth = len(self._tokens)
        levels = self._levels
        width = levels[depth].width if levels else 1
        tokens, best_scores, weights = self._sampler.draft(logits, self._position, depth, width)
        candidates = tokens.reshape(-1)
        self._tokens.append(candidates[levels[depth].nodes] if levels else candidates)
        self._best_scores.append(best_scores)
        if weights is not None:
            self._weights.append(weights)

    def inner(self) -> tuple[Tensor, Tensor | None]:
        """Return the tokens (r,) of the last level to be read, and the rows of their parents.

        The parents are those of the pass before; None for a chain.
        """
        if self._levels is None:
            return self._tokens[-1], None
        level = self._levels[len(self._tokens) - 1]
        return self._tokens[-1][level.inner], level.parents

    def draft(self) -> tuple[Draft, Mapping[int, int]]:
        """Return the draft, and the cache column, after the text, of each node that was read."""
        weights = torch.cat(self._weights) if self._weights else None
        draft = Draft(torch.cat(self._tokens), self._tree, weights, torch.cat(self._best_scores))
        return draft, {node: column for column, node in enumerate(inner_nodes(self._tree)[1:])}


class DynamicTreeBuilder:
    """Builds a dynamic tree of at most `count` levels; see `DynamicTree`.

    For every candidate it stores the token; the log of the value, -inf for NOTHING; the index of
    the parent among all candidates; and the column in the drafter's cache, counted after the text,
    -1 if the candidate was not read.
    """

    def __init__(
        self, growth: DynamicTree, count: int, sampler: GreedySampler, position: int
    ) -> None:
        self.depth = min(count, growth.depth)
        self._growth = growth
        self._sampler = sampler
        self._position = position
        self._levels: list[tuple[Tensor, ...]] = []  # tokens, values, parents, columns
        self._best_scores: list[Tensor] = []
        self._read = 0  # nodes
        self._start = 0  # candidates before the last level

    def add(self, logits: Tensor) -> None:
        """Add the candidates below the nodes read last, from their logits (r, V)."""
        width = self._growth.width
        keys = self._sampler.keys(logits, self._position + len(self._levels)).double()
        tokens = first_tokens(keys, width)
        values = torch.log_softmax(keys, 1).gather(1, readable(tokens))
        values = values.masked_fill(tokens == NOTHING, -torch.inf)
        self._best_scores.append(keys.gather(1, readable(tokens[:, :1]))[:, 0])
        parents = torch.full_like(tokens, ROOT)
        if self._levels:
            parents = (self._start + self._inner)[:, None].expand_as(tokens)
            values = values + self._levels[-1][1][self._inner][:, None]
            self._start += len(self._levels[-1][0])
        level = (tokens, values, parents, torch.full_like(tokens, -1))
        self._levels.append(tuple(column.reshape(-1) for column in level))

    def inner(self) -> tuple[Tensor, Tensor]:
        """Return the last level's tokens (r,) of highest value, and the rows of their parents."""
        tokens, values, _, columns = self._levels[-1]
        self._inner = _largest(values, self._growth.width)
        rows = len(self._inner)
        columns[self._inner] = torch.arange(self._read, self._read + rows, device=columns.device)
        self._read += rows
        return tokens[self._inner], self._inner // self._growth.width

    def draft(self) -> tuple[Draft, Mapping[int, int]]:
        """Return the draft, and the cache column, after the text, of each node that was read."""
        tokens, values, parents, columns = (
            torch.cat(levels) for levels in zip(*self._levels, strict=True)
        )
        chosen = _largest(values, self._growth.nodes)
        is_drafted = values[chosen].isfinite().long()  # 0 for NOTHING and below it
        # one tensor, so that the host waits once
        packed = torch.stack([is_drafted, chosen, parents[chosen], columns[chosen]])
        flags, *others = to_numpy(packed)[0]
        kept = np.flatnonzero(flags)
        candidates, kept_parents, kept_columns = (row[kept].tolist() for row in others)
        node_of = {ROOT: ROOT}
        node_of |= {candidate: node for node, candidate in enumerate(candidates)}
        tree = Topology(tuple(node_of[parent] for parent in kept_parents))
        column_of = {node: column for node, column in enumerate(kept_columns) if column >= 0}
        tokens = tokens[chosen][to_device(kept, tokens.device)]
        return Draft(tokens, tree, None, torch.cat(self._best_scores)), column_of


def _largest(values: Tensor, count: int) -> Tensor:
    """Return the indices of the `count` largest values (c,), increasing; ties go to the first."""
    return values.sort(descending=True, stable=True).indices[:count].sort().values

"""Draft trees as passes over their nodes: fixed shapes, and trees that each call grows.

A drafter reads a tree level by level: of the candidates that the last pass gave, those that get
children. In a fixed shape they are known (`StaticTreeBuilder`). A dynamic tree (EAGLE-2) keeps the
nodes that the drafter values most (`DynamicTreeBuilder`). They are chosen on the device, which the
host waits for once a call. A child's value comes from what orders its siblings: the drafter's
probability where the most probable tokens are drafted; in a race q_i / e_i over their sum, the odds
that i still arrives first where target and drafter differ. Nodes are in level order
(`Topology.by_level`). A chain needs no mask: each token sees all before it, as models do anyway.
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
from pipeline.models.devices import read, send
from pipeline.models.kv_session import TreePass, tree_pass

cached_shape = lru_cache(128)  # of shapes that calls choose anew the latest are kept
within = cached_shape(Topology.within)
chain = cached_shape(sequence)


@dataclass(frozen=True)
class Draft:
    """Proposed tokens, on a tree."""

    tokens: Tensor  # (n,) on the device of the target; NOTHING where none could be drafted
    tree: Topology  # its shape, in level order; of a chain, each node has one child
    # (r, V) the distributions they were drawn from: of the text so far, and of each node with
    # children in order; None when they were not drawn
    weights: Tensor | None = None
    # (r,) what chose the first token of each row of a model's logits, finite unless they are
    # broken; None where no model drafted
    first: Tensor | None = None


def readable(tokens: Tensor) -> Tensor:
    """Return tokens that a model can read: NOTHING, which no text goes on with, becomes 0."""
    return tokens.clamp(min=0)


@cached_shape
def inner_nodes(tree: Topology) -> tuple[int, ...]:
    """Return the nodes with children, the root first: the order in which a drafter reads them."""
    return tuple(node for node in range(ROOT, len(tree)) if tree.children[node])


@cached_shape
def verification_pass(tree: Topology, device: torch.device, dtype: torch.dtype) -> TreePass | None:
    """Return the pass in which a target reads the root (the last token of the text) and nodes."""
    if tree.is_chain:
        return None
    seen = np.eye(len(tree) + 1, dtype=np.bool_)
    for node, parent in enumerate(tree.parents):
        seen[node + 1] |= seen[parent + 1]
    return tree_pass(send(seen, device), send((0, *tree.depths), device), dtype)


class AncestorMask:
    """The passes of a drafter over nodes below a text, one for each level."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._depth = 0
        self._seen = torch.zeros((1, 0), dtype=torch.bool, device=device)

    def descend(self, above: Tensor) -> TreePass:
        """Return the pass over r nodes; `above` (r,) are their parents in the pass before."""
        own = torch.eye(len(above), dtype=torch.bool, device=above.device)
        self._seen = torch.cat([self._seen[above], own], 1)
        offsets = torch.full((len(above),), self._depth, device=above.device)
        self._depth += 1
        return tree_pass(self._seen, offsets, self._dtype)


class Level(NamedTuple):
    """A level of a fixed shape, of which a pass gives rows x width candidates."""

    width: int  # children of the node above that has most
    children: Tensor  # (c,) which of the candidates are nodes
    inner: Tensor  # (r,) which of the nodes have children
    above: Tensor  # (r,) of each of these, which of the nodes read in the pass before is its parent


@cached_shape
def levels_of(tree: Topology, device: torch.device) -> tuple[Level, ...]:
    """Return the levels of a tree."""
    starts = [*(tree.depths.index(depth) for depth in range(1, tree.depth + 1)), len(tree)]
    before = [ROOT]
    made = []
    for start, stop in pairwise(starts):
        row = {node: at for at, node in enumerate(before)}
        width = max(len(tree.children[node]) for node in before)
        nodes = range(start, stop)
        places = [row[tree.parents[node]] * width + tree.siblings[node] - 1 for node in nodes]
        before = [node for node in nodes if tree.children[node]]
        inner = send([node - start for node in before], device)
        above = send([row[tree.parents[node]] for node in before], device)
        made.append(Level(width, send(places, device), inner, above))
    return tuple(made)


class StaticTreeBuilder:
    """A draft of a fixed shape, level after level, from the token at a position on."""

    def __init__(
        self, tree: Topology, choice: Sampler, position: int, device: torch.device
    ) -> None:
        self.depth = tree.depth
        self._tree = tree
        self._choice = choice
        self._position = position
        self._levels = None if tree.is_chain else levels_of(tree, device)
        self._tokens: list[Tensor] = []
        self._first: list[Tensor] = []
        self._weights: list[Tensor] = []

    def add(self, logits: Tensor) -> None:
        """Add a level: the children of the nodes that have the logits (r, V)."""
        depth = len(self._tokens)
        levels = self._levels
        width = levels[depth].width if levels else 1
        tokens, first, weights = self._choice.draft(logits, self._position, depth, width)
        flat = tokens.reshape(-1)
        self._tokens.append(flat[levels[depth].children] if levels else flat)
        self._first.append(first)
        self._weights += [] if weights is None else [weights]

    def inner(self) -> tuple[Tensor, Tensor | None]:
        """Return the last level's tokens (r,) that are read, and their parents; None of a chain."""
        if self._levels is None:
            return self._tokens[-1], None
        level = self._levels[len(self._tokens) - 1]
        return self._tokens[-1][level.inner], level.above

    def draft(self) -> tuple[Draft, Mapping[int, int]]:
        """Return the draft, and where each node that was read lies in the cache after the text."""
        weights = torch.cat(self._weights) if self._weights else None
        draft = Draft(torch.cat(self._tokens), self._tree, weights, torch.cat(self._first))
        return draft, {node: at for at, node in enumerate(inner_nodes(self._tree)[1:])}


class DynamicTreeBuilder:
    """A tree that grows, level after level, from the token at a position on; see `DynamicTree`.

    Of all candidates it knows the logarithm of the value, -inf of NOTHING; the parent among them;
    and the column in the drafter's cache after the text, -1 of those that are not read.
    """

    def __init__(
        self, growth: DynamicTree, count: int, choice: GreedySampler, position: int
    ) -> None:
        self.depth = min(count, growth.depth)
        self._growth = growth
        self._choice = choice
        self._position = position
        self._levels: list[tuple[Tensor, ...]] = []  # tokens, values, parents, columns
        self._first: list[Tensor] = []
        self._read = self._start = 0  # nodes read, candidates before the last level

    def add(self, logits: Tensor) -> None:
        """Add the children of the nodes read last, which have the logits (r, V)."""
        width = self._growth.width
        keys = self._choice.keys(logits, self._position + len(self._levels)).double()
        tokens = first_tokens(keys, width)
        values = torch.log_softmax(keys, 1).gather(1, readable(tokens))
        values = values.masked_fill(tokens == NOTHING, -torch.inf)
        self._first.append(keys.gather(1, readable(tokens[:, :1]))[:, 0])
        parents = torch.full_like(tokens, ROOT)
        if self._levels:
            parents = (self._start + self._inner)[:, None].expand_as(tokens)
            values = values + self._levels[-1][1][self._inner][:, None]
            self._start += len(self._levels[-1][0])
        level = (tokens, values, parents, torch.full_like(tokens, -1))
        self._levels.append(tuple(each.reshape(-1) for each in level))

    def inner(self) -> tuple[Tensor, Tensor]:
        """Return the last level's tokens (r,) of highest value, and which rows gave them."""
        tokens, values, _, columns = self._levels[-1]
        self._inner = _largest(values, self._growth.width)
        rows = len(self._inner)
        columns[self._inner] = torch.arange(self._read, self._read + rows, device=columns.device)
        self._read += rows
        return tokens[self._inner], self._inner // self._growth.width

    def draft(self) -> tuple[Draft, Mapping[int, int]]:
        """Return the draft, and where each node that was read lies in the cache after the text."""
        tokens, values, parents, columns = (
            torch.cat(each) for each in zip(*self._levels, strict=True)
        )
        chosen = _largest(values, self._growth.nodes)
        alive = values[chosen].isfinite().long()  # else nothing could be drafted there, or above
        facts = torch.stack([alive, chosen, parents[chosen], columns[chosen]])
        drafted, *others = read(facts)[0]
        kept = np.flatnonzero(drafted)
        candidates, above, slots = (each[kept].tolist() for each in others)
        number = {ROOT: ROOT, **{candidate: at for at, candidate in enumerate(candidates)}}
        tree = Topology(tuple(number[parent] for parent in above))
        places = {at: slot for at, slot in enumerate(slots) if slot >= 0}
        tokens = tokens[chosen][send(kept, tokens.device)]
        return Draft(tokens, tree, None, torch.cat(self._first)), places


def _largest(values: Tensor, count: int) -> Tensor:
    """Return the indices of the `count` largest values (c,) in order; of equal values the first."""
    return values.sort(descending=True, stable=True).indices[:count].sort().values

"""Draft trees as passes over their nodes: fixed shapes, made once, and trees that each call grows.

Nodes are in level order (`Topology.by_level`). Of a chain nothing is made: each token sees all
before it, which models do by themselves. A tree that grows (EAGLE-2) keeps the nodes that the
drafter values most. Which of them are read at a depth, and which are kept in the end, is chosen on
the device, which is waited for once a call. The value of a child comes from what orders its
siblings: the drafter's probability where the most probable are drafted; in a race q_i / e_i over
their sum, the odds that i still arrives first where the target's law differs from the drafter's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from analysis.decoding.laws import NOTHING
from analysis.trees.topology import ROOT, Growth, Topology, sequence
from pipeline.decoding.choices import Greedy, first_tokens
from pipeline.models.devices import read, send
from pipeline.models.passes import TreePass, tree_pass

lately = lru_cache(128)  # of shapes that calls choose anew the latest are kept
within, chain = lately(Topology.within), lately(sequence)


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

    def read(self, tokens: Tensor) -> Tensor:
        """Return what is read (r,) of the tokens of the depth."""
        return tokens if self.inner is None else readable(tokens[self.inner])


Reading = Callable[[Level, Tensor | None], Tensor]  # logits (r, V) after nodes; None: after a text


def readable(tokens: Tensor) -> Tensor:
    """Return tokens that a model can read: NOTHING, which no text goes on with, becomes 0."""
    return tokens.clamp(min=0)


@lately
def inner_nodes(tree: Topology) -> tuple[int, ...]:
    """Return the nodes with children, the root first: the order in which a drafter reads them."""
    return tuple(node for node in range(ROOT, len(tree)) if tree.children[node])


@lately
def columns_of(tree: Topology) -> dict[int, int]:
    """Return where each node that a drafter reads lies in its cache, after the text."""
    return {node: at for at, node in enumerate(inner_nodes(tree)[1:])}


@lately
def verification_pass(
    tree: Topology | None, device: torch.device, dtype: torch.dtype
) -> TreePass | None:
    """Return how a target reads the last token of the text, which is the root, and all nodes."""
    if tree is None or tree.is_chain:
        return None
    seen = np.eye(len(tree) + 1, dtype=np.bool_)
    for node, parent in enumerate(tree.parents):
        seen[node + 1] |= seen[parent + 1]
    return tree_pass(send(seen, device), send((0, *tree.depths), device), dtype)


@lately
def levels_of(tree: Topology, device: torch.device, dtype: torch.dtype) -> tuple[Level, ...]:
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
    at = columns_of(tree)
    seen = torch.zeros(len(nodes), at[nodes[-1]] + 1, dtype=torch.bool)
    for row, node in enumerate(nodes):
        while node != ROOT:
            seen[row, at[node]] = True
            node = tree.parents[node]
    depth = torch.full((len(nodes),), tree.depths[nodes[0]] - 1, device=device)
    return tree_pass(seen.to(device), depth, dtype)


class Candidates(NamedTuple):
    """All nodes of some depths of a tree that grows, kept or not; (c,) each.

    Attributes:
        tokens: NOTHING where none can be drafted.
        values: logarithms, -inf of NOTHING.
        parents: among all candidates; ROOT is the text.
        columns: in the drafter's cache after the text, where it read them; else -1.
    """

    tokens: Tensor
    values: Tensor
    parents: Tensor
    columns: Tensor


def grow(
    growth: Growth, count: int, reading: Reading, choice: Greedy, position: int, dtype: torch.dtype
) -> tuple[Tensor, Topology, dict[int, int], Tensor]:
    """Grow a tree of at most `count` levels, at least 1, from the token at a position on.

    `dtype` is that of the drafter's attention.

    Returns:
        Tokens (n,) on the drafter's device; the shape, in level order; where each node that was
        read lies in the drafter's cache, after the text; and the largest key (r,) of each row that
        was read, finite unless the logits are broken.
    """
    width = growth.width
    logits = reading(Level(width), None)
    level, keys = _children(logits, choice, position, width)
    largest, device = [keys], logits.device
    found = [level._replace(parents=torch.full_like(level.tokens, ROOT))]
    seen = torch.zeros((0, 0), dtype=torch.bool, device=device)  # of the nodes read so far
    before = torch.zeros(0, dtype=torch.long, device=device)  # those of the last pass
    for depth in range(1, min(count, growth.depth)):
        last, start = found[-1], sum(len(one.tokens) for one in found[:-1])
        inner = _largest(last.values, width)
        above = torch.zeros_like(inner)
        read_before, rows = len(seen), len(inner)
        seen = pad(seen, (0, rows, 0, rows))
        if depth > 1:
            above = (before[None] == last.parents[inner][:, None]).long().argmax(1)
            seen[read_before:] = seen[read_before - len(before) : read_before][above]
        own = torch.arange(read_before, read_before + rows, device=device)
        seen[own, own] = True
        last.columns[inner] = own
        offsets = torch.full((rows,), depth - 1, device=device)
        pass_ = Level(width, None, inner, above, tree_pass(seen[read_before:], offsets, dtype))
        before = start + inner
        level, keys = _children(reading(pass_, last.tokens), choice, position + depth, width)
        largest.append(keys)
        values = level.values + last.values[inner].repeat_interleave(width)
        found.append(level._replace(values=values, parents=before.repeat_interleave(width)))
    all_ = Candidates(*(torch.cat(column) for column in zip(*found, strict=True)))
    return *_most_valued(all_, growth), torch.cat(largest)


def _children(
    logits: Tensor, choice: Greedy, position: int, width: int
) -> tuple[Candidates, Tensor]:
    """Return the r x width children of nodes from the logits (r, V) after them, without parents.

    And the largest key (r,) of each row.
    """
    keys = choice.keys(logits, position).double()
    tokens = first_tokens(keys, width)
    values = torch.log_softmax(keys, 1).gather(1, tokens.clamp(min=0))
    values = values.masked_fill(tokens == NOTHING, -torch.inf).flatten()
    flat = tokens.flatten()
    largest = keys.gather(1, tokens[:, :1].clamp(min=0))[:, 0]
    return Candidates(flat, values, flat, torch.full_like(flat, -1)), largest


def _largest(values: Tensor, count: int) -> Tensor:
    """Return which `count` of the values (c,) are largest, in order; of equal ones the first."""
    return values.sort(descending=True, stable=True).indices[:count].sort().values


def _most_valued(all_: Candidates, growth: Growth) -> tuple[Tensor, Topology, dict[int, int]]:
    """Return tokens, shape and columns of the most valued candidates, which are in level order."""
    chosen = _largest(all_.values, growth.nodes)
    tokens = all_.tokens[chosen]
    alive = all_.values[chosen].isfinite()
    facts = torch.stack([chosen, alive.long(), all_.parents[chosen], all_.columns[chosen]])
    number = {ROOT: ROOT}
    parents: list[int] = []
    columns: dict[int, int] = {}
    rows: list[int] = []  # of the chosen, those that are drafted
    for row, (node, has_value, parent, column) in enumerate(read(facts)[0].T.tolist()):
        if not has_value:  # nothing could be drafted here, or above
            continue
        rows.append(row)
        number[node] = len(parents)
        if column >= 0:
            columns[len(parents)] = column
        parents.append(number[parent])
    if len(parents) < len(chosen):
        tokens = tokens[send(rows, tokens.device)]
    return tokens, Topology(tuple(parents)), columns

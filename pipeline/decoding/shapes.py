"""Draft trees as passes over their nodes: fixed shapes, made once, and trees that each call grows.

Nodes are in level order (`Topology.by_level`). Of a chain nothing is made: each token sees all
before it, which models do by themselves. A tree that grows (EAGLE-2) keeps the nodes that the
drafter values most. Which of them are read at a depth, and which are kept in the end, is chosen on
the device, which is waited for once a call. The value of a child comes from what orders its
siblings: the drafter's probability where the most probable are drafted; in a race q_i / e_i over
their sum, the odds that i still arrives first where target and drafter differ.
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

from analysis.decoding.schemes import NOTHING
from analysis.trees.topology import ROOT, DynamicTree, Topology, sequence
from pipeline.decoding.choices import Greedy, first_tokens
from pipeline.models.devices import read, send
from pipeline.models.passes import TreePass, tree_pass

lately = lru_cache(128)  # of shapes that calls choose anew the latest are kept
within, chain = lately(Topology.within), lately(sequence)


class Level(NamedTuple):
    """One pass of a drafter: the nodes of a depth that have children are read, these are drafted.

    Attributes:
        width: children of the task that has most.
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
        """Return the tokens of the depth that are read (r,)."""
        return tokens if self.inner is None else readable(tokens[self.inner])


Reading = Callable[[Level, Tensor | None], Tensor]  # logits (r, V) after nodes; None: after a text


def readable(tokens: Tensor) -> Tensor:
    """Return tokens that a model can read: NOTHING, which no text goes on with, becomes 0."""
    return tokens.clamp(min=0)


@lately
def inner_nodes(tree: Topology) -> tuple[int, ...]:
    """Return the nodes with children, the root first: the order in which a drafter reads them."""
    return tuple(task for task in range(ROOT, len(tree)) if tree.children[task])


@lately
def cache_slots(tree: Topology) -> dict[int, int]:
    """Return where each task that a drafter reads lies in its cache, after the text."""
    return {task: at for at, task in enumerate(inner_nodes(tree)[1:])}


@lately
def verification_pass(
    tree: Topology | None, device: torch.device, dtype: torch.dtype
) -> TreePass | None:
    """Return the pass in which a target reads the root (the last token of the text) and nodes."""
    if tree is None or tree.is_chain:
        return None
    seen = np.eye(len(tree) + 1, dtype=np.bool_)
    for task, parent in enumerate(tree.parents):
        seen[task + 1] |= seen[parent + 1]
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
        inner = [task for task in range(start, stop) if tree.children[task]]
        width = max(len(tree.children[task]) for task in inner)
        row = {task: at for at, task in enumerate(inner)}
        children = [
            row[tree.parents[task]] * width + tree.siblings[task] - 1
            for task in range(stop, starts[depth + 2])
        ]
        level = Level(width, send(children, device))
        if depth:
            level = level._replace(
                inner=send([task - start for task in inner], device),
                above=send([before.index(tree.parents[n]) for n in inner], device),
                tree=_read_after(tree, inner, device, dtype),
            )
        made.append(level)
        before = inner
    return tuple(made)


def _read_after(
    tree: Topology, nodes: list[int], device: torch.device, dtype: torch.dtype
) -> TreePass:
    """Return the pass in which a drafter reads nodes of a depth, after those of smaller depths."""
    at = cache_slots(tree)
    seen = torch.zeros(len(nodes), at[nodes[-1]] + 1, dtype=torch.bool)
    for row, task in enumerate(nodes):
        while task != ROOT:
            seen[row, at[task]] = True
            task = tree.parents[task]
    depth = torch.full((len(nodes),), tree.depths[nodes[0]] - 1, device=device)
    return tree_pass(seen.to(device), depth, dtype)


def grow(
    growth: DynamicTree,
    count: int,
    reading: Reading,
    choice: Greedy,
    position: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Topology, dict[int, int], Tensor]:
    """Grow a tree of at most `count` levels, at least 1, from the token at a position on.

    `dtype` is that of the drafter's attention.

    Returns:
        Tokens (n,) on the drafter's device; the shape, in level order; where each task that was
        read lies in the drafter's cache, after the text; and the largest key (r,) of each row that
        was read, finite unless the logits are broken.
    """
    width = growth.width
    # of all candidates, level after level: the logarithm of the value, -inf of NOTHING; the parent
    # among them; the column in the drafter's cache after the text, -1 of those that are not read
    tokens, values, keys = _children(reading(Level(width), None), choice, position, width)
    parents, columns = torch.full_like(tokens, ROOT), torch.full_like(tokens, -1)
    largest, start, device = [keys], 0, tokens.device
    seen = torch.zeros((0, 0), dtype=torch.bool, device=device)  # of the nodes read so far
    before = torch.zeros(0, dtype=torch.long, device=device)  # those of the last pass
    for depth in range(1, min(count, growth.depth)):
        inner = start + _largest(values[start:], width)
        above = torch.zeros_like(inner)
        read_before, rows = len(seen), len(inner)
        seen = pad(seen, (0, rows, 0, rows))
        if depth > 1:
            above = (before[None] == parents[inner][:, None]).long().argmax(1)
            seen[read_before:] = seen[read_before - len(before) : read_before][above]
        own = torch.arange(read_before, read_before + rows, device=device)
        seen[own, own] = True
        columns[inner] = own
        offsets = torch.full((rows,), depth - 1, device=device)
        pass_ = tree_pass(seen[read_before:], offsets, dtype)
        logits = reading(Level(width, None, inner - start, above, pass_), tokens[start:])
        made, gained, keys = _children(logits, choice, position + depth, width)
        largest.append(keys)
        start, before = len(tokens), inner
        tokens = torch.cat([tokens, made])
        values = torch.cat([values, gained + values[inner].repeat_interleave(width)])
        parents = torch.cat([parents, inner.repeat_interleave(width)])
        columns = torch.cat([columns, torch.full_like(made, -1)])
    chosen = _largest(values, growth.nodes)
    alive = values[chosen].isfinite().long()
    facts = torch.stack([chosen, alive, parents[chosen], columns[chosen]])
    drafted, shape, places = _shape_of(read(facts)[0].T.tolist())
    tokens = tokens[chosen]
    if len(drafted) < len(chosen):
        tokens = tokens[send(drafted, device)]
    return tokens, shape, places, torch.cat(largest)


def _children(
    logits: Tensor, choice: Greedy, position: int, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tokens and values (r x width,) of the children of nodes, from logits (r, V).

    And the largest key (r,) of each row.
    """
    keys = choice.keys(logits, position).double()
    tokens = first_tokens(keys, width)
    values = torch.log_softmax(keys, 1).gather(1, tokens.clamp(min=0))
    values = values.masked_fill(tokens == NOTHING, -torch.inf)
    return tokens.flatten(), values.flatten(), keys.gather(1, tokens[:, :1].clamp(min=0))[:, 0]


def _largest(values: Tensor, count: int) -> Tensor:
    """Return the indices of the `count` largest values (c,) in order; of equal values the first."""
    return values.sort(descending=True, stable=True).indices[:count].sort().values


def _shape_of(chosen: list[list[int]]) -> tuple[list[int], Topology, dict[int, int]]:
    """Return the chosen candidates that are drafted, their shape, and the columns of those read.

    Args:
        chosen: in level order; of each its number, whether it has a value, its parent's number
            and its column. One has none where nothing could be drafted there, or above.
    """
    number = {ROOT: ROOT}
    parents: list[int] = []
    columns: dict[int, int] = {}
    rows: list[int] = []
    for row, (task, has_value, parent, column) in enumerate(chosen):
        if not has_value:
            continue
        rows.append(row)
        number[task] = len(parents)
        if column >= 0:
            columns[len(parents)] = column
        parents.append(number[parent])
    return rows, Topology(tuple(parents)), columns

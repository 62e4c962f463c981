"""Draft trees that each call grows: the nodes that the drafter values most (EAGLE-2).

Which nodes are read at a depth, and which are kept in the end, is chosen on the device, which is
waited for once a call. The value of a child comes from what orders its siblings: the drafter's
probability where the most probable are drafted; in a race q_i / e_i over their sum, the odds that i
still arrives first where the target's law differs from the drafter's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from analysis.trees.laws import NOTHING
from analysis.trees.topology import ROOT, Growth, Topology
from pipeline.decoding.choices import Greedy, Race, first
from pipeline.decoding.shapes import Level
from pipeline.models.devices import read, send
from pipeline.models.fixed_passes import tree_pass


class Candidates(NamedTuple):
    """All nodes of some depths, kept or not; (c,) each.

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
    growth: Growth,
    count: int,
    read: Callable[[Level, Tensor | None], Tensor],
    choice: Greedy | Race,
    position: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Topology, dict[int, int], Tensor]:
    """Grow a tree of at most `count` levels.

    Args:
        growth: its limits.
        count: levels, at least 1.
        read: gives the logits (r, V) after the nodes of a pass, as of `draft_levels`.
        choice: of the children.
        position: of the first proposed token in the answer.
        dtype: of the drafter's attention.

    Returns:
        Tokens (n,) on the drafter's device; the shape, in level order; where each node that was
        read lies in the drafter's cache, after the text; and the largest key (r,) of each row that
        was read, finite unless the logits are broken.
    """
    width = growth.width
    logits = read(Level(width), None)
    level, keys = children(logits, choice, position, 0, width)
    largest = [keys]
    device = logits.device
    found = [level._replace(parents=torch.full_like(level.tokens, ROOT))]
    seen = torch.zeros((0, 0), dtype=torch.bool, device=device)  # of the nodes read so far
    before = torch.zeros(0, dtype=torch.long, device=device)  # those of the last pass
    for depth in range(1, min(count, growth.depth)):
        last, start = found[-1], sum(len(one.tokens) for one in found[:-1])
        inner = best(last.values, width)
        above = torch.zeros_like(inner)
        if depth > 1:
            above = (before[None] == last.parents[inner][:, None]).long().argmax(1)
        read_before, rows = len(seen), len(inner)
        seen = torch.nn.functional.pad(seen, (0, rows, 0, rows))
        if depth > 1:
            seen[read_before:] = seen[read_before - len(before) : read_before][above]
        own = torch.arange(read_before, read_before + rows, device=device)
        seen[own, own] = True
        last.columns[inner] = own
        offsets = torch.full((rows,), depth - 1, device=device)
        pass_ = Level(width, None, inner, above, tree_pass(seen[read_before:], offsets, dtype))
        before = start + inner
        logits = read(pass_, last.tokens)
        level, keys = children(logits, choice, position, depth, width)
        largest.append(keys)
        values = level.values + last.values[inner].repeat_interleave(width)
        parents = before.repeat_interleave(width)
        found.append(level._replace(values=values, parents=parents))
    all_ = Candidates(*(torch.cat(column) for column in zip(*found, strict=True)))
    return *kept(all_, growth), torch.cat(largest)


def children(
    logits: Tensor, choice: Greedy | Race, position: int, depth: int, width: int
) -> tuple[Candidates, Tensor]:
    """Return the r x width children of nodes from the logits (r, V) after them, without parents.

    And the largest key (r,) of each row.
    """
    keys = choice.keys(logits, position, depth)
    tokens = first(keys, width)
    values = torch.log_softmax(keys, 1).gather(1, tokens.clamp(min=0))
    values = values.masked_fill(tokens == NOTHING, -torch.inf).flatten()
    flat = tokens.flatten()
    largest = keys.gather(1, tokens[:, :1].clamp(min=0))[:, 0]
    return Candidates(flat, values, flat, torch.full_like(flat, -1)), largest


def best(values: Tensor, count: int) -> Tensor:
    """Return which `count` of the values (c,) are largest, in order; of equal ones the first."""
    return values.sort(descending=True, stable=True).indices[:count].sort().values


def kept(all_: Candidates, growth: Growth) -> tuple[Tensor, Topology, dict[int, int]]:
    """Return tokens, shape and columns of the most valued candidates, which are in level order."""
    chosen = best(all_.values, growth.nodes)
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

"""Verification schemes of speculative decoding, as plain functions of distributions and randomness.

A verification step has n drafted tokens on the nodes of a tree (of a chain, each node has one
child) and the target's distribution after each of them. A scheme returns the accepted path and the
token that follows: a correction after a rejection, else the bonus token. Random numbers are
arguments, so a test can enumerate the outcomes of a scheme.

A node may have more children than there are tokens with a probability above 0. Then its last
children have the token NOTHING and are not drafted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..trees.topology import ROOT, Topology

Floats = NDArray[np.floating[Any]]
Flags = NDArray[np.bool_]
Accepted = tuple[tuple[int, ...], int]  # nodes from the root on, and the token emitted after them

NOTHING = -1  # in place of a token id: not drafted


def matching_path(
    tree: Topology,
    drafted: Sequence[int],
    choice: Callable[[int, int], int],
    also: Flags | None = None,
) -> Accepted:
    """Return the path of drafted tokens that equal the target's choices, and the next choice.

    The first child in order that is chosen, or that `also` (n,) accepts, is taken. Without `also`
    every emitted token is the target's choice, so the scheme is lossless. With argmaxes as choices
    it is greedy decoding with trees (Section 3.3 of arXiv 2606.30265, the rule `Tree`). With the
    winners of the target's races, run with the times by which the children were drafted, it is
    exponential races (Algorithm 5 of arXiv 2504.15475). With draws it has the distribution of
    children tested in order with probability p, where a rejected token leaves p: the verification
    of EAGLE-3's trees of most probable tokens (arXiv 2503.01840).

    `choice` returns the target's choice after a node, -1 being the text so far, given the number of
    accepted tokens; it is called once for each node of the path, and for the text.
    """
    path: list[int] = []
    node = ROOT
    while True:
        token = choice(node, len(path))
        taken = [
            child
            for child in tree.children[node]
            if drafted[child] == token or (also is not None and also[child])
        ]
        if not taken:
            return tuple(path), token
        node = taken[0]
        path.append(node)


def first_accepted_path(tree: Topology, accepted: Flags, tokens: Sequence[int]) -> Accepted:
    """Return the path along the first accepted child of each node, and the token after its last.

    `accepted` (n,) are the tests of all children, each given that those before it are rejected;
    `tokens` (n + 1,) those that follow the text and each node if all its children are rejected.

    >>> first_accepted_path(Topology((-1, -1, 1)), np.array([False, True, False]), [7, 8, 9, 6])
    ((1,), 9)
    """
    path: list[int] = []
    node = ROOT
    while children := [child for child in tree.children[node] if accepted[child]]:
        node = children[0]
        path.append(node)
    return tuple(path), tokens[node + 1]


def longest_path(parents: Sequence[int], accepted: Flags) -> tuple[int, ...]:
    """Return the longest path of accepted tokens, of equally long ones the first.

    >>> longest_path([-1, -1, 1, 2], np.array([True, True, True, False]))
    (1, 2)
    """
    best: list[tuple[int, ...]] = [()] * (len(parents) + 1)
    for node in reversed(range(len(parents))):  # children before their parents
        above = parents[node]
        if accepted[node] and len(best[node]) + 1 >= len(best[above]):  # the first comes last
            best[above] = (node, *best[node])
    return best[-1]


def speculative_sampling(
    tree: Topology,
    drafted: Sequence[int],
    uniforms: Sequence[float],
    rows: Callable[[int], tuple[Floats, Floats | None]],
    token_uniform: Callable[[int], float],
    also: Flags | None = None,
) -> Accepted:
    """Accept tokens drawn from q with probability min(1, p/q), else draw from the residual.

    Algorithm 3 of arXiv 2606.30265 on a chain; Algorithm 4 of arXiv 2504.15475 (GSS) on a tree,
    whose siblings are drawn without replacement. They are tested in order; after a rejection p
    becomes the residual max(0, p - q), q loses the rejected token, and both are normalised.
    Lossless unless `also` accepts more tokens.

    `uniforms` (n,) decide the tests. `rows` returns the target's and the draft's distribution (V,)
    after a node (-1: the text so far), with None for the draft's at a node without children; it is
    called once for each node of the path, and for the text. The draft's is 1 at a token that was
    not drawn. `token_uniform` returns the number that draws the token after the first a tokens of
    the path. Tokens of `also` (n,) are accepted regardless of their test.
    """
    path: list[int] = []
    node = ROOT
    while True:
        p, q = rows(node)
        children = tree.children[node]
        for child in children:
            token = drafted[child]
            if token == NOTHING or q is None:
                continue
            if uniforms[child] * q[token] < p[token] or (also is not None and also[child]):
                path.append(child)
                break
            p = residual(p, q)
            if child != children[-1]:
                p = p / p.sum()
                q = q.copy()
                q[token] = 0
                q = q / q.sum() if q.any() else q
        else:
            return tuple(path), pick(p, token_uniform(len(path)))
        node = path[-1]


def residual(p: Floats, q: Floats) -> Floats:
    """Return the unnormalised weights max(0, p - q), (V,), of the corrected token.

    If p <= q everywhere, a rejection can only be due to rounding, and p is returned.
    """
    weights = np.maximum(p - q, 0)
    return weights if weights.any() else p


def pick(weights: Floats, uniform: float) -> int:
    """Return a token drawn in proportion to `weights` (V,), by inversion of a uniform number."""
    cumulated = np.cumsum(weights, dtype=np.result_type(weights, np.float64))
    token = int(np.searchsorted(cumulated, uniform * cumulated[-1], side="right"))
    if token == len(weights):  # uniform * total rounded up to the total
        token = int(np.flatnonzero(weights)[-1])
    return token

"""Drafting and verification on trees: which path of drafted tokens is kept, what is emitted next.

The laws of `analysis.decoding.laws`, where the text may go on with any child of the node that was
accepted last. Randomness comes in as numbers here too. A tree may be larger than what its drafter
can draw: where fewer tokens have a probability above 0 than a node has children, the last of
these have the token NOTHING, and are not drafted.

Exponential races need one race a depth, not one a node: of a depth only one node is on the
accepted path, and its race is independent of those that led to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decoding.laws import Floats, Rows, pick, residual
from .topology import ROOT, Topology

NOTHING = -1  # in the place of a token: none is drafted
# the accepted nodes from the root on, and the token emitted after them
TreeVerdict = tuple[tuple[int, ...], int]


def arrivals(logits: Floats, log_times: Floats | float, count: int) -> NDArray[np.intp]:
    """Return the first `count` arrivals of exponential races, in order: the children of a node.

    Token i arrives at e_i / q_i. The first arrivals are draws from q without replacement
    (Algorithm 5, line 10, of arXiv 2504.15475; also a way to draft for its Algorithm 4). Where all
    times are equal they are the most probable tokens, of equal ones the first.

    Args:
        logits: (n, V) of the drafter, divided by the temperature; -inf is a probability of 0.
        log_times: (n, V) logarithms of independent Exp(1) numbers; 0 drafts the most probable.
        count: children of each node.

    Returns:
        (n, count) tokens, NOTHING where no other has a probability above 0.

    Example:
        >>> arrivals(np.log([[0.2, 0.5, 0.3]]), 0.0, 2)
        array([[1, 2]])
    """
    keys = logits - log_times
    order = np.argsort(-keys, axis=-1, kind="stable")[:, :count]
    possible = np.take_along_axis(keys, order, axis=-1) > -np.inf
    found = np.full((len(keys), count), NOTHING)
    found[:, : order.shape[-1]] = np.where(possible, order, NOTHING)
    return found


def match_tree(tree: Topology, drafted: Sequence[int], choices: Sequence[int]) -> TreeVerdict:
    """Follow drafted tokens as long as one of them is what the target chooses by itself.

    Greedy decoding with trees (Section 3.3 of arXiv 2606.30265, the rule `Tree`) when the choices
    are argmaxes; exponential races (Algorithm 5 of arXiv 2504.15475) when they are the winners of
    the target's races, run with the times by which the children were drafted. What is emitted is
    always the target's choice, whatever was drafted: the law is lossless.

    Args:
        tree: n nodes.
        drafted: their tokens.
        choices: the target's n + 1 choices: after the text so far, and after each node.
    """
    path: list[int] = []
    node = ROOT
    while True:
        token = choices[node + 1]
        found = [child for child in tree.children[node] if drafted[child] == token]
        if not found:
            return tuple(path), token
        node = found[0]
        path.append(node)


def tree_speculative_sampling(
    tree: Topology,
    drafted: Sequence[int],
    uniforms: Floats,
    rows: Rows,
    token_uniform: Callable[[int], float],
) -> TreeVerdict:
    """Speculative sampling on a tree drafted without replacement (Algorithm 4 of arXiv 2504.15475).

    The children of a node are tested in order with probability min(1, p/q). After a rejection p
    becomes the residual max(0, p - q), q loses the rejected token, and both are normalised.
    Lossless.

    Args:
        tree: n nodes.
        drafted: their tokens; those of siblings are drawn from one distribution without
            replacement, in order.
        uniforms: (n,) uniform numbers of the tests.
        rows: gives the target's and the draft's distribution (V,) after a node, -1 being the text
            so far; None instead of the draft's for a node without children. Asked once for each
            node of the path.
        token_uniform: gives the uniform number with which the token after the first a of a path
            is drawn.
    """
    path: list[int] = []
    node = ROOT
    while True:
        p, q = rows(node)
        for child in tree.children[node]:
            token = drafted[child]
            if token == NOTHING or q is None:
                continue
            if uniforms[child] * q[token] < p[token]:
                path.append(child)
                break
            p = _normalised(residual(p, q))
            q = _without(q, token)
        else:
            return tuple(path), pick(p, token_uniform(len(path)))
        node = path[-1]


def _without(q: Floats, token: int) -> Floats:
    """Return q (V,) given that a draw is another token than this one."""
    others = q.copy()
    others[token] = 0
    return _normalised(others) if others.any() else others


def _normalised(weights: Floats) -> NDArray[np.floating[Any]]:
    return np.asarray(weights / weights.sum())

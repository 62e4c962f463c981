"""Verification laws of speculative decoding: which drafted tokens are kept, what is emitted next.

A verification step has n drafted tokens in a row, or on the nodes of a tree, and the target's
distributions after each of them. A law says how many of the drafted tokens are accepted (on a tree:
which path of them) and which token follows: a correction after a rejection, else the bonus token.
Randomness comes in as numbers, so that every law is a plain function and can be enumerated.

A tree may be larger than what its drafter can draw: where fewer tokens have a probability above 0
than a node has children, the last of these have the token NOTHING, and are not drafted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..trees.topology import ROOT, Topology

Floats = NDArray[np.floating[Any]]
Flags = NDArray[np.bool_]
RowsOf = Callable[[int], tuple[Floats, Floats | None]]

NOTHING = -1  # in the place of a token: none is drafted


def leading(accepted: Flags) -> int:
    """Return how many of the (n,) tests succeed before the first failure.

    Examples:
        >>> leading(np.array([True, True, False, True]))
        2
    """
    return int(np.argmin(accepted)) if not np.all(accepted) else len(accepted)


def match_tree(
    tree: Topology, drafted: Sequence[int], choices: Sequence[int]
) -> tuple[tuple[int, ...], int]:
    """Follow drafted tokens as long as one of them is what the target chooses by itself.

    Greedy decoding with trees (Section 3.3 of arXiv 2606.30265, the rule `Tree`) when the choices
    are argmaxes; exponential races (Algorithm 5 of arXiv 2504.15475) when they are the winners of
    the target's races, run with the times by which the children were drafted. What is emitted is
    always the target's choice, whatever was drafted: the law is lossless.

    Args:
        tree: n nodes.
        drafted: their tokens.
        choices: the target's n + 1 choices: after the text so far, and after each node.

    Returns:
        The accepted nodes from the root on, and the token emitted after them.
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


def speculative_sampling(
    p: Floats,
    q: Floats,
    uniforms: Floats,
    rows: RowsOf,
    token_uniform: Callable[[int], float],
    also: Flags | None = None,
) -> tuple[int, int]:
    """Accept tokens drawn from q with probability min(1, p/q) (Algorithm 3 of arXiv 2606.30265).

    Lossless unless `also` accepts more.

    Args:
        p: (n,) target probabilities of the drafted tokens.
        q: (n,) draft probabilities of them; 1 for a drafter that does not draw.
        uniforms: (n,) uniform numbers of the tests.
        rows: gives the target's and the draft's distribution (V,) after the first a drafted
            tokens; None instead of the draft's for a = n. Asked once.
        token_uniform: gives the uniform number with which the token after the first a drafted
            ones is drawn.
        also: (n,) tokens that are accepted whatever their test says: of MARS above temperature
            0 those of rank 2 where its ratio is above the threshold.

    Returns:
        How many tokens are accepted, and the token emitted after them.
    """
    tests = np.asarray(uniforms * q < p)
    accepted = leading(tests if also is None else tests | also)
    target, draft = rows(accepted)
    weights = target if draft is None else residual(target, draft)
    return accepted, pick(weights, token_uniform(accepted))


def tree_speculative_sampling(
    tree: Topology,
    drafted: Sequence[int],
    uniforms: Floats,
    rows: RowsOf,
    token_uniform: Callable[[int], float],
) -> tuple[tuple[int, ...], int]:
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

    Returns:
        As `match_tree`.
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
            rest = residual(p, q)
            p = rest / rest.sum()
            q = q.copy()
            q[token] = 0
            q = q / q.sum() if q.any() else q
        else:
            return tuple(path), pick(p, token_uniform(len(path)))
        node = path[-1]


def block_verification(
    drafted: Sequence[int],
    target: Floats,
    draft: Floats,
    uniforms: Floats,
    token_uniform: Callable[[int], float],
) -> tuple[int, int]:
    """Block verification (Algorithm 2 of arXiv 2403.10444): lossless, and never shorter on average.

    The longest prefix whose own test succeeds is accepted, so a token that fails can be saved by
    a later one. With w_i = min(1, w_{i-1} p/q) at drafted token i, w_0 = 1, and r_i the sum of
    max(0, w_i P - Q) over the tokens after it, test i succeeds with probability
    r_i / (r_i + 1 - w_i), the last with w_n. What follows a accepted tokens is drawn from
    max(0, w_a P - Q), after all of them from P.

    Args:
        drafted: n tokens, each drawn from the draft's distribution after those before it.
        target: (n + 1, V) the target's distributions after each prefix of the draft.
        draft: (n, V) the draft's.
        uniforms: (n,) uniform numbers of the tests.
        token_uniform: gives the uniform number with which the token after the first a drafted
            ones is drawn.

    Returns:
        As `speculative_sampling`.
    """
    n, accepted, kept = len(drafted), 0, [1]
    for i, token in enumerate(drafted):
        w = min(kept[i] * target[i, token] / draft[i, token], 1)
        r = np.maximum(w * target[i + 1] - draft[i + 1], 0).sum() if i + 1 < n else w
        kept.append(w)
        if uniforms[i] * (r + 1 - w) < r:
            accepted = i + 1
    weights = target[n]
    if accepted < n:
        weights = residual(kept[accepted] * target[accepted], draft[accepted])
    return accepted, pick(weights, token_uniform(accepted))


def residual(p: Floats, q: Floats) -> Floats:
    """Return the weights max(0, p - q) (V,), not normalised, of the corrected token.

    Where p <= q everywhere no rejection is possible but by rounding; p itself is returned then.
    """
    weights = np.maximum(p - q, 0)
    return weights if weights.any() else p


def pick(weights: Floats, uniform: float) -> int:
    """Return the token drawn with probability proportional to `weights` (V,), by inversion."""
    cumulated = np.cumsum(weights, dtype=np.result_type(weights, np.float64))
    at = int(np.searchsorted(cumulated, uniform * cumulated[-1], side="right"))
    if at == len(weights):  # uniform * total rounded up to the total
        at = int(np.flatnonzero(weights)[-1])
    return at

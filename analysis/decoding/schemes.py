"""Verification schemes of speculative decoding, as plain functions of distributions and randomness.

A verification step has n drafted tokens, in a chain or on the nodes of a tree, and the target's
distribution after each of them. A scheme returns the number of accepted tokens (for a tree, the
accepted path) and the token that follows: a correction after a rejection, else the bonus token.
Random numbers are arguments, so a test can enumerate the outcomes of a scheme.

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
RowsOf = Callable[[int], tuple[Floats, Floats | None]]

NOTHING = -1  # in place of a token id: not drafted


def leading(accepted: Flags) -> int:
    """Return the number of tests, (n,), that succeed before the first failure.

    Examples:
        >>> leading(np.array([True, True, False, True]))
        2
    """
    return int(np.argmin(accepted)) if not np.all(accepted) else len(accepted)


def match_tree(
    tree: Topology, drafted: Sequence[int], choices: Sequence[int]
) -> tuple[tuple[int, ...], int]:
    """Return the path of drafted tokens that equal the target's choices, and the next choice.

    With argmaxes as choices this is greedy decoding with trees (Section 3.3 of arXiv 2606.30265,
    the rule `Tree`). With the winners of the target's races, run with the times by which the
    children were drafted, it is exponential races (Algorithm 5 of arXiv 2504.15475). Every emitted
    token is the target's choice, so the scheme is lossless.

    Args:
        tree: n nodes.
        drafted: their tokens.
        choices: the target's n + 1 choices, after the text so far and after each node.

    Returns:
        The accepted nodes from the root on, and the token emitted after them.
    """
    path: list[int] = []
    node = ROOT
    while True:
        token = choices[node + 1]
        matching = [child for child in tree.children[node] if drafted[child] == token]
        if not matching:
            return tuple(path), token
        node = matching[0]
        path.append(node)


def longest_path(parents: Sequence[int], accepted: Flags) -> tuple[int, ...]:
    """Return the longest path of accepted tokens, of equally long ones the first.

    Args:
        parents: index of the parent of each of the n drafted tokens; -1 is the text.
        accepted: (n,) whether each token is accepted.

    Examples:
        >>> longest_path([-1, -1, 1, 2], np.array([True, True, True, False]))
        (1, 2)
    """
    best: list[tuple[int, ...]] = [()] * (len(parents) + 1)
    for node in reversed(range(len(parents))):  # children before their parents
        above = parents[node]
        if accepted[node] and len(best[node]) + 1 >= len(best[above]):  # the first comes last
            best[above] = (node, *best[node])
    return best[-1]


def drawn_path(
    tree: Topology,
    drafted: Sequence[int],
    rows: Callable[[int], Floats],
    token_uniform: Callable[[int], float],
    also: Flags | None = None,
) -> tuple[tuple[int, ...], int]:
    """Return the path of drafted tokens that the target draws, and the next draw.

    Drafts are deterministic, such as most probable tokens. The first child in order that is drawn,
    or that `also` accepts, is taken. This has the distribution of children tested in order with
    probability p, where a rejected token leaves p: the verification of EAGLE-3's trees (arXiv
    2503.01840). Without `also` the scheme is lossless, and emits the tokens that the target alone
    draws with the same numbers.

    Args:
        tree: n nodes.
        drafted: their tokens.
        rows: the target's distribution (V,) after a node, -1 being the text so far.
        token_uniform: uniform number with which the token after the first a of a path is drawn.
        also: (n,) tokens that are accepted regardless of the draw.

    Returns:
        As `match_tree`.
    """
    path: list[int] = []
    node = ROOT
    while True:
        token = pick(rows(node), token_uniform(len(path)))
        taken = [
            child
            for child in tree.children[node]
            if drafted[child] == token or (also is not None and also[child])
        ]
        if not taken:
            return tuple(path), token
        node = taken[0]
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

    Lossless unless `also` accepts more tokens.

    Args:
        p: (n,) target probabilities of the drafted tokens.
        q: (n,) draft probabilities of the drafted tokens; 1 for a deterministic drafter.
        uniforms: (n,) uniform numbers of the tests.
        rows: returns the target's and the draft's distribution (V,) after the first a drafted
            tokens, with None for the draft's if a = n. Called once.
        token_uniform: returns the uniform number that draws the token after the first a drafted
            tokens.
        also: (n,) tokens accepted regardless of their test.

    Returns:
        The number of accepted tokens, and the token emitted after them.
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
    """Verify a tree drafted without replacement by speculative sampling.

    Algorithm 4 of arXiv 2504.15475, lossless. The children of a node are tested in order with
    probability min(1, p/q). After a rejection p becomes the residual max(0, p - q), q loses the
    rejected token, and both are normalised.

    Args:
        tree: n nodes.
        drafted: their tokens; siblings are drawn in order from one distribution without
            replacement.
        uniforms: (n,) uniform numbers of the tests.
        rows: returns the target's and the draft's distribution (V,) after a node (-1: the text so
            far), with None for the draft's at a node without children. Called once for each node
            of the path.
        token_uniform: returns the uniform number that draws the token after the first a tokens of
            the path.

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
    """Verify a chain by block verification (Algorithm 2 of arXiv 2403.10444), which is lossless.

    It accepts the longest prefix whose own test succeeds, so a later success overrides a failure,
    and accepts on average at least as many tokens as speculative sampling. With w_0 = 1,
    w_i = min(1, w_{i-1} p/q) at drafted token i, and r_i the sum of max(0, w_i P - Q) over the
    tokens that may follow it, test i succeeds with probability r_i / (r_i + 1 - w_i), and the last
    with w_n. The token after a accepted ones is drawn from max(0, w_a P - Q), after all n from P.

    Args:
        drafted: n tokens, each drawn from the draft's distribution after those before it.
        target: (n + 1, V) the target's distributions after each prefix of the draft.
        draft: (n, V) the draft's distributions.
        uniforms: (n,) uniform numbers of the tests.
        token_uniform: gives the uniform number with which the token after the first a drafted
            ones is drawn.

    Returns:
        As `speculative_sampling`.
    """
    n, accepted, prefix_weights = len(drafted), 0, [1]
    for i, token in enumerate(drafted):
        w = min(prefix_weights[i] * target[i, token] / draft[i, token], 1)
        r = np.maximum(w * target[i + 1] - draft[i + 1], 0).sum() if i + 1 < n else w
        prefix_weights.append(w)
        if uniforms[i] * (r + 1 - w) < r:
            accepted = i + 1
    weights = target[n]
    if accepted < n:
        weights = residual(prefix_weights[accepted] * target[accepted], draft[accepted])
    return accepted, pick(weights, token_uniform(accepted))


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

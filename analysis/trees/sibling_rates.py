"""Acceptance over sibling indices: the probability that the i-th child is the accepted one.

R(i) is the probability that child i is accepted at a node that was reached, after the children
before it were rejected. It does not depend on the number of later children. The remainder,
1 - sum R, is the probability that no child is accepted.

R is measured on decoded trees (`measured_rates`), or estimated from both models' distributions at
the same steps (`greedy_rates`, `drawn_rates`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..topk import Floats

Integers = NDArray[np.integer[Any]]
# The most probable tokens of N steps under one model: ids (N, K) by decreasing probability, weights
# (N, K) proportional to their probabilities, and the weight (N,) of all other tokens.
StoredTokens = tuple[Integers, Floats, Floats]


def measured_rates(accepted: Integers, children: Integers) -> Floats:
    """Return R over sibling indices, estimated from nodes with varying numbers of children.

    The product-limit estimator (Kaplan and Meier 1958): R(i) is the share that accepted child i, of
    the nodes where it was tested, times the probability that none before it was accepted. A node
    with fewer than i children says nothing about child i; it does not count as a rejection.

    `accepted` (N,) is the sibling index, from 1, of the accepted child of each node reached, or 0
    if none was accepted. `children` (N,) is the number of children of each node.

    >>> measured_rates(np.array([1, 0, 2, 0]), np.array([2, 2, 2, 1])).tolist()
    [0.25, 0.375]
    """
    rates: list[float] = []
    not_accepted = 1.0
    for index in range(1, int(children.max(initial=0)) + 1):
        tested = (children >= index) & ((accepted == 0) | (accepted >= index))
        if not tested.any():
            break
        share = float((accepted[tested] == index).mean())
        rates.append(not_accepted * share)
        not_accepted *= 1 - share
    return np.array(rates)


def greedy_rates(ranks: Integers, count: int) -> Floats:
    """Return R (count,) of trees that draft the most probable tokens and are verified greedily.

    `ranks` (N,) are the drafter's ranks of the target's argmax, from 1.
    """
    return np.bincount(ranks, minlength=count + 1)[1 : count + 1] / len(ranks)


def aligned(target: StoredTokens, draft: StoredTokens) -> tuple[Floats, Floats]:
    """Return the distributions (N, 2 K + 2) of both models over the same tokens.

    The columns are the drafter's K stored tokens, the target's K stored tokens (0 for a token that
    is already among the drafter's), the rest of the target, and the rest of the drafter. The two
    rests count as different tokens, so R is slightly too small where unstored tokens have much
    mass.
    """
    ids, p, p_tail = target
    draft_ids, q, q_tail = draft
    position = _positions_among(draft_ids, ids)
    shared = np.where(position < 0, 0.0, np.take_along_axis(p, np.maximum(position, 0), axis=1))
    target_only = np.where(_positions_among(ids, draft_ids) < 0, p, 0.0)
    nothing = np.zeros((len(ids), 1))
    p = np.hstack([shared, target_only, p_tail[:, None], nothing])
    q = np.hstack([q, np.zeros_like(target_only), nothing, q_tail[:, None]])
    return p / p.sum(axis=1, keepdims=True), q / q.sum(axis=1, keepdims=True)


def _positions_among(ids: Integers, among: Integers) -> NDArray[np.intp]:
    """Return the position of each of `ids` (N, K) in its row of `among` (N, M), or -1."""
    rows = np.arange(len(ids))[:, None] * (1 + max(ids.max(), among.max()))
    keys = (ids + rows).ravel()
    row_keys = (among + rows).ravel()
    order = np.argsort(row_keys, kind="stable")
    position = order[np.minimum(np.searchsorted(row_keys, keys, sorter=order), len(row_keys) - 1)]
    return np.where(row_keys[position] == keys, position % among.shape[1], -1).reshape(ids.shape)


def drawn_rates(p: Floats, q: Floats, times: Floats, count: int, races: bool) -> Floats:
    """Return R summed over N steps, (count,), of drafts drawn without replacement.

    `p` and `q` (N, U) are the target's and the drafter's distributions. `times` (N, U), independent
    Exp(1) numbers, decide which tokens are drafted, and in which order. With `races` the target
    chooses its token with the same times (ERSS). Otherwise children are tested in turn (GSS), and
    the exact probabilities of acceptance are summed.
    """
    with np.errstate(divide="ignore"):
        order = np.argsort(times / q, axis=1, kind="stable")[:, :count]
        possible = np.take_along_axis(q, order, axis=1) > 0
        if races:
            winner = np.argmin(times / p, axis=1)
            return np.asarray(((order == winner[:, None]) & possible).sum(axis=0, dtype=np.float64))
    rates = np.zeros(order.shape[1])
    p = p.copy()
    q = q.copy()
    not_accepted = np.ones(len(p))
    rows = np.arange(len(p))
    for index, token in enumerate(order.T):
        drafted = q[rows, token]
        target_mass = p[rows, token]
        accepted = np.divide(
            target_mass, drafted, out=np.zeros_like(target_mass), where=drafted > 0
        )
        accepted = np.where(possible[:, index], np.minimum(accepted, 1.0), 0.0)
        rates[index] = (not_accepted * accepted).sum()
        not_accepted *= 1 - accepted
        residual = np.maximum(p - q, 0)
        residual_mass = residual.sum(axis=1, keepdims=True)
        p = np.divide(
            residual, residual_mass, out=p, where=(residual_mass > 0) & possible[:, [index]]
        )
        q[rows, token] = 0
        rest = q.sum(axis=1, keepdims=True)
        q = np.divide(q, rest, out=q, where=rest > 0)
    return rates

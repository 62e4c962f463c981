"""Acceptance over sibling indices: with which probability the i-th child is the accepted one.

R(i) is the probability that child i is accepted at a node that was reached, and so that those
before it were not. It does not depend on how many children follow. What is left over, 1 - sum R, is
the probability that none is accepted; it belongs to no index.

R is measured on decoded trees (`measured_rates`), or estimated without decoding a tree from what
both models say of the same steps (`greedy_rates`, `drawn_rates`). Tokens that are not stored stand
together as one for each model, which never meet: R is a little too small where they have much mass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .topology import Floats

Integers = NDArray[np.integer[Any]]


def measured_rates(accepted: Integers, children: Integers) -> Floats:
    """Return R over sibling indices, estimated at nodes with any numbers of children.

    The product-limit estimator (Kaplan and Meier 1958): of the nodes at which child i was tested,
    the share that accepted it, times the probability that none before it was. A node with fewer
    children says nothing about those it lacks; it does not count as their rejection.

    Args:
        accepted: (N,) at each node reached, the sibling index of the accepted child, from 1; 0
            where none was.
        children: (N,) how many children the node had.

    Returns:
        (J,) R(1), ..., R(J) for all indices that were tested.

    Raises:
        ValueError: an accepted index is not one of its node's.

    Examples:
        >>> measured_rates(np.array([1, 0, 2, 0]), np.array([2, 2, 2, 1])).tolist()
        [0.25, 0.375]
    """
    wrong = (accepted < 0) | (accepted > children)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"accepted[{at}]={accepted[at]} is not allowed: node {at} has {children[at]} children, "
            "numbered from 1; 0 is none"
        )
    rates: list[float] = []
    left = 1.0
    for index in range(1, int(children.max(initial=0)) + 1):
        tested = (children >= index) & ((accepted == 0) | (accepted >= index))
        if not tested.any():
            break
        share = float((accepted[tested] == index).mean())
        rates.append(left * share)
        left *= 1 - share
    return np.array(rates)


def index_entropy(rates: Floats) -> float:
    """Return H[R] = -sum R log R in nats (equation (3) of arXiv 2504.15475, of one context).

    Where `rates` (J,) leave something over, this is a lower bound of the entropy over all indices.
    """
    positive = rates[rates > 0]
    return float(-(positive * np.log(positive)).sum())


class Stored(NamedTuple):
    """The most probable tokens of N steps under one model.

    Attributes:
        ids: (N, K) by decreasing probability.
        weights: (N, K) proportional to their probabilities.
        tail: (N,) the weight of all other tokens.
    """

    ids: Integers
    weights: Floats
    tail: Floats

    def rows(self, part: slice) -> Stored:
        """Return those of some steps."""
        return Stored(self.ids[part], self.weights[part], self.tail[part])

    def truncated(self, top_p: float, top_k: int) -> Stored:
        """Return them without the tokens that top_k, and then top_p, leave out."""
        weights, tail = self.weights, self.tail
        if top_k:
            weights = np.where(np.arange(weights.shape[1]) < top_k, weights, 0.0)
            tail = np.zeros_like(tail)
        whole = weights.sum(axis=1) + tail
        before = np.cumsum(weights, axis=1) - weights
        kept = before < top_p * whole[:, None]
        rest = weights.sum(axis=1) < top_p * whole
        return Stored(self.ids, np.where(kept, weights, 0.0), np.where(rest, tail, 0.0))


def greedy_rates(ranks: Integers, count: int) -> Floats:
    """Return (count,) R of trees of the drafter's most probable tokens, verified greedily.

    Args:
        ranks: (N,) of the target's argmax under the drafter, from 1.
        count: how many indices.

    Examples:
        >>> greedy_rates(np.array([1, 1, 3, 9]), 3).tolist()
        [0.5, 0.0, 0.25]
    """
    return np.bincount(ranks, minlength=count + 1)[1 : count + 1] / len(ranks)


def aligned(target: Stored, draft: Stored, vocab_size: int) -> tuple[Floats, Floats]:
    """Return the distributions (N, 2 K + 2) of both models over the same tokens.

    The drafter's stored tokens come first, then those that only the target stored (in the place of
    a token that both stored there is none), then the rest of the one, and of the other.
    """
    n = len(target.ids)
    table = np.zeros((n, vocab_size))
    np.put_along_axis(table, target.ids, target.weights, axis=1)
    shared = np.take_along_axis(table, draft.ids, axis=1)
    np.put_along_axis(table, draft.ids, 0.0, axis=1)
    own = np.take_along_axis(table, target.ids, axis=1)
    nothing = np.zeros((n, 1))
    p = np.hstack([shared, own, target.tail[:, None], nothing])
    q = np.hstack([draft.weights, np.zeros_like(own), nothing, draft.tail[:, None]])
    return p / p.sum(axis=1, keepdims=True), q / q.sum(axis=1, keepdims=True)


def drawn_rates(p: Floats, q: Floats, times: Floats, count: int, races: bool) -> Floats:
    """Return (count,) the sums over N steps of R, of drafts drawn without replacement.

    Args:
        p: (N, U) target.
        q: (N, U) draft.
        times: (N, U) independent Exp(1) numbers: which tokens are drafted, and in which order.
        count: how many indices.
        races: whether the target runs the same race (ERSS); else children are tested one after
            the other (GSS), whose acceptance is summed up exactly.
    """
    with np.errstate(divide="ignore"):
        order = np.argsort(times / q, axis=1, kind="stable")[:, :count]
        possible = np.take_along_axis(q, order, axis=1) > 0
        if races:
            winner = np.argmin(times / p, axis=1)
            return np.asarray(((order == winner[:, None]) & possible).sum(axis=0, dtype=np.float64))
    rates = np.zeros(order.shape[1])
    p, q, left = p.copy(), q.copy(), np.ones(len(p))
    rows = np.arange(len(p))
    for index, token in enumerate(order.T):
        drafted, wanted = q[rows, token], p[rows, token]
        accepted = np.divide(wanted, drafted, out=np.zeros_like(wanted), where=drafted > 0)
        accepted = np.where(possible[:, index], np.minimum(accepted, 1.0), 0.0)
        rates[index] = (left * accepted).sum()
        left *= 1 - accepted
        residual = np.maximum(p - q, 0)
        whole = residual.sum(axis=1, keepdims=True)
        p = np.divide(residual, whole, out=p, where=(whole > 0) & possible[:, [index]])
        q[rows, token] = 0
        rest = q.sum(axis=1, keepdims=True)
        q = np.divide(q, rest, out=q, where=rest > 0)
    return rates

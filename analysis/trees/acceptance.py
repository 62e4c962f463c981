"""Acceptance over sibling indices: with which probability the i-th child is the accepted one.

R(i) is the probability that child i is accepted at a node that was reached, and so that those
before it were not. It does not depend on how many children follow. What is left over, 1 - sum R, is
the probability that none is accepted; it belongs to no index.

R is measured on decoded trees (`measured_rates`), or estimated without decoding a tree from what
both models say of the same steps (`greedy_rates`, `drawn_rates`). Tokens that are not stored stand
together as one for each model, which never meet: R is a little too small where they have much mass.

R bounds the tokens that a tree emits (arXiv 2504.15475). The bounds are on the zero-order
prediction (`tree_tokens_per_call`); tokens that are accepted in runs can exceed them. Entropies are
in nats.

A tree of k drafted tokens over an alphabet of L sibling indices ends a call in one of
k (L - 1) + L ways: at each of its k + 1 nodes, the root included, any index that is not a child.
This end has an entropy of G H[R], G being the tokens of the call, and at most the logarithm of
their number. So the bounds hold for any tree of k nodes, not only for tau*.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .topology import Floats

LARGEST_M = 1 << 53  # m beyond this is infinite: the bound differs by rounding only
Integers = NDArray[np.integer[Any]]
# The most probable tokens of N steps under one model: ids (N, K) by decreasing probability, weights
# (N, K) proportional to their probabilities, and the weight (N,) of all other tokens.
Stored = tuple[Integers, Floats, Floats]


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


def truncated(stored: Stored, top_p: float, top_k: int) -> Stored:
    """Return stored tokens without those that top_k, and then top_p, leave out."""
    ids, weights, tail = stored
    if top_k:
        weights = np.where(np.arange(weights.shape[1]) < top_k, weights, 0.0)
        tail = np.zeros_like(tail)
    whole = weights.sum(axis=1) + tail
    before = np.cumsum(weights, axis=1) - weights
    kept = before < top_p * whole[:, None]
    rest = weights.sum(axis=1) < top_p * whole
    return ids, np.where(kept, weights, 0.0), np.where(rest, tail, 0.0)


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


def aligned(target: Stored, draft: Stored) -> tuple[Floats, Floats]:
    """Return the distributions (N, 2 K + 2) of both models over the same tokens.

    The drafter's stored tokens come first, then those that only the target stored (in the place of
    a token that both stored there is none), then the rest of the one, and of the other.
    """
    (ids, p, p_tail), (draft_ids, q, q_tail) = target, draft
    at = places_in_rows(draft_ids, ids)
    shared = np.where(at < 0, 0.0, np.take_along_axis(p, np.maximum(at, 0), axis=1))
    own = np.where(places_in_rows(ids, draft_ids) < 0, p, 0.0)
    nothing = np.zeros((len(ids), 1))
    p = np.hstack([shared, own, p_tail[:, None], nothing])
    q = np.hstack([q, np.zeros_like(own), nothing, q_tail[:, None]])
    return p / p.sum(axis=1, keepdims=True), q / q.sum(axis=1, keepdims=True)


def places_in_rows(ids: Integers, among: Integers) -> NDArray[np.intp]:
    """Return where in its row of `among` (N, M) each of `ids` (N, K) stands, or -1.

    Examples:
        >>> places_in_rows(np.array([[7, 3]]), np.array([[3, 5, 9]])).tolist()
        [[-1, 0]]
    """
    rows = np.arange(len(ids))[:, None] * (1 + max(ids.max(), among.max()))
    wanted, known = (ids + rows).ravel(), (among + rows).ravel()
    order = np.argsort(known, kind="stable")
    at = order[np.minimum(np.searchsorted(known, wanted, sorter=order), len(known) - 1)]
    return np.where(known[at] == wanted, at % among.shape[1], -1).reshape(ids.shape)


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


def index_entropy(rates: Floats) -> float:
    """Return H[R] = -sum R log R in nats (equation (3) of arXiv 2504.15475, of one context).

    Where `rates` (J,) leave something over, this is a lower bound of the entropy over all indices.
    """
    positive = rates[rates > 0]
    return float(-(positive * np.log(positive)).sum())


def tunstall_upper(entropy: float, indices: int, k: int, tight: bool = True) -> float:
    """Return the bound of Theorem 4.2 on the tokens of a call, log(k (L - 1) + L) / H[R].

    It is attained where all ends are equally probable: R = 1/L, every node within some depth.

    Args:
        entropy: H[R] over all L indices, whose R has the sum 1.
        indices: L; the seed takes the size of the vocabulary.
        k: drafted tokens.
        tight: equation (29); False gives equation (5), (log L + log(k + 1)) / H[R].

    Examples:
        >>> round(tunstall_upper(math.log(2), 2, 6), 9)
        3.0
    """
    return _ratio(_log_ends(indices, k, tight), entropy)


def residual_upper(rates: Floats, k: int, m: int, tight: bool = False) -> float:
    """Return the bound of Lemma 4.3 on the tokens of a call.

    (log(d + m) + log(k + 1)) / (H[R(1), ..., R(d), p_res] + p_res log m): what the d indices of a
    tree leave over, p_res, is spread evenly over m more. The tree does not see it, so that every
    m of at least 1 gives a bound, also one below the p_res / min R that the lemma asks for.

    Args:
        rates: (d,) R of the sibling indices that the tree has.
        k: drafted tokens.
        m: over how many indices the rest is spread, at least 1.
        tight: count the ends as in equation (29), log((k + 1)(d + m) - k).
    """
    rest = _rest(rates)
    if rest == 0:
        return tunstall_upper(index_entropy(rates), len(rates), k, tight)
    spread = index_entropy(np.append(rates, rest)) + rest * math.log(m)
    return _ratio(_log_ends(len(rates) + m, k, tight), spread)


def least_residual_upper(rates: Floats, k: int, tight: bool = False) -> tuple[float, float]:
    """Return the m at which `residual_upper` is least, and its value there.

    The bound falls until some m and grows after it, so the sign of its slope finds this m. Where
    H[R(1), ..., R(d), p_res] <= p_res log(k + 1) it falls for ever: m is inf, and the bound
    1 / p_res, as every call ends with probability p_res at each token.

    Args:
        rates: (d,) R of the sibling indices that the tree has.
        k: drafted tokens.
        tight: count the ends as in equation (29).
    """
    rest = _rest(rates)
    if rest == 0:
        return 1, residual_upper(rates, k, 1, tight)
    known = index_entropy(np.append(rates, rest))
    offset = len(rates) - (k / (k + 1) if tight else 0)

    def rises(m: int) -> bool:
        """Whether (log(m + offset) + log(k + 1)) / (known + rest log m) grows at m."""
        spread = known + rest * math.log(m)
        return m / (m + offset) * spread >= rest * (math.log(m + offset) + math.log(k + 1))

    if known <= rest * math.log(k + 1) or not rises(LARGEST_M):
        return math.inf, 1 / rest
    low, high = 0, LARGEST_M  # it rises at `high`, and at no m up to `low`
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if rises(middle) else (middle, high)
    return min(
        ((m, residual_upper(rates, k, m, tight)) for m in (max(low, 1), high)),
        key=lambda found: found[1],
    )


def _log_ends(indices: int, k: int, tight: bool) -> float:
    return math.log(k * (indices - 1) + indices) if tight else math.log(indices) + math.log(k + 1)


def _rest(rates: Floats) -> float:
    return max(0.0, 1 - math.fsum(rates))


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else math.inf

"""Acceptance over sibling indices: the probability that the i-th child is the accepted one.

R(i) is the probability that child i is accepted at a node that was reached, which implies that the
children before it were not. It does not depend on the number of later children. The rest,
1 - sum R, is the probability that no child is accepted; it belongs to no index.

R is measured on decoded trees (`measured_rates`), or estimated from both models' distributions at
the same steps (`greedy_rates`, `drawn_rates`).

R bounds the tokens that a tree emits (arXiv 2504.15475). The bounds hold for the zero-order
prediction (`tree_tokens_per_call`); correlated acceptance can exceed them. Entropies are in nats.
A tree of k drafted tokens over an alphabet of L sibling indices ends a call in one of
k (L - 1) + L ways: at each of its k + 1 nodes, the root included, with any index that is not a
child. The entropy of the end is G H[R], G being the expected tokens of the call, and is at most the
logarithm of the number of ways. So the bounds hold for any tree of k nodes, not only for tau*.

H[R] (3) of independent drafts in one context (`index_entropies`) is the bridge between KL and
tokens per call: it is at least KL(p || q) (6), for races at most KL + log(KL + 1) + 4 in bits (8),
and bounds the tokens from above (5). Trees draft without replacement, where the index can have less
entropy. Of its infinitely many values the first `EXACT` are exact; later ones are put together in
blocks of nearly constant probability.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..topk import Floats

LARGEST_M = 1 << 53  # m beyond this is infinite: the bound differs by rounding only
EXACT = 64  # indices of drafts
BLOCKS = 1000  # of all later ones
UNLIKELY = 1e-12  # probability of what is left out
BIN = 0.005  # in log s: tokens whose s differ by less are counted together
Integers = NDArray[np.integer[Any]]
# The most probable tokens of N steps under one model: ids (N, K) by decreasing probability, weights
# (N, K) proportional to their probabilities, and the weight (N,) of all other tokens.
Stored = tuple[Integers, Floats, Floats]


def measured_rates(accepted: Integers, children: Integers) -> Floats:
    """Return R over sibling indices, estimated from nodes with varying numbers of children.

    The product-limit estimator (Kaplan and Meier 1958): of the nodes at which child i was tested,
    the share that accepted it, times the probability that none before it was accepted. A node with
    fewer children carries no information on the missing ones; it does not count as a rejection.
    `accepted` (N,) is the sibling index of the accepted child of each node reached, from 1, 0 if
    none was; `children` (N,) their number.

    >>> measured_rates(np.array([1, 0, 2, 0]), np.array([2, 2, 2, 1])).tolist()
    [0.25, 0.375]
    """
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


def greedy_rates(ranks: Integers, count: int) -> Floats:
    """Return R, (count,), of trees of the drafter's most probable tokens, verified greedily.

    `ranks` (N,) are those of the target's argmax under the drafter, from 1.
    """
    return np.bincount(ranks, minlength=count + 1)[1 : count + 1] / len(ranks)


def aligned(target: Stored, draft: Stored) -> tuple[Floats, Floats]:
    """Return the distributions (N, 2 K + 2) of both models over the same tokens.

    The columns are the drafter's stored tokens; those that only the target stored (0 for a token
    that both stored); all other tokens of the target as one; all others of the drafter as one. The
    two rests never match, so R is slightly too small where unstored tokens have much mass.
    """
    (ids, p, p_tail), (draft_ids, q, q_tail) = target, draft
    place = _places(draft_ids, ids)
    shared = np.where(place < 0, 0.0, np.take_along_axis(p, np.maximum(place, 0), axis=1))
    own = np.where(_places(ids, draft_ids) < 0, p, 0.0)
    nothing = np.zeros((len(ids), 1))
    p = np.hstack([shared, own, p_tail[:, None], nothing])
    q = np.hstack([q, np.zeros_like(own), nothing, q_tail[:, None]])
    return p / p.sum(axis=1, keepdims=True), q / q.sum(axis=1, keepdims=True)


def _places(ids: Integers, among: Integers) -> NDArray[np.intp]:
    """Return the position of each of `ids` (N, K) in its row of `among` (N, M), or -1."""
    rows = np.arange(len(ids))[:, None] * (1 + max(ids.max(), among.max()))
    keys, row_keys = (ids + rows).ravel(), (among + rows).ravel()
    order = np.argsort(row_keys, kind="stable")
    place = order[np.minimum(np.searchsorted(row_keys, keys, sorter=order), len(row_keys) - 1)]
    return np.where(row_keys[place] == keys, place % among.shape[1], -1).reshape(ids.shape)


def drawn_rates(p: Floats, q: Floats, times: Floats, count: int, races: bool) -> Floats:
    """Return the sums of R over N steps, (count,), of drafts drawn without replacement.

    `p` and `q` (N, U) are target and draft; `times` (N, U), independent Exp(1) numbers, decide the
    drafted tokens and their order. With `races` the target runs the same race (ERSS). Otherwise
    children are tested in turn (GSS), and their acceptance probabilities are summed exactly.
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
        drafted, target_mass = q[rows, token], p[rows, token]
        accepted = np.divide(
            target_mass, drafted, out=np.zeros_like(target_mass), where=drafted > 0
        )
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
    """Return H[R] = -sum R log R in nats (equation (3) of arXiv 2504.15475, for one context).

    If `rates` sum to less than 1, this is a lower bound of the entropy over all indices.
    """
    positive = rates[rates > 0]
    return float(-(positive * np.log(positive)).sum())


def tunstall_upper(entropy: float, indices: int, k: int, tight: bool = True) -> float:
    """Return the bound of Theorem 4.2 on the tokens per call, log(k (L - 1) + L) / H[R].

    It is attained where all ends are equally probable: R = 1/L, every node within some depth. L is
    the number of `indices`, over all of which H[R] is (arXiv 2504.15475 takes the vocabulary size),
    k the drafted tokens. This is equation (29), without `tight` (5): (log L + log(k + 1)) / H[R].

    >>> round(tunstall_upper(math.log(2), 2, 6), 9)
    3.0
    """
    return _ratio(_log_ends(indices, k, tight), entropy)


def residual_upper(rates: Floats, k: int, m: int, tight: bool = False) -> float:
    """Return the bound of Lemma 4.3 on the tokens per call of k drafted tokens.

    (log(d + m) + log(k + 1)) / (H[R(1), ..., R(d), p_res] + p_res log m): the probability p_res
    that the (d,) indices of `rates` leave over is spread evenly over m >= 1 more. The tree does not
    use them, so every m gives a bound, also below the p_res / min R of the lemma. `tight` counts
    the ends as in equation (29), log((k + 1)(d + m) - k).
    """
    rest = _rest(rates)
    if rest == 0:
        return tunstall_upper(index_entropy(rates), len(rates), k, tight)
    spread = index_entropy(np.append(rates, rest)) + rest * math.log(m)
    return _ratio(_log_ends(len(rates) + m, k, tight), spread)


def least_residual_upper(rates: Floats, k: int, tight: bool = False) -> tuple[float, float]:
    """Return the m that minimises `residual_upper`, and the bound there.

    The bound falls up to some m and grows after it, so the sign of its slope locates this m. Where
    H[R(1), ..., R(d), p_res] <= p_res log(k + 1) it always falls: m is inf, and the bound is
    1 / p_res, as a call ends with probability p_res at each token.
    """
    rest = _rest(rates)
    if rest == 0:
        return 1, residual_upper(rates, k, 1, tight)
    entropy = index_entropy(np.append(rates, rest))
    offset = len(rates) - (k / (k + 1) if tight else 0)

    def rises(m: int) -> bool:
        """Whether (log(m + offset) + log(k + 1)) / (entropy + rest log m) grows at m."""
        spread = entropy + rest * math.log(m)
        return m / (m + offset) * spread >= rest * (math.log(m + offset) + math.log(k + 1))

    if entropy <= rest * math.log(k + 1) or not rises(LARGEST_M):
        return math.inf, 1 / rest
    first = bisect_left(range(1, LARGEST_M), True, key=rises) + 1  # where the bound rises
    return min(
        ((m, residual_upper(rates, k, m, tight)) for m in (max(first - 1, 1), first)),
        key=lambda pair: pair[1],
    )


def _log_ends(indices: int, k: int, tight: bool) -> float:
    return math.log(k * (indices - 1) + indices) if tight else math.log(indices) + math.log(k + 1)


def _rest(rates: Floats) -> float:
    return max(0.0, 1 - math.fsum(rates))


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else math.inf


def index_entropies(log_p: Floats, log_q: Floats) -> tuple[float, float, float]:
    """Return KL(p || q) and H[R] of greedy sampling and of races, from (V,) log-probabilities.

    All are infinite where the target has a token that the drafter never drafts.

    Greedy (GSS, the greedy rejection sampling of Harsha et al.): index i accepts S_(i-1) - S_i,
    with S_i = sum of max(0, p - L_i q), L_0 = 0 and L_(i+1) = L_i + S_i.

    Races (ERSS, the Poisson functional representation of Li and El Gamal): the winner w is drawn
    from p, and its index is geometric with success 1 / sum_j max(p_j, q_j p_w / q_w).
    """
    p, q = np.exp(log_p), np.exp(log_q)
    if p[q == 0].sum() > UNLIKELY:
        return math.inf, math.inf, math.inf
    both, whole = (p > 0) & (q > 0), q.sum()
    order = np.argsort(log_q[both] - log_p[both])  # by decreasing p / q
    p, q = p[both][order], q[both][order]
    log_ratio = (log_p[both] - log_q[both])[order]
    kl = float(p @ log_ratio)
    ratio, p_above, q_above = np.exp(log_ratio), np.cumsum(p), np.cumsum(q)
    return (
        max(kl, 0.0),
        _greedy(ratio, p_above, q_above),
        _races(p, 1 / (p_above + ratio * (whole - q_above))),
    )


def _greedy(ratio: Floats, p_above: Floats, q_above: Floats) -> float:
    p_above, q_above = np.append(0.0, p_above), np.append(0.0, q_above)

    def left(level: Any) -> Any:
        """S at a level L."""
        above = np.searchsorted(-ratio, -np.asarray(level))  # tokens with p / q > L
        return np.maximum(p_above[above] - level * q_above[above], 0.0)

    level, remaining = 0.0, [1.0]
    while len(remaining) <= EXACT and remaining[-1] > UNLIKELY:
        level += remaining[-1]
        remaining.append(float(left(level)))
    masses = -np.diff(remaining)
    if remaining[-1] <= UNLIKELY:
        return _entropy(masses, np.ones_like(masses))
    levels = np.exp(np.linspace(math.log(level), math.log(ratio[0]), BLOCKS + 1))
    rest = left(levels)
    steps = 2 * np.diff(levels) / (rest[1:] + rest[:-1]).clip(min=UNLIKELY)  # dL / di = S
    return _entropy(np.append(masses, -np.diff(rest)), np.append(np.ones_like(masses), steps))


def _races(p: Floats, success: Floats) -> float:
    log_success = np.log(success)
    group = ((log_success - log_success.min()) / BIN).astype(np.intp)
    weight = np.bincount(group, p)
    mean = np.bincount(group, p * log_success)[weight > 0] / weight[weight > 0]
    weight, log_fail = weight[weight > 0], np.log1p(-np.exp(mean).clip(max=1 - 1e-15))
    last = max(2.0 * EXACT, math.log(UNLIKELY) / log_fail.max())
    later = np.exp(np.linspace(math.log(EXACT), math.log(last), BLOCKS + 1))[1:]
    edges = np.append(np.arange(EXACT + 1.0), later)
    remaining = np.exp(edges[:, None] * log_fail) @ weight
    return _entropy(-np.diff(remaining), np.diff(edges))


def _entropy(masses: Floats, widths: Floats) -> float:
    """Return the entropy of an index whose blocks of some widths have masses, even within each."""
    seen = masses > 0
    return float(-(masses[seen] * np.log(masses[seen] / widths[seen])).sum())


def races_entropy_upper(kl: float) -> float:
    """Return the bound (8) on H[R] of races in nats: KL + log(KL / log 2 + 1) + 4 log 2."""
    return kl + math.log1p(kl / math.log(2)) + 4 * math.log(2)

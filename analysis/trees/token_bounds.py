"""Upper bounds on a tree's tokens per call, from acceptance over sibling indices.

They are those of arXiv 2504.15475, and bound the zero-order prediction (`tree_tokens_per_call`).
With correlated acceptance a tree can exceed them. Entropies are in nats.

Take a tree of k drafted tokens over L sibling indices. A call stops at one of k + 1 nodes, the root
included, at an index that has no child there: it has k (L - 1) + L possible endings. The entropy of
the ending is G H[R], with G the expected tokens of the call, and it is at most the logarithm of the
number of endings. So the bounds hold for any tree of k nodes, not only for tau*.
"""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np

from ..topk import Floats

LARGEST_M = 1 << 53  # a larger m is taken as infinite: the bound differs by rounding only


def index_entropy(rates: Floats) -> float:
    """Return H[R] = -sum R log R in nats (equation (3) of arXiv 2504.15475, for one context).

    If `rates` sum to less than 1, this is a lower bound of the entropy over all indices.
    """
    positive = rates[rates > 0]
    return float(-(positive * np.log(positive)).sum())


def tunstall_upper(entropy: float, indices: int, k: int, tight: bool) -> float:
    """Return the bound of Theorem 4.2 on the tokens per call, log(k (L - 1) + L) / H[R].

    Equality holds where all endings are equally likely: R = 1/L, and a full tree. L is the number
    of `indices`, which H[R] must cover (arXiv 2504.15475 takes the vocabulary size), k the drafted
    tokens. This is equation (29), without `tight` (5): (log L + log(k + 1)) / H[R].

    >>> round(tunstall_upper(math.log(2), 2, 6, tight=True), 9)
    3.0
    """
    return _ratio(_log_endings(indices, k, tight), entropy)


def residual_upper(rates: Floats, k: int, m: int, tight: bool) -> float:
    """Return the bound of Lemma 4.3 on the tokens per call of k drafted tokens.

    The bound is (log(d + m) + log(k + 1)) / (H[R(1), ..., R(d), p_res] + p_res log m). Here
    p_res = 1 - sum R is the probability that no index of `rates` (d,) is accepted. It is spread
    evenly over m >= 1 further indices, which the tree does not use. So any m gives a valid bound;
    the lemma's condition m >= p_res / min R is not needed. `tight` counts the endings as in
    equation (29), log((k + 1)(d + m) - k).
    """
    rest = _rest(rates)
    if rest == 0:
        return tunstall_upper(index_entropy(rates), len(rates), k, tight)
    spread = index_entropy(np.append(rates, rest)) + rest * math.log(m)
    return _ratio(_log_endings(len(rates) + m, k, tight), spread)


def least_residual_upper(rates: Floats, k: int, tight: bool) -> tuple[float, float]:
    """Return the m that minimises `residual_upper`, and the bound there.

    The bound falls up to some m and grows after it, so m is found by bisection on the sign of the
    slope. Where H[R(1), ..., R(d), p_res] <= p_res log(k + 1) the bound falls for all m: then m is
    inf, and the bound is 1 / p_res, as a call ends with probability p_res at each token.
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
    first = bisect_left(range(1, LARGEST_M), True, key=rises) + 1  # least m at which it rises
    return min(
        ((m, residual_upper(rates, k, m, tight)) for m in (max(first - 1, 1), first)),
        key=lambda pair: pair[1],
    )


def _log_endings(indices: int, k: int, tight: bool) -> float:
    if tight:
        return math.log(k * (indices - 1) + indices)
    return math.log(indices) + math.log(k + 1)


def _rest(rates: Floats) -> float:
    return max(0.0, 1 - math.fsum(rates))


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else math.inf

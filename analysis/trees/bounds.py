"""Bounds on the tokens that a draft tree emits, and on its acceptance (arXiv 2504.15475).

Those on tokens are about the zero-order prediction (`tree_tokens_per_call`). Tokens that are
accepted in runs can exceed them. Entropies and divergences are in nats.

A tree of k drafted tokens over an alphabet of L sibling indices ends a call in one of
k (L - 1) + L ways: at each of its k + 1 nodes, the root included, any index that is not a child.
This end has an entropy of G H[R], G being the tokens of the call, and at most the logarithm of
their number. So the bounds hold for any tree of k nodes, not only for tau*.
"""

from __future__ import annotations

import math

import numpy as np

from .acceptance import index_entropy
from .topology import Floats

LARGEST_M = 1 << 53  # m beyond this is infinite: the bound differs by rounding only


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

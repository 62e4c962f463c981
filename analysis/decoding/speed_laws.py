"""How fast speculative decoding should be: tokens per call, best draft length, break-even.

Symbols: a is the acceptance rate of a drafted token, gamma the draft length, rho = c_q / c_p the
cost of a drafted token over that of a token of the target alone, both with the pass and the choice
of the token. The formulas take every test to succeed independently with the same probability a.

Drafting pays where tokens_per_call(a, gamma) > costs[gamma] / costs[0], a call of gamma drafted
tokens taking costs[gamma] and one of the target alone costs[0]. The left side grows with a, so
there is a least acceptance. In a batch all texts draft as many tokens and are verified in one
pass: the same holds with the costs of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
PRECISION = 1e-12  # of an acceptance rate


def tokens_per_call(a: float, gamma: int) -> float:
    """Return the expected tokens of a target call, (1 - a^(gamma+1)) / (1 - a).

    They are the accepted ones and the corrected or bonus token (Leviathan et al. 2023, eq. 1).

    Args:
        a: in [0, 1]; at 1 the limit gamma + 1 is returned.
        gamma: drafted tokens a call, at least 0.

    Raises:
        ValueError: a or gamma is out of range.

    Examples:
        >>> round(tokens_per_call(0.8, 5), 2)
        3.69
    """
    if not 0 <= a <= 1:
        raise ValueError(f"a={a} is not allowed: an acceptance rate is in [0, 1]")
    if gamma < 0:
        raise ValueError(f"gamma={gamma} is not allowed: give an integer of at least 0")
    return math.fsum(a**power for power in range(gamma + 1))


def answer_seconds(tokens: int, rates: Sequence[float], costs: Sequence[float]) -> Floats:
    """Return the expected seconds of the calls that emit 0, 1, ..., `tokens` tokens.

    S(0) = 0 and S(m) = c(g) + sum over k of P(k) S(m - 1 - k), where g = min(gamma, m - 1) tokens
    are drafted, as no answer takes more, and P(k) = a_1 ... a_k (1 - a_(k+1)), without the last
    factor at k = g, is the probability that k of them are accepted.

    Args:
        tokens: of the longest answer, those that calls emit.
        rates: (gamma,) acceptance a_d of the d-th token of a draft, once those before it are.
        costs: seconds of a call with 0, 1, ..., gamma drafted tokens.

    Returns:
        (tokens + 1,) seconds S(m).

    Examples:
        >>> answer_seconds(3, [0.5], [1.0, 1.2]).round(2).tolist()  # S(3) = 1.2 + (S(2) + S(1)) / 2
        [0.0, 1.0, 1.7, 2.55]
    """
    reached = np.cumprod([1.0, *rates])  # a_1 ... a_k
    seconds = np.zeros(tokens + 1)
    for left in range(1, tokens + 1):
        drafted = min(len(rates), left - 1)
        share = reached[: drafted + 1] - np.append(reached[1 : drafted + 1], 0.0)
        after = seconds[left - 1 - np.arange(drafted + 1)]
        seconds[left] = costs[drafted] + share @ after
    return seconds


def optimal_draft_length(a: float, costs: Sequence[float]) -> tuple[int, float]:
    """Return the draft length with the largest speedup, and this speedup.

    The speedup at gamma is `tokens_per_call`(a, gamma) / (costs[gamma] / costs[0]): costs as
    measured, since a verification of more tokens costs more. Of equal ones the shortest is taken.

    Args:
        a: acceptance rate.
        costs: seconds of a call with 0, 1, 2, ... drafted tokens; of 0, the target alone.

    Returns:
        A draft length below len(costs), and its speedup; 0 and 1 say that drafting does not pay.

    Examples:
        >>> optimal_draft_length(0.8, [1 + 0.05 * gamma for gamma in range(65)])[0]
        8
    """
    tokens = [tokens_per_call(a, gamma) for gamma in range(len(costs))]
    speedups = np.array(tokens) * costs[0] / np.asarray(costs)
    best = int(np.argmax(speedups))
    return best, float(speedups[best])


def break_even(costs: Sequence[float]) -> tuple[int, float]:
    """Return the draft length that needs the least acceptance to pay, and this acceptance.

    Args:
        costs: seconds of a call with 0, 1, 2, ... drafted tokens, above 0; of 0, the target alone.

    Returns:
        A length below len(costs), of equal ones the shortest, and the least acceptance rate at
        which its drafts are no slower than none; 0 and NaN where no length pays even if all of its
        tokens are accepted.

    Examples:
        >>> gamma, a = break_even([1.0, 1.4, 1.5])  # 1 + a + a^2 = 1.5
        >>> gamma, round(a, 4)
        (2, 0.366)
    """

    def least(gamma: int) -> float:
        return least_rate(lambda a: tokens_per_call(a, gamma) >= costs[gamma] / costs[0], PRECISION)

    paying = [gamma for gamma in range(1, len(costs)) if costs[gamma] / costs[0] <= gamma + 1]
    a, gamma = min(((least(gamma), gamma) for gamma in paying), default=(math.nan, 0))
    return gamma, a


def least_rate(pays: Callable[[float], bool], precision: float) -> float:
    """Return the least acceptance rate that pays, by halving; 1 pays, and all above one that does.

    It is 0 where 0 pays.
    """
    low, high = 0.0, 1.0
    if pays(low):
        return low
    while high - low > precision:
        middle = (low + high) / 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high

"""How fast speculative decoding should be: tokens per call, predicted speedups, draft length.

Symbols: a is the acceptance rate of a drafted token, gamma the draft length, rho = c_q / c_p the
cost of a draft pass over that of a target pass. The formulas take every test to succeed
independently with the same probability a.
"""

from __future__ import annotations

import math


def tokens_per_call(a: float, gamma: int) -> float:
    """Return the expected tokens of a target call, (1 - a^(gamma+1)) / (1 - a).

    They are the accepted ones and the corrected or bonus token (Leviathan et al. 2023, eq. 1).

    Args:
        a: in [0, 1]; at 1 the limit gamma + 1 is returned.
        gamma: drafted tokens a call, at least 0.

    Raises:
        ValueError: a or gamma is out of range.

    Example:
        >>> round(tokens_per_call(0.8, 5), 2)
        3.69
    """
    if not 0 <= a <= 1:
        raise ValueError(f"a={a} is not allowed: an acceptance rate is in [0, 1]")
    if gamma < 0:
        raise ValueError(f"gamma={gamma} is not allowed: give an integer of at least 0")
    return math.fsum(a**power for power in range(gamma + 1))


def speedup(k: float, gamma: int, rho: float) -> float:
    """Return k / (1 + gamma rho), the speedup when a verification costs as much as a target pass.

    Args:
        k: tokens per target call.
        gamma: draft length.
        rho: cost of a draft pass over that of a target pass.
    """
    return k / (1.0 + gamma * rho)


def measured_cost_speedup(k: float, c_p: float, c_draft: float, c_verify: float) -> float:
    """Return k c_p / (c_draft + c_verify), the speedup from the costs as measured.

    Args:
        k: tokens per target call.
        c_p: seconds of a target pass over one token.
        c_draft: seconds of drafting, a call.
        c_verify: seconds of the verifying target pass.
    """
    return k * c_p / (c_draft + c_verify)


def optimal_draft_length(a: float, rho: float, limit: int = 64) -> int:
    """Return the draft length at which `speedup` of `tokens_per_call` is largest.

    Going from gamma to gamma + 1 pays iff a^(gamma+1) (1 + gamma rho) > rho (1 + ... + a^gamma).
    The difference of the two sides falls in gamma, so the first maximum is the global one.

    Args:
        a: acceptance rate.
        rho: above 0; with free drafts the answer is `limit` unless a is 0.
        limit: the largest draft length considered.

    Returns:
        A draft length in [0, limit]; 0 says that drafting does not pay.

    Example:
        >>> optimal_draft_length(0.8, 0.05)
        8
    """

    def at(gamma: int) -> float:
        return speedup(tokens_per_call(a, gamma), gamma, rho)

    best = 0
    while best < limit and at(best + 1) > at(best):
        best += 1
    return best

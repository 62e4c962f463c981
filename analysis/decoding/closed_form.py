"""How fast speculative decoding should be: tokens per call, predicted speedups, draft length.

Symbols: a is the acceptance rate of a drafted token, gamma the draft length, rho = c_q / c_p the
cost of a drafted token over that of a token of the target alone, both with the pass and the choice
of the token. The formulas take every test to succeed independently with the same probability a.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


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


def optimal_draft_length(a: float, costs: Sequence[float]) -> tuple[int, float]:
    """Return the draft length with the largest speedup, and this speedup.

    The speedup at gamma is `tokens_per_call`(a, gamma) / (costs[gamma] / costs[0]): costs as
    measured, since a verification of more tokens costs more. Of equal ones the shortest is taken.

    Args:
        a: acceptance rate.
        costs: seconds of a call with 0, 1, 2, ... drafted tokens; of 0, the target alone.

    Returns:
        A draft length below len(costs), and its speedup; 0 and 1 say that drafting does not pay.

    Example:
        >>> optimal_draft_length(0.8, [1 + 0.05 * gamma for gamma in range(65)])[0]
        8
    """
    tokens = [tokens_per_call(a, gamma) for gamma in range(len(costs))]
    speedups = np.array(tokens) * costs[0] / np.asarray(costs)
    best = int(np.argmax(speedups))
    return best, float(speedups[best])

"""The speed-up of speculative decoding in closed form, from one acceptance rate and one cost ratio.

Symbols: a is the acceptance rate of a drafted token, gamma the draft length, rho the cost of a
drafted token over that of a token of the target alone.
"""

from __future__ import annotations

import math

from scipy.optimize import brentq


def tokens_per_call(a: float, gamma: int) -> float:
    """Return the expected tokens per target call, (1 - a^(gamma+1)) / (1 - a).

    They are the accepted ones and the corrected or bonus token (Leviathan et al. 2023, eq. 1); at
    a = 1 the limit gamma + 1.

    >>> round(tokens_per_call(0.8, 5), 2)
    3.69
    """
    return math.fsum(a**power for power in range(gamma + 1))


def formula_speedup(a: float, gamma: int, rho: float) -> float:
    """Return S = `tokens_per_call`(a, gamma) / (1 + gamma rho).

    It assumes one acceptance rate a at every draft position, independent tests, a verification of a
    whole draft that costs as much as a token of the target alone, and no prefill.

    >>> round(formula_speedup(0.9, 5, 0.5), 2), round(formula_speedup(0.75, 5, 0.02), 2)
    (1.34, 2.99)
    """
    return tokens_per_call(a, gamma) / (1 + gamma * rho)


def formula_length(a: float, rho: float) -> float:
    """Return gamma*, the draft length of the largest `formula_speedup`, which need not be whole.

    The root of -a^(g+1) log(a) (1 + g rho) = rho (1 - a^(g+1)), whose sides differ by a falling
    function of g; 0 where already g = 0 is beyond it, inf where S grows forever.

    >>> round(formula_length(0.8, 0.05), 2), formula_length(0.1, 0.5), formula_length(1.0, 0.1)
    (7.86, 0.0, inf)
    """

    def slope(g: float) -> float:
        power: float = a ** (g + 1)
        return -power * math.log(a) * (1 + g * rho) - rho * (1 - power)

    if rho <= 0 or a >= 1:
        return math.inf if a > 0 else 0.0
    if a <= 0 or slope(0.0) <= 0:
        return 0.0
    end = 1.0
    while slope(end) > 0:
        end *= 2
    return float(brentq(slope, 0.0, end, xtol=1e-12, rtol=1e-14))

"""The draft length that is fastest, from acceptance by position and the cost of a call.

a_i is the acceptance rate at position i of a draft, given that the positions before it were
accepted; gamma is the draft length. A cost is in passes of the target alone over one token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..topk import Floats


def expected_tokens(rates: Sequence[float], longest: int) -> Floats:
    """Return the expected tokens per call for draft lengths 0 to `longest`.

    L(gamma) = 1 + a_1 + a_1 a_2 + ... + a_1 ... a_gamma: the accepted tokens and the target's own.
    Positions beyond the last of the `rates`, of which there is at least one, have that rate. With
    equal rates this is `tokens_per_call`.

    >>> expected_tokens([0.5, 0.4], 3).round(2).tolist()
    [1.0, 1.5, 1.7, 1.78]
    """
    beyond = max(longest - len(rates), 0)
    known = np.array([*rates, *[rates[-1]] * beyond], dtype=np.float64)[:longest]
    return np.append(1.0, 1.0 + np.cumsum(np.cumprod(known)))


def costs_by_length(measured: Mapping[int, float], longest: int) -> Floats:
    """Return the cost of a call for draft lengths 0 to `longest`, from those that were measured.

    A pass without a draft costs 1. Between measured lengths the cost is linear; beyond the longest
    a drafted token costs as much as it does on average there.

    >>> costs_by_length({2: 1.2}, 3).round(2).tolist()
    [1.0, 1.1, 1.2, 1.3]
    """
    known = {0: 1.0, **measured}
    lengths = sorted(known)
    costs = [known[length] for length in lengths]
    last = lengths[-1]
    slope = (costs[-1] - 1.0) / last if last else 0.0
    wanted = np.arange(longest + 1)
    beyond = np.maximum(wanted - last, 0) * slope
    interpolated: Floats = np.interp(wanted, lengths, costs) + beyond
    return interpolated


def speed_by_length(rates: Sequence[float], costs: Sequence[float] | Floats) -> Floats:
    """Return the speed over the target alone, L(gamma) / costs[gamma], for each cost given.

    Without prefill. `formula_speedup` is the special case of equal rates and a linear cost.
    """
    speeds: Floats = expected_tokens(rates, len(costs) - 1) / np.asarray(costs)
    return speeds


def best_length(rates: Sequence[float], costs: Sequence[float] | Floats) -> int:
    """Return the draft length of the largest `speed_by_length`; 0 where no draft pays.

    The shortest, where several are equally fast.

    >>> best_length([0.98, 0.87, 0.60, 0.21], costs_by_length({4: 1.4}, 5))
    3
    """
    return int(np.argmax(speed_by_length(rates, costs)))


def drafting_pass_cost(average: float, share: float) -> float:
    """Return the cost of a pass with a draft, from the average over all passes.

    Passes without a draft cost 1, so it is (average - (1 - f)) / f, where f is the `share` of the
    passes that have a draft. NaN where no pass has one.

    >>> drafting_pass_cost(1.25, 0.5), drafting_pass_cost(1.25, 1.0)
    (1.5, 1.25)
    """
    return (average - (1.0 - share)) / share if share else math.nan

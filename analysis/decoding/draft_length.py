"""The draft length that is fastest, from acceptance by position and the cost of a call.

a_i is the acceptance rate at position i of a draft, given that the positions before it were
accepted; gamma is the draft length. A cost is in passes of the target alone over one token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..topk import Floats


def expected_tokens(rates: Sequence[float] | Floats, longest: int) -> Floats:
    """Return the expected tokens per call for draft lengths 0 to `longest`, (..., longest + 1).

    L(gamma) = 1 + a_1 + a_1 a_2 + ... + a_1 ... a_gamma: the accepted tokens and the target's own.
    The `rates` are (..., R), R at least 1; positions beyond the last have its rate. With equal
    rates this is `tokens_per_call`.

    >>> expected_tokens([0.5, 0.4], 3).round(2).tolist()
    [1.0, 1.5, 1.7, 1.78]
    """
    known = np.asarray(rates, dtype=np.float64)
    beyond = np.repeat(known[..., -1:], max(longest - known.shape[-1], 0), axis=-1)
    by_position = np.concatenate([known, beyond], axis=-1)[..., :longest]
    accepted = np.cumsum(np.cumprod(by_position, axis=-1), axis=-1)
    none = np.zeros((*known.shape[:-1], 1))
    return 1.0 + np.concatenate([none, accepted], axis=-1)


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
    between = np.interp(np.arange(lengths[-1] + 1), lengths, costs)
    return extended_costs(between, longest)


def extended_costs(costs: Floats, longest: int) -> Floats:
    """Return costs (..., longest + 1), given those of lengths 0 to the longest measured.

    Beyond it a drafted token costs as much as it does on average there.

    >>> extended_costs(np.array([1.0, 1.1, 1.2]), 4).round(2).tolist()
    [1.0, 1.1, 1.2, 1.3, 1.4]
    """
    last = costs.shape[-1] - 1
    slope = (costs[..., -1:] - 1.0) / max(last, 1)
    beyond = costs[..., -1:] + slope * np.arange(1, max(longest - last, 0) + 1)
    return np.concatenate([costs, beyond], axis=-1)[..., : longest + 1]


def between_loads(load: float, below: tuple[float, Floats], above: tuple[float, Floats]) -> Floats:
    """Return values (...) at a load, from those at a load below and at one above.

    Linear in the logarithm of the load: the cost of a step rises from the load at which a pass is
    no longer bound by memory, and levels out where it is bound by computing.

    >>> between_loads(4, (1, np.array([1.0, 1.2])), (16, np.array([2.0, 2.2]))).round(2).tolist()
    [1.5, 1.7]
    """
    weight = math.log(load / below[0]) / math.log(above[0] / below[0])
    return below[1] + weight * (above[1] - below[1])


def speed_by_length(rates: Sequence[float] | Floats, costs: Sequence[float] | Floats) -> Floats:
    """Return the speed over the target alone, L(gamma) / costs[gamma], for each cost given.

    Without prefill. `formula_speedup` is the special case of equal rates and a linear cost.
    """
    cost = np.asarray(costs)
    speeds: Floats = expected_tokens(rates, cost.shape[-1] - 1) / cost
    return speeds


def best_length(rates: Sequence[float], costs: Sequence[float] | Floats) -> int:
    """Return the draft length of the largest `speed_by_length`; 0 where no draft pays.

    The shortest, where several are equally fast.

    >>> best_length([0.98, 0.87, 0.60, 0.21], costs_by_length({4: 1.4}, 5))
    3
    """
    return int(np.argmax(speed_by_length(rates, costs)))


def over_all_passes(drafting: Floats, share: float | Floats) -> Floats:
    """Return tokens per pass, or costs of a pass, averaged over all passes.

    `drafting` are those of the passes with a draft, of which there is a `share`; a pass without one
    gives one token and costs 1. So it is 1 + share (drafting - 1), which `drafting_pass_cost`
    inverts.

    >>> over_all_passes(np.array([1.0, 1.5]), 0.5).tolist()
    [1.0, 1.25]
    """
    return 1.0 + share * (drafting - 1.0)


def drafting_pass_cost(average: float, share: float) -> float:
    """Return the cost of a pass with a draft, from the average over all passes.

    Passes without a draft cost 1, so it is (average - (1 - f)) / f, where f is the `share` of the
    passes that have a draft. NaN where no pass has one.

    >>> drafting_pass_cost(1.25, 0.5), drafting_pass_cost(1.25, 1.0)
    (1.5, 1.25)
    """
    return (average - (1.0 - share)) / share if share else math.nan

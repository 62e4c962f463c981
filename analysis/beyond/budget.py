"""Certificates from a mean KL: training reports a mean over steps, not a bound at each step.

A drafter whose mean KL(p || q) over N steps is at most eps has a budget of N eps, and a rejection
at a step costs at least the step's certificate R. The worst drafter spends its budget on the
cheapest rejections. This holds for any divergence: use its certificates and its mean.
docs/method.md has the proofs.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..certificates.kernel_types import Ints, apart
from ..topk import Floats

HALVINGS = 60
SLACK = 1e-7  # of a call, allowance for rounding
ULP = float(np.finfo(np.float64).eps)


def rejections(certificates: ArrayLike, mean_kl: ArrayLike) -> NDArray[np.int64]:
    """Return F, the largest number of N steps that can be rejected at a mean KL (attained).

    F = max{n : R_(1) + ... + R_(n) <= N eps}, the certificates by increasing value. The certified
    share of accepted steps is 1 - F / N.

    Args:
        certificates: (N,), nats, +inf where nothing is rejected. Their lower ends give a
            guarantee.
        mean_kl: (E,) or a number, nats, at least 0.

    Raises:
        ValueError: there are no steps, or a certificate or a mean KL is negative or NaN.

    Examples:
        >>> rejections([0.25, 0.5, 1.0, np.inf], [0.0, 0.1875, 0.5]).tolist()
        [0, 2, 3]
    """
    values, budget = _checked(certificates, mean_kl)
    return _affordable(values, budget)


def certified_tokens(
    certificates: ArrayLike, ends: ArrayLike, mean_kl: float, draft_length: int | None = None
) -> float:
    """Return a lower bound on the tokens per verification call at this mean KL.

    A call drafts `draft_length` tokens, accepts those before the first rejected one and emits one
    more, which is not tested. Calls are cut where a trajectory ends.

    Args:
        certificates: (N,) of consecutive steps, as in `rejections`.
        ends: (E,) index of the last step of each trajectory.
        mean_kl: nats, at least 0; infinite if only steps where nothing is rejected are accepted.
        draft_length: gamma, at least 1; None for drafts of unlimited length.

    Returns:
        N / calls. For unlimited drafts the bound N / (E + F') is attained, with F' the F of the
        steps that do not end a trajectory. For a finite length it comes from Lagrangian duality,
        and is at most the cost of one rejection away from the exact optimum.

    Raises:
        ValueError: as for `rejections`. Or the ends do not increase up to the last step, or the
            draft length is below 1.

    Examples:
        >>> certified_tokens([0.5, 0.1, 0.2, 0.0], [3], mean_kl=0.05)
        2.0
        >>> certified_tokens([0.5, 0.1, 0.2, 0.0], [3], mean_kl=0.0, draft_length=1)
        2.0
    """
    values, budget = _checked(certificates, mean_kl)
    last = np.asarray(ends, dtype=np.int64)
    if last.size == 0 or np.any(np.diff(last, prepend=-1) <= 0) or last[-1] != len(values) - 1:
        raise ValueError(
            f"ends must be increasing indices of steps, the last {len(values) - 1}, one for each "
            "trajectory"
        )
    if draft_length is None:
        return float(len(values) / (len(last) + _affordable(np.delete(values, last), budget)))
    if draft_length < 1:
        raise ValueError(f"draft_length={draft_length!r} is not allowed: give an integer of >= 1")
    lengths = np.diff(last, prepend=-1)
    padded = np.full((len(last), int(lengths.max())), np.inf)  # trajectories are right-aligned
    padded[np.arange(padded.shape[1]) >= padded.shape[1] - lengths[:, None]] = values
    return float(len(values) / _most_calls(padded, lengths, float(budget), draft_length))


def _affordable(values: Floats, budget: Floats) -> NDArray[np.int64]:
    """Return the number of smallest values that a budget pays for, rounded up in a near-tie.

    The relative error of a sum of n nonnegative numbers is at most (n - 1) / 2 ulp.
    """
    spent = np.cumsum(np.sort(values[np.isfinite(values)]))
    rounding = 1.0 + len(spent) * ULP
    return np.asarray(np.searchsorted(spent, budget * rounding, side="right"), dtype=np.int64)


def _most_calls(rows: Floats, lengths: NDArray[np.int64], budget: float, gamma: int) -> float:
    """Return an upper bound on the calls that a budget can force: the dual function's minimum.

    For any price x of a nat, calls <= budget x + max(calls - x spent). The right side is convex in
    x; the amount spent at the maximum tells on which side of x its minimum lies.
    """
    costs = rows[np.isfinite(rows) & (rows > 0)]
    if budget == 0 or np.isinf(budget) or costs.size == 0:
        free = rows if np.isinf(budget) else np.where(rows > 0, np.inf, 0.0)
        return _priced(free, lengths, 0.0, gamma)[0]
    low = SLACK / budget  # practically free
    high = max(2.0 / float(costs.min()), 2.0 * low)  # no rejection is worth this
    best = np.inf
    price = low
    for _ in range(HALVINGS):
        value, spent = _priced(rows, lengths, price, gamma)
        best = min(best, value + price * budget)
        low, high = (price, high) if spent > budget else (low, price)
        price = float(np.sqrt(low * high))
    return float(np.floor(best + SLACK))


def _priced(
    rows: Floats, lengths: NDArray[np.int64], price: float, gamma: int
) -> tuple[float, float]:
    """Return max(calls - price spent) over all trajectories, and the amount spent at the maximum.

    From step i on, a call is rejected at one of the next gamma steps or ends with an untested
    token: calls(i) = 1 + max(max over l < gamma of calls(i + l + 1) - price R(i + l),
    calls(i + gamma + 1)).
    """
    value, spent = np.zeros((2, rows.shape[1] + gamma + 2))
    totals = np.zeros((2, len(rows)))
    walk_calls(rows, lengths, price, gamma, value, spent, totals)
    return float(totals[0].sum()), float(totals[1].sum())


@apart
def walk_calls(
    rows: Floats,
    lengths: Ints,
    price: float,
    gamma: int,
    value: Floats,
    spent: Floats,
    totals: Floats,
) -> None:
    """Write calls - price spent, and the amount spent, of every trajectory to `totals` (2, E).

    `rows` (E, L) hold the right-aligned certificates. `value` and `spent` (L + gamma + 2,) are
    scratch arrays, zero behind L.
    """
    size = rows.shape[1]
    for row in range(len(rows)):
        for i in range(size - 1, size - lengths[row] - 1, -1):
            best, paid = value[i + gamma + 1], spent[i + gamma + 1]
            for rejected in range(i, min(i + gamma, size)):
                cost = rows[row, rejected]
                if cost < math.inf and value[rejected + 1] - price * cost > best:
                    best, paid = value[rejected + 1] - price * cost, spent[rejected + 1] + cost
            value[i], spent[i] = 1.0 + best, paid
        totals[0, row], totals[1, row] = value[size - lengths[row]], spent[size - lengths[row]]


def _checked(certificates: ArrayLike, mean_kl: ArrayLike) -> tuple[Floats, Floats]:
    values = np.asarray(certificates, dtype=np.float64)
    eps = np.asarray(mean_kl, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not np.all(values >= 0):
        raise ValueError("certificates must be (N,) numbers of at least 0, N >= 1")
    if not np.all(eps >= 0):
        raise ValueError(f"mean_kl={mean_kl!r} is not allowed: give nats, at least 0")
    return values, values.size * eps * (1.0 + ULP)  # rounded up

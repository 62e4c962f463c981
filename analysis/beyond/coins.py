"""Divergences of coins, and the cheapest choices of many steps: the loops behind `probability`.

All of it is compiled, and in this file: numba's cache on disk follows no changes of other files.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..certificates.kernel_types import Ints, apart, compiled
from ..topk import Floats

HALVINGS = 80  # of Newton's steps at most
STEP = 1e-15  # relative, by which the last of them moves at most


@compiled
def phi_at(u: float) -> float:
    """Return (1 + u) log(1 + u) - u, as `bounds.phi`."""
    if abs(u) >= 0.25:
        return (1.0 + u) * math.log1p(u) - u if u > -1.0 else 1.0
    s = u / (2.0 + u)
    q, tail = s * s, 0.0
    for n in range(19, 1, -2):
        tail = tail * q + 1.0 / n
    return 2.0 * q * (1.0 + (1.0 + s) * s * tail) / (1.0 - s)


@compiled
def coin(a: float, b: float) -> float:
    """Return kl(a || b)."""
    heads = b * phi_at((a - b) / b) if b > 0.0 else math.inf if a > 0.0 else 0.0
    tails = (1.0 - b) * phi_at((b - a) / (1.0 - b)) if b < 1.0 else math.inf if a < 1.0 else 0.0
    return heads + tails


@compiled
def kept_mass(a: float, eps: float) -> float:
    """Return min{b <= a : kl(a || b) <= eps}."""
    if a == 0.0 or eps <= 0.0:
        return a
    # kl >= -a log b - entropy: log(a / b) is at most
    entropy = -a * math.log(a) - ((1.0 - a) * math.log1p(-a) if a < 1.0 else 0.0)
    y = (eps + entropy) / a + math.log(a)
    # kl is convex in y = log(a / b), with slope (a - b) / (1 - b): Newton's steps stay beyond
    for _ in range(HALVINGS):
        gap = -a * math.expm1(-y)
        step = (coin(a, a * math.exp(-y)) - eps) * (1.0 - a + gap) / gap
        if not (step > 0.0 and step < math.inf):
            break
        y -= step
        if step <= STEP * y:
            break
    return a * math.exp(-y)


@apart
def fill_coins(a: Floats, b: Floats, out: Floats) -> None:
    """Write kl(a || b), (n,) each."""
    for i in range(len(a)):
        out[i] = coin(a[i], b[i])


@apart
def fill_kept(a: Floats, eps: Floats, out: Floats) -> None:
    """Write `kept_mass`, (n,) each."""
    for i in range(len(a)):
        out[i] = kept_mass(a[i], eps[i])


@apart
def fill_least_modes(p: Floats, eps: Floats, margin: float, close: float, out: Floats) -> None:
    """Write the least b, not above the last of a step's p, with M(b) (1 - margin) <= eps.

    Args:
        p: (n, k), decreasing along a row.
        eps: (n,) nats.
        margin: of a certificate, relative.
        close: halvings end where the interval of b is shorter.
        out: (n,) where M(b) still exceeds eps, or 0.
    """
    for i in range(len(p)):
        low, high = 0.0, p[i, p.shape[1] - 1]
        for _ in range(HALVINGS):
            b = 0.5 * (low + high)
            size, mass = 2, b + p[i, 0]
            while size - 1 < p.shape[1] and p[i, size - 1] * size > mass:
                mass += p[i, size - 1]
                size += 1
            c = mass / size
            cost = phi_at((b - c) / c)
            for j in range(size - 1):
                cost += phi_at((p[i, j] - c) / c)
            if c * cost * (1.0 - margin) <= eps[i]:
                high = b
            else:
                low = b
            if high - low < close:
                break
        out[i] = low


@apart
def walk_hulls(value: Floats, cost: Floats, stack: Ints, drop: Floats, spent: Floats) -> int:
    """Write the segments of every row's lower hull of (cost, value); return how many.

    Args:
        value: (n, k), decreasing along a row, or equal.
        cost: (n, k), from 0 on increasing, or equal; finite.
        stack: (k,) scratch.
        drop: (n k,) by how much the value falls along a segment.
        spent: (n k,) by how much the cost rises.
    """
    count = 0
    for i in range(len(value)):
        size = 0
        for j in range(value.shape[1]):
            if size > 0 and value[i, j] >= value[i, stack[size - 1]]:
                continue
            # what lies above the line from its forerunner to this one, or costs the same, is left
            while size > 0:
                last = stack[size - 1]
                rise = cost[i, j] - cost[i, last]
                if rise > 0.0 and size == 1:
                    break
                if rise > 0.0:
                    before = stack[size - 2]
                    fall = (value[i, before] - value[i, last]) * rise
                    if fall > (value[i, last] - value[i, j]) * (cost[i, last] - cost[i, before]):
                        break
                size -= 1
            stack[size] = j
            size += 1
        for at in range(1, size):
            drop[count] = value[i, stack[at - 1]] - value[i, stack[at]]
            spent[count] = cost[i, stack[at]] - cost[i, stack[at - 1]]
            count += 1
    return count


def coins(a: ArrayLike, b: ArrayLike) -> Floats:
    """Return kl(a || b) of numbers in [0, 1], broadcast."""
    return _each(fill_coins, a, b)


def least_kept(a: ArrayLike, eps: ArrayLike) -> Floats:
    """Return min{b <= a : kl(a || b) <= eps} of masses in [0, 1] and nats, broadcast."""
    return _each(fill_kept, a, eps)


def _each(fill: object, a: ArrayLike, b: ArrayLike) -> Floats:
    x, y = np.broadcast_arrays(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))
    out = np.empty(x.size)
    fill(np.ravel(x), np.ravel(y), out)  # type: ignore[operator]
    return out.reshape(x.shape)


class Hulls(NamedTuple):
    """The lower hulls of N steps, whose segments are taken together, the best first.

    Attributes:
        spent: (S + 1,) mean cost, from 0.
        value: (S + 1,) the least mean value for it.
    """

    spent: Floats
    value: Floats

    @classmethod
    def of(cls, value: Floats, cost: Floats) -> Hulls:
        """Take (N, K) choices of each step; see `walk_hulls` for their order."""
        drop, rise = np.empty((2, value.size))
        stack = np.empty(value.shape[1], dtype=np.int64)
        count = walk_hulls(value, cost, stack, drop, rise)
        drop, rise = drop[:count], rise[:count]
        order = np.argsort(-drop / rise, kind="stable")
        spent = np.concatenate([[0.0], np.cumsum(rise[order])])
        left = np.concatenate([[0.0], np.cumsum(drop[order[::-1]])])[::-1]  # falls to 0
        return cls(spent / len(value), float(value.min(axis=1).mean()) + left / len(value))

    def least(self, mean_cost: float) -> float:
        """Return the least mean value at a mean cost, steps convexified."""
        return float(np.interp(mean_cost, self.spent, self.value))

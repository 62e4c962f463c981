"""The paper's closed-form bounds on certificates.

All functions work elementwise and broadcast; certificates R, divergences and eps are in nats.
Arguments outside the stated range give NaN. Each function names its theorem; docs/seeds.md lists
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..topk import Floats

LOG2 = math.log(2.0)


def phi(u: ArrayLike) -> Floats:
    """Return (1 + u) log(1 + u) - u for u >= -1: a term of a KL divergence, never negative.

    >>> phi([-1.0, 0.0, 1.0]).round(6).tolist()
    [1.0, 0.0, 0.386294]
    """
    u = np.asarray(u, dtype=np.float64)
    s = u / (2.0 + u)
    q = s * s
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        direct = np.where(u > -1.0, (1.0 + u) * np.log1p(u) - u, np.where(u == -1.0, 1.0, np.nan))
    # near 0 by log(1 + u) = 2 atanh(s), with the leading terms cancelled against u on paper
    tail = np.polynomial.polynomial.polyval(q, [1 / n for n in range(3, 21, 2)])
    near = 2.0 * q * (1.0 + (1.0 + s) * s * tail) / (1.0 - s)
    return np.where(np.abs(u) < 0.25, near, direct)


def g(d: ArrayLike) -> Floats:
    """Section 4.3: ((1+d) log(1+d) + (1-d) log(1-d)) / 2, d in [0, 1]; log 2 at d = 1.

    >>> g([0.0, 0.5, 1.0]).round(6).tolist()
    [0.0, 0.130812, 0.693147]
    """
    d = _within(d, 0.0, 1.0)
    return np.asarray((phi(d) + phi(-d)) / 2)


def g_lower(d: ArrayLike) -> Floats:
    """Lemma A.1: d^2/2 + d^4/12 <= g(d)."""
    d = _within(d, 0.0, 1.0)
    return d**2 / 2 + d**4 / 12


def g_upper(d: ArrayLike) -> Floats:
    """Lemma A.1: g(d) <= d^2 / (2 (1 - d^2)), d in [0, 1)."""
    d = _within(d, 0.0, 1.0)
    with np.errstate(divide="ignore"):
        return np.asarray(d**2 / (2.0 * (1.0 - d**2)))


def g_inverse(eps: ArrayLike) -> Floats:
    """Theorem 4.9 (i): g^-1(eps), eps in [0, log 2]: the margin p0 - p1 that certifies greedy."""
    eps = _within(eps, 0.0, LOG2)
    return _inverse(g, eps, np.sqrt(2 * eps / (1 + 2 * eps)))  # Lemma A.1


def g_inverse_series(eps: ArrayLike) -> Floats:
    """Lemma A.2: g^-1(eps) = sqrt(2 eps) (1 - eps/6 + O(eps^2)), as eps goes to 0."""
    eps = np.asarray(eps, dtype=np.float64)
    return np.asarray(np.sqrt(2 * eps) * (1 - eps / 6))


def two_token(a: ArrayLike, b: ArrayLike) -> Floats:
    """G(a, b) of Section 4.3 = (a + b) g((a - b) / (a + b)), a >= b >= 0.

    Lemma 4.5: R >= G(p0, b) if the most probable rejected token has probability b (value form), or
    at most b (threshold form).
    """
    a = np.asarray(a, dtype=np.float64)
    b = np.asarray(b, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return np.asarray((a + b) * g((a - b) / (a + b)))


def two_token_polynomial(p0: ArrayLike, theta: ArrayLike) -> Floats:
    """Corollaries 4.14, 4.15: a polynomial lower bound of G(p0, theta), p0 >= theta >= 0.

    margin^2 / (2 s) + margin^4 / (12 s^3) with s = p0 + theta, margin = p0 - theta.
    """
    p0 = np.asarray(p0, dtype=np.float64)
    theta = np.asarray(theta, dtype=np.float64)
    margin = p0 - theta
    s = p0 + theta
    return np.asarray(margin**2 / (2 * s) + margin**4 / (12 * s**3))


def ceiling(active_size: ArrayLike = 2) -> Floats:
    """Theorem 4.6: R <= (2/k) log 2 for k = |A| >= 2 active tokens."""
    return np.asarray(2.0 * LOG2 / _within(active_size, 2, math.inf))


def pinsker(margin: ArrayLike) -> Floats:
    """Proposition 4.8: strict greedy, R >= margin^2 / 2, margin = p0 - p1 in [0, 1]."""
    return np.asarray(np.square(_within(margin, 0.0, 1.0)) / 2.0)


def pinsker_margin(eps: ArrayLike) -> Floats:
    """Proposition 4.8: a margin above sqrt(2 eps), eps >= 0, certifies strict greedy at eps."""
    return np.asarray(np.sqrt(2.0 * _within(eps, 0.0, math.inf)))


def greedy_necessary_margin(eps: ArrayLike) -> Floats:
    """Theorem 4.9 (ii): sqrt(2 eps / (1 + 2 eps)), eps >= 0, the necessary margin p0 - p1.

    For every margin up to it, some target with this margin has a draft within eps that strict
    greedy rejects.
    """
    eps = _within(eps, 0.0, math.inf)
    return np.asarray(np.sqrt(2.0 * eps / (1.0 + 2.0 * eps)))


def multiplicative_lower(p0: ArrayLike, alpha: ArrayLike) -> Floats:
    """Theorem 4.13: multiplicative, R >= G(p0, a p0), a = alpha in [0, 1].

    G(p0, a p0) = p0 (log(2 / (1+a)) + a log(2a / (1+a))).
    """
    p0 = np.asarray(p0, dtype=np.float64)
    alpha = _within(alpha, 0.0, 1.0)
    return two_token(p0, alpha * p0)


def multiplicative_lower_series(p0: ArrayLike, alpha: ArrayLike) -> Floats:
    """Theorem 4.13: p0 ((1-a)^2/4 + (1-a)^3/8) + O((1-a)^4), as alpha goes to 1."""
    gap = 1.0 - np.asarray(alpha, dtype=np.float64)
    return np.asarray(np.asarray(p0) * (gap**2 / 4 + gap**3 / 8))


def single_upper(p0: ArrayLike, b: ArrayLike = 0.0) -> Floats:
    """R <= log(1 + p0 - b) - b log(p0/b), b the largest rejected probability; log(1 + p0) at b = 0.

    Not in the paper. It is KL(p || q) for the draft q that lifts the rejected token to p0 and
    renormalises.
    """
    p0 = np.asarray(p0, dtype=np.float64)
    b = np.asarray(b, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        # by b / p0, because p0 / b overflows if b is tiny
        return np.asarray(np.log1p(p0 - b) + np.where(b > 0, b * np.log(b / p0), 0.0))


def tree_lower(gamma: ArrayLike, m: ArrayLike) -> Floats:
    """B_m(gamma) of Theorem 5.2: tree, R >= B_m(p0 - p(rank m+1)), gamma in [0, 1], m >= 1.

    B_m(gamma) = (1 + gamma) log tau - log((tau^2 + (m-1) tau + 1) / (m+1)), tau = tau_0 of the
    theorem. It is computed from x = tau - 1, the positive root of

        (1 - gamma) x^2 + (2 - gamma (m+1)) x - gamma (m+1) = 0,

    and so keeps its accuracy as gamma goes to 0. B_m(1) = log(m + 1).

    >>> tree_lower(0.5, [1, 2, 8]).round(6).tolist()
    [0.130812, 0.197378, 0.521396]
    """
    gamma = _within(gamma, 0.0, 1.0)
    m = _within(m, 1, math.inf)
    c = gamma * (m + 1)
    a = 1.0 - gamma
    b = 2.0 - c
    root = np.sqrt(b * b + 4.0 * a * c)
    with np.errstate(divide="ignore", invalid="ignore"):
        x = np.where(b >= 0, 2.0 * c / (b + root), (root - b) / (2.0 * a))
        value = gamma * np.log1p(x) - np.log1p(x**2 / ((m + 1) * (1 + x)))
    return np.where(gamma == 1.0, np.log1p(m), value)


def tree_lower_series(gamma: ArrayLike, m: ArrayLike) -> Floats:
    """Theorem 5.2 as gamma goes to 0: (m+1)/4 gamma^2 + (5-m)(m+1)^2/192 gamma^4 + O(gamma^6).

    It is asymptotic, not a bound: for m > 5 its first term exceeds B_m.
    """
    gamma = np.asarray(gamma, dtype=np.float64)
    m = np.asarray(m, dtype=np.float64)
    return np.asarray((m + 1) / 4 * gamma**2 + (5 - m) * (m + 1) ** 2 / 192 * gamma**4)


def tree_inverse(eps: ArrayLike, m: ArrayLike) -> Floats:
    """Theorem 5.2: B_m^-1(eps), eps in [0, log(m + 1)]: the margin p0 - p(rank m+1) that certifies.

    For m > 5 and small eps it exceeds the first term of its series, sqrt(4 eps / (m+1)).
    """
    m = _within(m, 1, math.inf)
    eps = np.asarray(eps, dtype=np.float64)
    eps = np.where((eps >= 0) & (eps <= tree_ceiling(m)), eps, np.nan)
    return _inverse(lambda gamma: tree_lower(gamma, m), eps, np.zeros_like(eps))


def tree_ceiling(m: ArrayLike) -> Floats:
    """Theorem 5.3: tree, R <= log(m + 1)."""
    return np.asarray(np.log1p(_within(m, 1, math.inf)))


def tree_upper(p0: ArrayLike, m: ArrayLike) -> Floats:
    """R <= log(1 + m p0) for a tree of m tokens, m >= 1. Not in the paper."""
    return np.asarray(np.log1p(np.asarray(m, dtype=np.float64) * np.asarray(p0)))


def _inverse(bound: Callable[[Floats], Floats], eps: Floats, low: Floats) -> Floats:
    """Return the margin in [low, 1] at which a bound reaches eps, by bisection, never below it."""
    high = np.minimum(np.sqrt(2 * eps), 1.0)  # no bound here is below d^2 / 2
    for _ in range(60):
        middle = 0.5 * (low + high)
        below = bound(middle) < eps
        low = np.where(below, middle, low)
        high = np.where(below, high, middle)
    return np.asarray(high)


def _within(value: ArrayLike, low: float, high: float) -> NDArray[np.float64]:
    value = np.asarray(value, dtype=np.float64)
    return np.where((value >= low) & (value <= high), value, np.nan)

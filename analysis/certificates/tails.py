"""Bounds on the first rejected token where it is not stored, from the tail's mass and entropy.

Three facts constrain the N = V - K tokens that are not stored: none exceeds p_K, they sum to T, and
their surprises f(x) = -x log x sum to h, the entropy minus that of the stored tokens. A rule
accepts p > theta, and all stored tokens pass. The first rejected token is the most probable one not
above theta, and its probability b is in [b_min, b_max]. f is concave: of all tails in a convex set
the most even one has the greatest entropy, a vertex the least, and every value between them occurs.

**b_min.** Suppose that j tail tokens are accepted, each in [theta, p_K], and N - j are at most b.

- There must be room: T <= j p_K + (N - j) b.
- The greatest entropy must reach h. Without the limit b it is C_j = j f(t) + (N - j) f((T - j t) /
  (N - j)), t = max(theta, T/N). Where C_j < h, j is impossible. With the limit, N - j tokens have b
  and j share the rest, as long as b is below (T - j t) / (N - j).
- The least entropy must not exceed h. Mass costs most entropy where tokens are small, as f' is
  decreasing. So the accepted tokens hold min(T, j p_K): as many as fit at p_K, all others but one
  at theta. The rest is in tokens of b, one excepted. Where the accepted tokens alone exceed h, j
  is impossible.

If j is impossible, so is j + 1. From one possible j to the next each of the three lower bounds of b
falls, since one more token is free of the limit b. So the largest possible j gives b_min, and all
tokens may be accepted if and only if j = N is possible.

**b_max.** b <= min(theta, T). A tail that holds b has

- at most the entropy f(b) + (N-1) f((T-b)/(N-1)), which falls in b above T/N and must reach h;
- at least f(b) and the smaller of two: j = floor((T-b)/p_K) tokens at p_K and the rest in tokens of
  b, one excepted, which falls in b; or T - b in j + 1 tokens of [theta, p_K]. The latter rises in b
  from T - floor(T/p_K) p_K on (from 0 if that is above theta), and there it is the least entropy of
  any tail. So where this exceeds h at min(theta, T), there is a single point up to which it does
  not.

The bounds allow for the errors of T and h, so no possible value is excluded.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..topk import Floats

TAIL_ERROR = 1e-9  # relative error allowed in T
HALVINGS = 32  # steps of a bisection, which ends on the safe side

Test = Callable[[Floats], NDArray[np.bool_]]


class Tails:
    """The tails of M steps, known by mass and entropy, and the thresholds they are compared with.

    The mass T > 0 is in [lower, upper], by TAIL_ERROR, and the entropy h in [least, most]. The
    latter has a margin for taking T at one end: greatest entropies use `upper`, least ones
    `lower`, and none falls in T with a slope above 1.
    """

    def __init__(
        self, size: int, theta: Floats, p_k: Floats, mass: Floats, h: Floats, h_error: Floats
    ) -> None:
        """Store N, thresholds in (0, p_K), p_K, T, and the entropy h with its error."""
        self.size, self.theta, self.p_k = size, theta, p_k
        self.lower, self.upper = mass * (1.0 - TAIL_ERROR), mass * (1.0 + TAIL_ERROR)
        slack = h_error + (self.upper - self.lower)
        self.least, self.most = h - slack, h + slack
        # t, the least probability of an accepted token in a tail of greatest entropy
        self.level = np.maximum(theta, self.upper / size)

    def rejected_range(self) -> tuple[Floats, Floats, Floats]:
        """Return b_min, b_max, and the most tail tokens that can be accepted.

        If that number is N, b_min and b_max are for the case that one token is rejected.
        """
        accepted = self.most_accepted()
        b_max = self.largest_rejected()
        b_min = self.smallest_rejected(np.minimum(accepted, self.size - 1.0))
        return np.minimum(b_min, b_max), b_max, accepted

    def most_accepted(self) -> Floats:
        """Return the largest number j of tail tokens that can be accepted, in [0, N]."""
        fitting = np.minimum(self.size, np.ceil(self.upper / self.theta) - 1.0)

        def possible(j: Floats) -> NDArray[np.bool_]:
            j = np.floor(j)
            accepted = j * self.level
            greatest = _spread(accepted, j) + _spread(self.upper - accepted, self.size - j)
            packed = _packed(self.lower, j, self.theta, self.p_k)
            return (j <= fitting) & (greatest >= self.least) & (packed <= self.most)

        halvings = int(fitting.max(initial=0.0) + 1.0).bit_length()  # to less than one token
        zero = np.zeros_like(self.level)
        first_impossible = np.floor(_last(possible, zero, fitting + 1.0, halvings))
        return np.maximum(0.0, first_impossible - 1.0)

    def smallest_rejected(self, j: Floats) -> Floats:
        """Return b_min, the least b if j tail tokens are accepted, 0 <= j < N."""
        others, zero = self.size - j, np.zeros_like(j)
        rest = np.maximum(0.0, self.lower - j * self.p_k)
        packed = _packed(self.lower, j, self.theta, self.p_k)

        def reaches(b: Floats) -> NDArray[np.bool_]:
            entropy = _spread(self.upper - others * b, j) + _spread(others * b, others)
            return np.asarray(entropy >= self.least)

        def stays(b: Floats) -> NDArray[np.bool_]:
            return np.asarray(packed + _filled(rest, b) <= self.most)

        even = np.maximum(0.0, self.upper - j * self.level) / others
        entropic = np.maximum(_last(reaches, even, zero), _last(stays, self.theta, zero))
        return np.maximum(rest / others, entropic)

    def largest_rejected(self) -> Floats:
        """Return b_max, the largest possible b."""
        n, theta, p_k = self.size, self.theta, self.p_k

        def reaches(b: Floats) -> NDArray[np.bool_]:
            return np.asarray(_spread(b, 1.0) + _spread(self.upper - b, n - 1.0) >= self.least)

        def stays(b: Floats) -> NDArray[np.bool_]:
            rest = np.maximum(0.0, self.lower - b)
            j = np.floor(rest / p_k)
            filled = _spread(j * p_k, j) + _filled(rest - j * p_k, b)
            fits = (j + 1.0) * theta <= self.upper - b
            packed = np.where(fits, _packed(rest, j + 1.0, theta, p_k), np.inf)
            return np.asarray(_spread(b, 1.0) + np.minimum(filled, packed) <= self.most)

        top = np.minimum(theta, self.upper)
        remainder = self.lower - np.floor(self.lower / p_k) * p_k
        return np.minimum(
            _last(reaches, np.minimum(self.upper / n, top), top),
            _last(stays, np.where(remainder <= top, remainder, 0.0), top),
        )


def _spread(mass: Floats, tokens: Floats | float) -> Floats:
    """Return the greatest entropy of a mass on this many tokens, mass log(tokens / mass)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = mass * (np.log(tokens) - np.log(mass))  # the quotient can overflow
        return np.where((mass > 0) & (tokens > 0), value, 0.0)


def _filled(mass: Floats, size: Floats) -> Floats:
    """Return the least entropy of a mass in tokens of at most `size`: all but one have `size`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        count = np.floor(mass / size)
        value = count * _spread(size, 1.0) + _spread(mass - count * size, 1.0)
    return np.where(mass > 0, np.where(size > 0, value, np.inf), 0.0)


def _packed(mass: Floats, j: Floats, low: Floats, high: Floats) -> Floats:
    """Return the least entropy of a mass in j tokens of [low, high], the mass clipped to fit."""
    mass = np.clip(mass, j * low, j * high)
    with np.errstate(divide="ignore", invalid="ignore"):
        full = np.where(high > low, np.floor((mass - j * low) / (high - low)), 0.0)
    others = j - 1.0 - full
    last = mass - full * high - others * low
    value = full * _spread(high, 1.0) + others * _spread(low, 1.0) + _spread(last, 1.0)
    return np.where(j > 0, value, 0.0)


def _last(test: Test, good: Floats, bad: Floats, halvings: int = HALVINGS) -> Floats:
    """Return `bad` where the test holds at it, else the end of the test's range, by bisection.

    The test holds at `good`, which may lie on either side of `bad`, and up to one point between
    them. The result never lies before that point, whatever the number of halvings.
    """
    whole = test(bad)
    if whole.all():
        return bad
    for _ in range(halvings):
        middle = 0.5 * (good + bad)
        holds = test(middle) | whole
        good, bad = np.where(holds, middle, good), np.where(holds, bad, middle)
    return bad

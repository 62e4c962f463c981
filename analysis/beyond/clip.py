"""The best lossy verification of a sampled draft: the most acceptance at a given divergence.

A draft x ~ q is kept, or replaced by another token; r is the distribution of the emitted token. At
most the share

    sum_i min(q_i, r_i)

of the drafts is kept. Speculative sampling with r as the target attains it: keep x with probability
min(1, r_x / q_x), else draw from (r - q)+. Under D_f(r || p) = sum_i p_i f(r_i / p_i) <= D the
share is largest at

    r = clip(q, c2 p, c1 p),    c2 <= 1 <= c1,    sum_i r_i = 1,

for every strictly convex, differentiable f (docs/method.md has the proof). The family has one
parameter: c1 = 1 is lossless speculative sampling, c1 = max q / p accepts every draft.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from ..certificates.bounds import phi
from ..topk import Floats
from .probability import coin_kl

PARAMETERS = ("c1", "ratio", "divergence")
HALVINGS = 50
SUM_ERROR = 1e-4  # allowed in the sums of p and q, which may be half precision; both are normalised

# f of D_f(r || p), f(1) = f'(1) = 0, and its slope at infinity: the cost of r where p = 0
Generator = tuple[Callable[[Floats], Floats], float]

FAMILIES: dict[str, Generator] = {
    "kl": (lambda u: phi(u - 1.0), math.inf),
    "reverse_kl": (lambda u: u - 1.0 - np.log(u), 1.0),
    "chi2": (lambda u: (u - 1.0) ** 2, math.inf),
    "hellinger": (lambda u: 0.5 * (1.0 - np.sqrt(u)) ** 2, 0.5),
    "tv": (lambda u: 0.5 * np.abs(u - 1.0), 0.5),
}


def divergence_of(r: ArrayLike, p: ArrayLike, name: str = "kl") -> float:
    """Return D_f(r || p), the divergence of the emitted distribution from the target, (V,) each.

    kl: KL(r || p), reverse_kl: KL(p || r), chi2: sum (r - p)^2 / p, hellinger: 1 - sum sqrt(p r),
    tv: half the sum of |r - p|. kl and reverse_kl are in nats and may be infinite.

    Examples:
        >>> round(divergence_of([0.5, 0.5], [0.25, 0.75]), 6)
        0.143841
    """
    f, slope = _family(name)
    r, p = np.asarray(r, dtype=np.float64), np.asarray(p, dtype=np.float64)
    u = _quotients(r, p)
    inside = u < np.inf
    outside = float(r[~inside].sum())
    terms = p[inside] * _costs(f, u[inside])
    return float(terms.sum()) + (slope * outside if outside > 0 else 0.0)


def _quotients(r: Floats, p: Floats) -> Floats:
    """Return r / p: 1 where both are 0, infinite where p is 0 or the quotient overflows."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where((r == 0) & (p == 0), 1.0, r / p)


def _costs(f: Callable[[Floats], Floats], u: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return f(u)


def clipped_target(
    p: ArrayLike, q: ArrayLike, parameter: str, value: float, divergence: str = "kl"
) -> tuple[Floats, float, float]:
    """Return r = clip(q, c2 p, c1 p) of one step, and c1 and c2.

    Verify the draft by speculative sampling with r in place of p: the acceptance is the sum of
    min(q, r), the residual is (r - q)+. O(V log V), as p and q are sorted by q / p once.

    Args:
        p: (V,) target.
        q: (V,) draft.
        parameter: the meaning of `value`: "c1", "ratio" (c1 / c2), or "divergence" (the largest
            allowed D_f(r || p)). For a mean KL budget over steps, the same ratio at every step is
            best, not the same D.
        value: c1 >= 1, ratio >= 1 or divergence >= 0; infinite accepts every draft.
        divergence: kl, reverse_kl, chi2, hellinger or tv, as in `divergence_of`; only used with
            parameter "divergence".

    Returns:
        r (V,), c1, c2. r is 0 where p = 0, with an exception: if all other tokens are accepted and
        the divergence allows more (tv, hellinger, reverse_kl), r is a share of q there.

    Raises:
        ValueError: the parameter or divergence is unknown, the value is out of range, or p or q
            is not a distribution.

    Examples:
        >>> p, q = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]
        >>> clipped_target(p, q, "c1", 2.0)[0].round(3).tolist()
        [0.375, 0.225, 0.4]
        >>> clipped_target(p, q, "divergence", 0.0)[0].tolist()
        [0.5, 0.3, 0.2]
    """
    family = _family(divergence)
    least = 0.0 if parameter == "divergence" else 1.0
    if parameter not in PARAMETERS:
        raise ValueError(f"parameter={parameter!r} is not allowed: give {', '.join(PARAMETERS)}")
    if not value >= least:
        raise ValueError(
            f"{parameter}={value!r} is not allowed: give a number of at least {least:g}"
        )
    step = _Sorted(_distribution("p", p), _distribution("q", q))
    if parameter == "c1":
        return step.at(math.log(value) if value < step.most else step.edge)
    if parameter == "ratio":
        return step.at(step.at_ratio(value))
    spent = step.spending(family)
    return step.at(step.last(lambda *scales: spent(*scales) <= value) if value > 0 else 0.0)


class _Sorted:
    """One step with its tokens sorted by q / p, and cumulative sums over them.

    No sum is a difference of two others, which would lose the digits of a small p with a large
    q / p. A member r of the family is indexed by one number x: log c1 up to log max q / p, and
    beyond that plus the share of q that is emitted where p = 0.
    """

    def __init__(self, p: Floats, q: Floats) -> None:
        self.p, self.q, self.ratio = p, q, _quotients(q, p)
        order = np.argsort(self.ratio)
        self.finite = int(np.sum(self.ratio < np.inf))  # number of tokens with p > 0
        self.s = self.ratio[order][: self.finite]
        self.sorted_p = p[order][: self.finite]
        sorted_q = q[order][: self.finite]
        self.p_below, self.q_below = _before(self.sorted_p), _before(sorted_q)  # (finite + 1,)
        self.p_above, self.q_above = _from(self.sorted_p), _from(sorted_q)
        self.outside = float(q[order][self.finite :].sum())  # of q, where p = 0
        self.most = max(1.0, float(self.s[-1]))
        self.edge = math.log(self.most)
        self.end = self.edge + (1.0 if self.outside > 0 else 0.0)

    def scales(self, x: float) -> tuple[float, float, float]:
        """Return c1, the c2 with which r sums to one, and the share emitted where p = 0."""
        if x <= 0.0:  # r = p, also where q / p exceeds 1 by rounding only
            return 1.0, 1.0, 0.0
        # at the end exactly 1: a rest would lift c2 from 0, where r is 0 and reverse_kl infinite
        share = 1.0 if x >= self.end else min(max(x - self.edge, 0.0), 1.0)
        c1 = self.most if x >= self.edge else min(math.exp(x), self.most)
        removed = self.removed(c1, share)
        low, high = 0, self.finite  # a token is below c2 if s P - Q <= removed for those before
        while low < high:
            middle = (low + high) // 2
            added = self.s[middle] * self.p_below[middle] - self.q_below[middle]
            low, high = (middle + 1, high) if added <= removed else (low, middle)
        mass = self.p_below[low]
        c2 = (removed + self.q_below[low]) / mass if removed > 0 and mass > 0 else self.s[0]
        return c1, min(1.0, float(c2)), share

    def removed(self, c1: float, share: float) -> float:
        """Return the rejected mass of q."""
        k = int(np.searchsorted(self.s, c1, side="right"))
        above = max(0.0, float(self.q_above[k] - c1 * self.p_above[k]))
        return above + (1.0 - share) * self.outside

    def last(self, allowed: Callable[[float, float, float], bool]) -> float:
        """Return the largest allowed x, by bisection; all smaller x are allowed."""
        low, high = 0.0, self.end
        if allowed(*self.scales(high)):
            return high
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            if not low < middle < high:
                break
            low, high = (middle, high) if allowed(*self.scales(middle)) else (low, middle)
        return low

    def at_ratio(self, ratio: float) -> float:
        """Return the x with this c1 / c2; a finite ratio emits nothing where p = 0."""
        if ratio == math.inf:
            return self.end
        return min(self.edge, self.last(lambda c1, c2, _: c1 <= ratio * c2))

    def spending(self, family: Generator) -> Callable[[float, float, float], float]:
        """Return a function of (c1, c2, share where p = 0) that computes D_f(r || p)."""
        f, slope = family
        terms = self.sorted_p * _costs(f, self.s)  # of tokens between c2 and c1, where r = q
        below_one = self.s < 1.0
        to_one, from_one = (
            _from(np.where(below_one, terms, 0.0)),
            _before(np.where(below_one, 0.0, terms)),
        )

        def spent(c1: float, c2: float, share: float) -> float:
            low, high = np.searchsorted(self.s, [c2, c1], side="right")
            f2, f1 = _costs(f, np.array([c2, c1]))
            total = to_one[low] + from_one[high] + self.p_below[low] * f2
            total += self.p_above[high] * f1 if high < self.finite else 0.0
            beyond = share * self.outside
            return float(total + (slope * beyond if beyond > 0 else 0.0))

        return spent

    def at(self, x: float) -> tuple[Floats, float, float]:
        """Return r, c1 and c2 at x."""
        c1, c2, share = self.scales(x)
        if x >= self.end > 0.0:
            return self.q, math.inf if self.outside > 0 else c1, c2
        r = np.minimum(np.maximum(self.q, c2 * self.p), c1 * self.p)
        if share > 0:
            outside = self.ratio == np.inf
            r[outside] = share * self.q[outside]
        return r, c1, c2


def _before(values: Floats) -> Floats:
    """Return the sums of the values before each index, (n + 1,)."""
    return np.append(0.0, np.cumsum(values))


def _from(values: Floats) -> Floats:
    """Return the sums of the values from each index on, added from the end, (n + 1,)."""
    return _before(values[::-1])[::-1]


def _family(name: str) -> Generator:
    if name not in FAMILIES:
        raise ValueError(f"divergence={name!r} is not allowed: give {', '.join(FAMILIES)}")
    return FAMILIES[name]


def _distribution(name: str, values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    total = float(array.sum()) if array.ndim == 1 else math.nan
    if not abs(total - 1.0) <= SUM_ERROR or array.min() < 0:
        raise ValueError(f"{name} is not a distribution of one step: give (V,) numbers of sum 1")
    return array / total


def argmax_acceptance(p: ArrayLike, divergence: float) -> Floats:
    """Return a* = sup{a : kl(a || p(x)) <= D}, the largest acceptance of an argmax draft.

    The draft x is deterministic: q(x) = 1. Then r(x) = a*, with the others proportional to p, has
    the largest acceptance with KL(r || p) <= D; kl is the binary KL. Cactus uses its second-order
    term, p + sqrt(2 D p (1 - p)).

    Args:
        p: p(x), in [0, 1].
        divergence: D, nats, at least 0.

    Examples:
        >>> argmax_acceptance([0.2, 0.9, 1.0], 0.1).round(4).tolist()
        [0.3952, 0.9991, 1.0]
    """
    p = np.asarray(p, dtype=np.float64)
    low, high = p.copy(), np.ones_like(p)
    fits = coin_kl(high, p) <= divergence
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        inside = coin_kl(middle, p) <= divergence
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return np.where(fits, 1.0, low)

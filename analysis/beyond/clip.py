"""The best law for a sampled draft: the largest acceptance at a mean KL from the target.

A draft x ~ q is kept, or another token is emitted instead; r is the law of what is emitted. At most

    sum_i min(q_i, r_i)

of the drafts are kept, by speculative sampling with r as the target: keep x with probability
min(1, r_x / q_x), else draw from (r - q)+. Under KL(r || p) <= D this is largest at

    r = clip(q, c2 p, c1 p),    c2 <= 1 <= c1,    sum_i r_i = 1

(docs/method.md has the proof, for other divergences as well). The family has one parameter. For a
mean KL over steps the ratio c1 / c2 is the same at every step: it is the price of a nat. A ratio of
1 is lossless speculative sampling; at a large one every draft is accepted that p can emit.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from ..topk import Floats

HALVINGS = 50
SUM_ERROR = 1e-4  # of p and q, which may come from half precision; both are normalised


def clip_law(p: ArrayLike, q: ArrayLike, ratio: float) -> tuple[Floats, float, float]:
    """Return the law r = clip(q, c2 p, c1 p) of one step, and c1 and c2.

    Verify the draft by speculative sampling with r in the place of p: its acceptance is the sum of
    min(q, r), its residual (r - q)+. O(V log V): p and q are sorted by q / p once, and with
    s = q / p the sum of r is, by sums over the first tokens,

        c2 p(s < c2) + q(c2 <= s <= c1) + c1 p(s > c1),

    which grows with c2 at a fixed ratio.

    Args:
        p: (V,) target.
        q: (V,) draft. A token with p = 0 is never emitted.
        ratio: c1 / c2, a finite number of at least 1.

    Returns:
        r (V,), c1, c2.

    Raises:
        ValueError: the ratio is out of range, or p or q is no distribution.

    Example:
        >>> p, q = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]
        >>> clip_law(p, q, 3.0)[0].round(4).tolist()
        [0.3571, 0.2143, 0.4286]
        >>> clip_law(p, q, 1.0)[0].tolist()
        [0.5, 0.3, 0.2]
    """
    if not 1.0 <= ratio < math.inf:
        raise ValueError(f"ratio={ratio!r} is not allowed: give a number of at least 1")
    p, q = _distribution("p", p), _distribution("q", q)
    s = np.divide(q, p, out=np.full_like(p, np.inf), where=p > 0)
    order = np.argsort(s)
    s, sum_p, sum_q = s[order], _sums(p[order]), _sums(q[order])

    def ends(c2: float) -> tuple[float, float]:
        """Return the mass of q that is kept as it is, and what is a multiple of c2 of p."""
        low, high = np.searchsorted(s, [c2, ratio * c2])
        return sum_q[high] - sum_q[low], sum_p[low] + ratio * (sum_p[-1] - sum_p[high])

    low, high = 1.0 / ratio, 1.0
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        kept, scaled = ends(middle)
        low, high = (low, middle) if kept + middle * scaled >= 1.0 else (middle, high)
    kept, scaled = ends(high)
    c2 = (
        min(max((1.0 - kept) / scaled, low), high) if scaled > 0 else high
    )  # without their rounding
    return np.minimum(np.maximum(q, c2 * p), ratio * c2 * p), float(ratio * c2), float(c2)


def _sums(values: Floats) -> Floats:
    return np.append(0.0, np.cumsum(values))


def _distribution(name: str, values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    total = float(array.sum()) if array.ndim == 1 else math.nan
    if not abs(total - 1.0) <= SUM_ERROR or array.min() < 0:
        raise ValueError(f"{name} is no distribution of one step: give (V,) numbers of sum 1")
    return array / total

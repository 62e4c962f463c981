"""Certified probabilities: the least probability that a draft is accepted while KL(p||q) <= eps.

Three ways to draft and verify:

- a token sampled from q, accepted if it is in the target's set S, of mass a = p(S);
- q's argmax, accepted by speculative sampling with probability p(argmax q);
- a token sampled from q, verified by lossless speculative sampling: 1 - TV(p, q).

kl(a || b) is the binary KL divergence. Bisections end on the side where the bound holds.
docs/method.md has the proofs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..certificates.bounds import phi
from ..rules.builtin import FirstRanks
from ..topk import Floats, TopK

HALVINGS = 80
STEP = 1e-15  # relative size of the last Newton step
PRICE_STEP = 1e-9  # the same for a price, whose error enters squared
MARGIN = 1e-12  # relative margin of a certificate
LEAST_PRICE, LARGEST_PRICE = 1e-6, 1e9  # acceptance per nat


def coin_kl(a: ArrayLike, b: ArrayLike) -> Floats:
    """Return kl(a || b) = a log(a/b) + (1-a) log((1-a)/(1-b)), nats; +inf where it is infinite.

    Examples:
        >>> coin_kl([0.5, 1.0, 0.0], [0.25, 0.5, 0.0]).round(6).tolist()
        [0.143841, 0.693147, 0.0]
    """
    a, b = np.broadcast_arrays(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))

    def side(mass: Floats, share: Floats, difference: Floats) -> Floats:
        """Return the term of one outcome, without cancellation."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            part = share * phi(difference / share)
        return np.where(share > 0, part, np.where(mass > 0, np.inf, 0.0))

    return side(a, b, a - b) + side(1.0 - a, 1.0 - b, b - a)


def sampled_draft(mass: ArrayLike, eps: ArrayLike) -> Floats:
    """Return min{b <= a : kl(a || b) <= eps}, the certified acceptance of a sampled draft.

    Attained by the q that scales p inside and outside the accepted set. kl is convex in
    y = log(a / b), with slope (a - b) / (1 - b), so Newton steps from a larger y stay above the
    root.

    Args:
        mass: a = p(S) in [0, 1], the mass of the accepted tokens.
        eps: nats, at least 0; broadcast with `mass`.

    Raises:
        ValueError: a mass is not in [0, 1], or eps is negative.

    Examples:
        >>> sampled_draft([1.0, 0.9, 0.5], 0.1).round(6).tolist()
        [0.904837, 0.717621, 0.287121]
    """
    a, nats = _checked(mass, eps)
    with np.errstate(divide="ignore", invalid="ignore"):
        tails = np.where(a < 1.0, -(1.0 - a) * np.log1p(-a), 0.0)
        y = (nats - a * np.log(a) + tails) / a + np.log(a)  # kl >= -a log b - entropy
        for _ in range(HALVINGS):
            gap = -a * np.expm1(-y)
            step = (coin_kl(a, a * np.exp(-y)) - nats) * (1.0 - a + gap) / gap
            step = np.where((step > 0.0) & (step < np.inf), step, 0.0)
            y = y - step
            if not np.any(step > STEP * y):
                break
        return np.where((a == 0.0) | (nats == 0.0), a, a * np.exp(-y))


def mode_costs(dist: TopK) -> Floats:
    """Return M of every stored rank, (N, K): the least KL that makes it q's argmax (0: rank 1)."""
    from ..certificates.certify import certify  # imports numba, which `coin_kl` does not need

    costs = [np.zeros((len(dist), 1))]
    if dist.k > 1:
        costs.append(certify(dist, [FirstRanks(n) for n in range(1, dist.k)]).lower)
    return np.concatenate(costs, axis=1)


def argmax_draft(dist: TopK, eps: ArrayLike, costs: Floats | None = None) -> Floats:
    """Return min{p(x) : M(x) <= eps}, (N,): the certified acceptance of q's argmax by sampling.

    It is 0 where every stored token can be the argmax, as an unstored one might be too.

    Args:
        dist: N steps.
        eps: nats, at least 0; one number, or (N,).
        costs: `mode_costs` of these steps, if already computed.

    Raises:
        ValueError: eps is negative.

    Examples:
        >>> argmax_draft(TopK.from_probabilities([0.5, 0.4, 0.1]), 0.01).tolist()
        [0.4]
    """
    levels = np.broadcast_to(_checked(1.0, eps)[1], len(dist))
    reached = (mode_costs(dist) if costs is None else costs) * (1.0 - MARGIN) <= levels[:, None]
    count = reached.sum(axis=1)
    least = np.take_along_axis(dist.probs, count[:, None] - 1, axis=1)[:, 0]
    return np.where((count == dist.k) & (dist.k < dist.vocab_size), 0.0, least)


def lossless(dist: TopK, eps: ArrayLike) -> Floats:
    """Return a lower bound of 1 - TV(p, q) given KL(p||q) <= eps, (N,).

    The minimum is 1 - max h(p(A)) over proper subsets A of the tokens, where the concave h is
    h(a) = a - `sampled_draft`(a, eps). With p0 > 1/2 no A has a mass in (1 - p0, p0). If the peak
    of h lies there, the two ends decide and the result is exact. Otherwise the peak is used.

    Args:
        dist: N steps.
        eps: nats, at least 0; one number, or (N,).

    Raises:
        ValueError: eps is negative.

    Examples:
        >>> lossless(TopK.from_probabilities([0.9, 0.1]), 0.1).round(6).tolist()
        [0.817621]
    """
    levels = _checked(1.0, eps)[1]  # a single number is not repeated for every step
    if dist.vocab_size == 1:
        return np.ones(len(dist))
    peak, height = _peak(levels)
    ends = _ends(dist)
    lost = np.max(ends - sampled_draft(ends, levels), axis=0)
    lost = np.where(_inside(ends, peak), lost, np.maximum(height, lost))
    return np.where(levels > 0, 1.0 - lost, 1.0)


def _ends(dist: TopK) -> Floats:
    """Return p0 and 1 - p0, (2, N)."""
    p0 = np.minimum(dist.top_probability, 1.0)
    return np.stack([p0, 1.0 - p0])


def _inside(ends: Floats, peak: Floats) -> NDArray[np.bool_]:
    """Return whether the peak is in (1 - p0, p0), where no set of tokens has its mass."""
    return np.asarray((ends[1] < peak) & (peak < ends[0]))


def _peak_at(price: ArrayLike) -> tuple[Floats, Floats]:
    """Return a, b with the largest a - b - x kl(a || b); the ratio of their odds is e^(1/x)."""
    y = 1.0 / np.asarray(price, dtype=np.float64)
    series = 0.5 - y / 12.0 + y**3 / 720.0
    b = np.where(y < 0.03, series, 1.0 / y + np.exp(-y) / np.expm1(-y))
    return np.minimum(1.0, b * -y / np.expm1(-y)), b


def _peak(eps: Floats) -> tuple[Floats, Floats]:
    """Return the location of the peak of h, and an upper bound of its height, at most 1."""
    low, high = np.full(eps.shape, LEAST_PRICE), np.full(eps.shape, LARGEST_PRICE)
    for _ in range(HALVINGS):
        price = np.sqrt(low * high)
        spends = coin_kl(*_peak_at(price)) > eps
        low, high = np.where(spends, price, low), np.where(spends, high, price)
        if np.all(high <= low * (1.0 + PRICE_STEP)):
            break
    a, b = _peak_at(high)
    return a, np.minimum(1.0, a - b + high * (eps - coin_kl(a, b)))


def _checked(mass: ArrayLike, eps: ArrayLike) -> tuple[Floats, Floats]:
    a, nats = np.asarray(mass, dtype=np.float64), np.asarray(eps, dtype=np.float64)
    if not np.all((a >= 0) & (a <= 1)):
        raise ValueError("a mass must be in [0, 1]")
    if not np.all(nats >= 0):
        raise ValueError(f"eps={eps!r} is not allowed: give nats, at least 0")
    a, nats = np.broadcast_arrays(a, nats)
    return a, nats

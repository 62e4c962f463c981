"""Certified probabilities: with what probability a draft is accepted, at least, if KL(p||q) <= eps.

Three ways to draft and verify, each at every step's eps and at a mean KL over steps:

- a token sampled from q, accepted if it is in the target's set S, of mass a = p(S);
- q's argmax, accepted by speculative sampling with probability p(argmax q);
- a token sampled from q, verified by lossless speculative sampling: 1 - TV(p, q).

kl(a || b) is the KL divergence of coins. docs/method.md has the proofs. Bisections end on the side
where what is returned holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..certificates.certify import certify
from ..certificates.tails import TAIL_ERROR
from ..rules.builtin import FirstRanks
from ..topk import Floats, TopK
from .coins import Hulls, coins, fill_least_modes, least_kept

HALVINGS = 80
PRICE_STEP = 1e-9  # the same of a price, whose error counts by its square
CLOSE = 1e-16  # of a probability
MARGIN = 1e-12  # of a certificate, relative
SECANT = 1e-3  # least share of an interval that a step of the secant leaves
LEAST_PRICE, LARGEST_PRICE = 1e-6, 1e9  # of acceptance, for a nat


def coin_kl(a: ArrayLike, b: ArrayLike) -> Floats:
    """Return kl(a || b) = a log(a/b) + (1-a) log((1-a)/(1-b)), nats; +inf where it is infinite.

    Example:
        >>> coin_kl([0.5, 1.0, 0.0], [0.25, 0.5, 0.0]).round(6).tolist()
        [0.143841, 0.693147, 0.0]
    """
    return coins(a, b)


def sampled_draft(mass: ArrayLike, eps: ArrayLike) -> Floats:
    """Return min{b <= a : kl(a || b) <= eps}: with this probability a sampled draft is accepted.

    Attained by the q that scales p inside and outside of the accepted set.

    Args:
        mass: a = p(S), in [0, 1], of the accepted tokens.
        eps: nats, at least 0; both are broadcast.

    Raises:
        ValueError: a mass is not in [0, 1], or eps is negative.

    Example:
        >>> sampled_draft([1.0, 0.9, 0.5], 0.1).round(6).tolist()
        [0.904837, 0.717621, 0.287121]
    """
    return least_kept(*_checked(mass, eps))


def sampled_draft_mean(mass: ArrayLike, mean_kl: float) -> float:
    """Return the least mean acceptance of sampled drafts at a mean KL over N steps.

    kl(a || b) is convex in b, so a price x of acceptance for a nat splits the budget: at each step
    b + x kl(a || b) is least at the root of b^2 - (1 + x) b + x a = 0. Every price gives a lower
    bound, the right one attains it.

    Args:
        mass: (N,), as in `sampled_draft`.
        mean_kl: nats.

    Raises:
        ValueError: as `sampled_draft` says.
    """
    a, eps = _checked(mass, mean_kl)
    budget = float(eps.flat[0])

    def priced(x: float) -> tuple[float, float]:
        b = 2.0 * x * a / (1.0 + x + np.sqrt((1.0 - x) ** 2 + 4.0 * x * (1.0 - a)))
        spent = float(coin_kl(a, b).mean())
        return float(b.mean()) + x * (spent - budget), spent

    return max(0.0, _best_price(priced, budget)) if budget > 0 else float(a.mean())


def mode_costs(dist: TopK) -> Floats:
    """Return M of every stored rank, (N, K): the least KL that makes it q's argmax; 0 of rank 1."""
    found = [np.zeros((len(dist), 1))]
    if dist.k > 1:
        found.append(certify(dist, [FirstRanks(n) for n in range(1, dist.k)]).lower)
    return np.concatenate(found, axis=1)


def argmax_draft(dist: TopK, eps: ArrayLike, costs: Floats | None = None) -> tuple[Floats, Floats]:
    """Return bounds of min{p(x) : M(x) <= eps}, (N,) each: q's argmax, verified by sampling.

    Args:
        dist: N steps.
        eps: nats, at least 0; one number, or (N,).
        costs: `mode_costs` of these steps, where they are known already.

    Returns:
        Lower and upper; equal where the least probable such token is stored. Elsewhere the lower
        end is the least probability that can become a mode, the upper one that of rank K.

    Raises:
        ValueError: eps is negative.

    Example:
        >>> argmax_draft(TopK.from_probabilities([0.5, 0.4, 0.1]), 0.01)[0].tolist()
        [0.4]
    """
    levels = np.broadcast_to(_checked(1.0, eps)[1], len(dist))
    reached = (mode_costs(dist) if costs is None else costs) * (1.0 - MARGIN) <= levels[:, None]
    count = reached.sum(axis=1)
    upper = np.take_along_axis(dist.probs, count[:, None] - 1, axis=1)[:, 0]
    lower = upper.copy()
    rows = np.flatnonzero((count == dist.k) & (dist.k < dist.vocab_size))
    if rows.size:
        lower[rows] = _least_mode(dist[rows], levels[rows])
    return lower, upper


def _least_mode(dist: TopK, eps: Floats) -> Floats:
    """Return the least b, not above p_K, with M(b) <= eps among the stored tokens."""
    low = np.empty(len(dist))
    fill_least_modes(dist.probs, np.ascontiguousarray(eps), MARGIN, CLOSE, low)
    largest = np.exp(dist.log_tail) * (1.0 + TAIL_ERROR)  # of a token that is not stored
    return np.where(largest < low, dist.probs[:, -1], low)


def argmax_draft_mean(dist: TopK, mean_kl: float, hulls: Hulls | None = None) -> float:
    """Return a lower bound of the mean p(argmax q) at a mean KL over all steps.

    Steps are convexified, by one price for all of them as in `sampled_draft_mean`: at most one
    step's choice away from the optimum.

    Args:
        dist: N steps.
        mean_kl: nats.
        hulls: `argmax_hulls` of these steps, where they are known already.

    Raises:
        ValueError: the mean KL is negative.
    """
    _checked(1.0, mean_kl)
    return max(0.0, (argmax_hulls(dist) if hulls is None else hulls).least(mean_kl))


def argmax_hulls(dist: TopK, costs: Floats | None = None) -> Hulls:
    """Return the least p(argmax q) of N steps by what is spent; `costs` are their `mode_costs`.

    A token that is not stored has a probability of at least 0, at the cost of rank K or more.
    """
    p, costs = dist.probs, mode_costs(dist) if costs is None else costs
    if dist.k < dist.vocab_size:
        p = np.column_stack([p, np.zeros(len(p))])
        costs = np.column_stack([costs, costs[:, -1]])
    return Hulls.of(p, costs)


def lossless(dist: TopK, eps: ArrayLike) -> tuple[Floats, Floats]:
    """Return bounds of the least 1 - TV(p, q) with KL(p||q) <= eps, (N,) each.

    It is 1 - max h(p(A)) over proper subsets A of the tokens, h(a) = a - `sampled_draft`(a, eps),
    which is concave. With p0 > 1/2 no A has a mass in (1 - p0, p0): where the peak of h is in
    there, the two ends decide and the result is exact. Elsewhere the lower end takes the peak, the
    upper one the sums of stored tokens that are nearest to it.

    Args:
        dist: N steps.
        eps: nats, at least 0; one number, or (N,).

    Raises:
        ValueError: eps is negative.

    Example:
        >>> [end.round(6).tolist() for end in lossless(TopK.from_probabilities([0.9, 0.1]), 0.1)]
        [[0.817621], [0.817621]]
    """
    levels = _checked(1.0, eps)[1]  # a number is not repeated for every step
    if dist.vocab_size == 1:
        return np.ones(len(dist)), np.ones(len(dist))
    most, sides, known, peak = _lost(dist, levels)
    sums = [a - least_kept(a, levels) for a in _subset_sums(dist, peak)]
    found = np.where(known, sides, np.maximum(sides, np.max(sums, axis=0)))
    ends = np.maximum(most, found), found
    return tuple(np.where(levels > 0, 1.0 - end, 1.0) for end in ends)  # type: ignore[return-value]


def lossless_least(dist: TopK, eps: ArrayLike) -> Floats:
    """Return the lower end of `lossless`, (N,), for which no sums of tokens are needed."""
    levels = _checked(1.0, eps)[1]
    if dist.vocab_size == 1:
        return np.ones(len(dist))
    return np.where(levels > 0, 1.0 - _lost(dist, levels)[0], 1.0)


def _lost(dist: TopK, levels: Floats) -> tuple[Floats, Floats, NDArray[np.bool_], Floats]:
    """Return the most that is lost, h at p0 and 1 - p0, if these decide, and where h is largest."""
    peak, height = _peak(levels)
    p0 = np.minimum(dist.top_probability, 1.0)
    sides = np.max([a - least_kept(a, levels) for a in (p0, 1.0 - p0)], axis=0)
    known = (p0 > 0.5) & (peak > 1.0 - p0) & (peak < p0)
    return np.where(known, sides, np.maximum(height, sides)), sides, known, peak


def lossless_mean(dist: TopK, mean_kl: float) -> float:
    """Return a lower bound of the mean of 1 - TV(p, q) at a mean KL over all steps.

    By a price x: a step loses at most max over A of max over b of p(A) - b - x kl(p(A) || b), taken
    as in `lossless`. The loss need not be concave in eps, as A changes with it; prices convexify.

    Raises:
        ValueError: the mean KL is negative.
    """
    _checked(1.0, mean_kl)
    if mean_kl == 0 or dist.vocab_size == 1:
        return 1.0
    p0 = np.minimum(dist.top_probability, 1.0)

    def priced(x: float) -> tuple[float, float]:
        peak_a, peak_b = _peak_at(x)
        ends = np.stack([p0, 1.0 - p0])
        b = 2.0 * x * ends / (1.0 + x + np.sqrt((1.0 - x) ** 2 + 4.0 * x * (1.0 - ends)))
        cost = coin_kl(ends, b)
        value = ends - b - x * cost
        side = np.argmax(value, axis=0)[None]
        known = (p0 > 0.5) & (peak_a > 1.0 - p0) & (peak_a < p0)
        top_cost = float(coin_kl(peak_a, peak_b))
        gain = np.where(
            known, np.take_along_axis(value, side, axis=0)[0], peak_a - peak_b - x * top_cost
        )
        spent = np.where(known, np.take_along_axis(cost, side, axis=0)[0], top_cost)
        return 1.0 - float(gain.mean()) - x * mean_kl, float(spent.mean())

    return max(0.0, _best_price(priced, mean_kl))


def _subset_sums(dist: TopK, target: Floats) -> list[Floats]:
    """Return masses of proper subsets near a target: of stored tokens, with the tail or without."""
    p0, sums = np.minimum(dist.top_probability, 1.0), []
    whole = dist.k == dist.vocab_size
    for start, with_rest in ((np.zeros(len(dist)), whole), (np.exp(dist.log_tail), True)):
        total = start
        for p in dist.probs.T[: dist.k - with_rest]:  # never all tokens
            total = np.where(total + p <= target, total + p, total)
        sums += [total, np.where(total > 0, 1.0 - total, p0)]
    return sums


def _peak_at(price: ArrayLike) -> tuple[Floats, Floats]:
    """Return the coins a, b of the largest a - b - x kl(a || b); their odds are e^(1/x) apart."""
    y = 1.0 / np.asarray(price, dtype=np.float64)
    series = 0.5 - y / 12.0 + y**3 / 720.0
    b = np.where(y < 0.03, series, 1.0 / y + np.exp(-y) / np.expm1(-y))
    return np.minimum(1.0, b * -y / np.expm1(-y)), b


def _peak(eps: Floats) -> tuple[Floats, Floats]:
    """Return where h is largest, and its largest value or a little more, at most 1."""
    low, high = np.full(eps.shape, LEAST_PRICE), np.full(eps.shape, LARGEST_PRICE)
    for _ in range(HALVINGS):
        price = np.sqrt(low * high)
        spends = coin_kl(*_peak_at(price)) > eps
        low, high = np.where(spends, price, low), np.where(spends, high, price)
        if np.all(high <= low * (1.0 + PRICE_STEP)):
            break
    a, b = _peak_at(high)
    return a, np.minimum(1.0, a - b + high * (eps - coin_kl(a, b)))


def _best_price(priced: Callable[[float], tuple[float, float]], budget: float) -> float:
    """Return the largest lower bound over prices; what is spent falls as the price rises."""
    low, high, best = math.log(LEAST_PRICE), math.log(LARGEST_PRICE), -np.inf
    over, under = math.nan, math.nan  # log(spent / budget) at both ends
    for at in range(HALVINGS):
        # by the secant, and every third time in the middle
        part = over / (over - under) if at % 3 and math.isfinite(over - under) else 0.5
        part = min(max(part, SECANT), 1.0 - SECANT)
        price = low + part * (high - low)
        bound, spent = priced(math.exp(price))
        best = max(best, bound)
        gap = math.log(spent / budget) if spent / budget > 0 else -math.inf
        if abs(gap) < PRICE_STEP or high - low < PRICE_STEP:
            break
        if gap > 0:
            low, over = price, gap
        else:
            high, under = price, gap
    return best


def _checked(mass: ArrayLike, eps: ArrayLike) -> tuple[Floats, Floats]:
    a, nats = np.asarray(mass, dtype=np.float64), np.asarray(eps, dtype=np.float64)
    if not np.all((a >= 0) & (a <= 1)):
        raise ValueError("a mass must be in [0, 1]")
    if not np.all(nats >= 0):
        raise ValueError(f"eps={eps!r} is not allowed: give nats, at least 0")
    a, nats = np.broadcast_arrays(a, nats)
    return a, nats

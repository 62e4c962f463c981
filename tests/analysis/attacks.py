"""Attacks on certificates.

Tails: full distributions that agree with the stored values of a step (top K, T, H) but differ
beyond K; the exact certificate of each must lie in the interval of the stored step. Drafts: random
q whose mode is rejected; KL(p || q) must never be below lower. The output has the share of exact
intervals.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from analysis.certificates.certify import certify
from analysis.certificates.kernel import Certificates
from analysis.rules import AbsoluteThreshold, Additive, Multiplicative, Rule, Typical
from analysis.topk import Floats, TopK

CHUNK = 1000  # cases at a time
ROUNDING = 1e-11  # relative error allowed in a certificate; actual errors are far below

RULES: list[Rule] = [
    *(AbsoluteThreshold(theta) for theta in (0.0, 1e-4, 1e-3, 4e-3, 0.01)),
    *(Additive(t) for t in (0.2, 0.4, 0.6)),
    *(Multiplicative(alpha) for alpha in (0.3, 0.1, 0.03, 0.003)),
    *(Typical(1.0, delta0) for delta0 in (0.3, 0.09, 0.02, 0.002)),
]


def targets(rng: np.random.Generator, steps: int, size: int) -> Floats:
    """Draw ranked target distributions, from peaked to flat, some with ties and zeros.

    One in ten is so flat that tokens beyond a small K are active.
    """
    weights = rng.gamma(rng.uniform(0.05, 2.0, (steps, 1)), size=(steps, size)) + 1e-12
    weights *= np.arange(1, size + 1) ** -rng.uniform(0.0, 2.0, (steps, 1))
    weights = np.where(rng.random((steps, 1)) < 0.1, np.round(weights, 1) + 0.1, weights)
    weights = np.where(
        (rng.random((steps, 1)) < 0.1) & (rng.random(weights.shape) < 0.3), 0.0, weights
    )
    weights[:, 0] += 1e-3
    flat = rng.uniform(0.8, 1.2, weights.shape)
    weights = np.where(rng.random((steps, 1)) < 0.1, flat, weights)
    return np.asarray(-np.sort(-weights / weights.sum(axis=1, keepdims=True), axis=1))


def tail_entropy(tail: Floats) -> Floats:
    """Return the sums of -x log x over rows."""
    return np.asarray(-np.where(tail > 0, tail * np.log(np.maximum(tail, 1e-300)), 0).sum(axis=1))


def random_tails(rng: np.random.Generator, tail: Floats, cap: Floats, theta: Floats) -> Floats:
    """Draw tails with the same sum, none above cap, many with tokens at or close to theta."""
    steps, n = tail.shape
    mass = tail.sum(axis=1)
    left, drawn = mass.copy(), np.zeros_like(tail)
    style = rng.integers(0, 5, steps)
    level = np.select(
        [style == 0, style == 1, style == 2, style == 3],
        [cap, theta * (1 + 1e-12), theta, theta * rng.random(steps)],
        mass / n,
    )
    for token in range(n):  # spend the mass token by token, never leaving more than fits
        room = (n - token - 1) * cap
        wish = np.where(rng.random(steps) < 0.8, level, rng.random(steps) * cap)
        take = np.clip(np.minimum(wish, left), np.maximum(0.0, left - room), np.minimum(cap, left))
        drawn[:, token] = take
        left = np.maximum(0.0, left - take)
    return drawn


def match_entropy(low: Floats, high: Floats, h: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Return tails with entropy h between two tails, and (N,) whether there is one."""
    possible = (tail_entropy(low) <= h) & (tail_entropy(high) >= h)
    left, right = np.zeros(len(h)), np.ones(len(h))
    for _ in range(60):
        share = 0.5 * (left + right)
        below = tail_entropy(low + share[:, None] * (high - low)) < h
        left, right = np.where(below, share, left), np.where(below, right, share)
    return low + right[:, None] * (high - low), possible


def attack_tails(cases: int, size: int, k: int, seed: int = 0) -> tuple[int, float, float, float]:
    """Compare intervals with the exact certificates of other tails with the same T and H.

    Returns:
        The number of cases, the largest relative excess over an end, the share of exact intervals,
        and the share of tails that moved.
    """
    rng = np.random.default_rng(seed)
    done, worst, exact, moved = 0, 0.0, [], []
    while done < cases:
        p = targets(rng, CHUNK, size)
        stored = TopK.from_probabilities(p, k=k)
        intervals = certify(stored, RULES)
        tail, cap = p[:, k:], p[:, k - 1]
        chosen = rng.integers(0, len(RULES), CHUNK)
        theta = np.choose(
            chosen % 16, [cut.threshold(stored) for rule in RULES if (cut := rule.cut(stored))]
        )
        theta = np.clip(theta, 0.0, cap)
        pair = [random_tails(rng, tail, cap, theta) for _ in range(2)]
        ends = np.array([tail_entropy(part) for part in pair])
        swap = (ends[0] > ends[1])[:, None]
        low, high = np.where(swap, pair[1], pair[0]), np.where(swap, pair[0], pair[1])
        even = np.broadcast_to(tail.mean(axis=1, keepdims=True), tail.shape)
        high = np.where(
            (rng.random(CHUNK) < 0.5)[:, None] | (ends.max(axis=0) < tail_entropy(tail))[:, None],
            even,
            high,
        )
        other, possible = match_entropy(low, high, tail_entropy(tail))
        full = np.column_stack([p[:, :k], other])[possible]
        truth = certify(TopK.from_probabilities(full), RULES).lower
        worst = max(worst, excess(intervals, truth, possible))
        exact.append((intervals.lower == intervals.upper).mean())
        moved.append((np.abs(other - tail).max(axis=1)[possible] > 1e-6).mean())
        done += len(full)
    return done, worst, float(np.mean(exact)), float(np.mean(moved))


def excess(intervals: Certificates, truth: Floats, rows: NDArray[np.bool_]) -> float:
    """Return the largest excess of the truth over [lower, upper], relative to the truth."""
    lower, upper = intervals.lower[rows], intervals.upper[rows]
    infinite = np.isinf(truth)
    scale = np.where(infinite | (truth == 0), 1.0, truth)
    finite = np.where(infinite, 0.0, truth)
    below = np.where(infinite, 0.0, (np.where(np.isinf(lower), np.inf, lower) - finite) / scale)
    above = np.where(
        infinite,
        np.where(np.isinf(upper), 0.0, np.inf),
        (finite - np.where(np.isinf(upper), finite, upper)) / scale,
    )
    return float(max(below.max(), above.max()))


def attack_drafts(cases: int, size: int, k: int, seed: int = 0) -> float:
    """Return the least KL(p || q) / lower over random drafts whose mode is rejected."""
    rng = np.random.default_rng(seed)
    done, least = 0, np.inf
    while done < cases:
        p = np.maximum(targets(rng, CHUNK, size), 1e-15)
        p /= p.sum(axis=1, keepdims=True)
        rule = RULES[int(rng.integers(len(RULES)))]
        dist = TopK.from_probabilities(p, k=k)
        n = certify(TopK.from_probabilities(p), [rule]).accepted_count[:, 0]
        rows = np.flatnonzero((n < size) & (n > 0))
        p, n, lower = p[rows], n[rows], certify(dist[rows], [rule]).lower[:, 0]
        token = n + (rng.random(len(n)) ** 3 * (size - n)).astype(int)  # often the first rejected
        q = p ** rng.uniform(0.2, 1.5, (len(p), 1)) * np.exp(
            rng.uniform(0, 1, (len(p), 1)) * rng.standard_normal(p.shape)
        )
        top = np.sort(q, axis=1)[:, -1]
        # level the drafts down to the token's share, or lift the token to the mode
        lift = rng.random(len(p)) < 0.5
        own = q[np.arange(len(p)), token]
        level = np.where(lift, top, own + rng.random(len(p)) * (top - own))
        q = np.minimum(q, level[:, None])
        q[np.arange(len(p)), token] = level
        q /= q.sum(axis=1, keepdims=True)
        kl = (p * np.log(p / q)).sum(axis=1)
        positive = (lower > 1e-6) & np.isfinite(lower)
        if positive.any():
            least = min(least, float((kl[positive] / lower[positive]).min()))
        done += len(p)
    return least

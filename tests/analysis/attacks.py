"""Attacks on certificates.

Tails: full distributions that agree with the stored values of a step (top K, T) but differ beyond
K; the exact certificate of each must lie in the interval of the stored step. Drafts: random q whose
mode is rejected; KL(p || q) must never be below lower.
"""

import numpy as np

from analysis.certificates.certify import certify
from analysis.certificates.kernel import Certificates
from analysis.rules import AbsoluteThreshold, Additive, Multiplicative, Rule
from analysis.topk import Floats, TopK

CHUNK = 1000  # cases at a time
ROUNDING = 1e-11  # relative error allowed in a certificate; actual errors are far below

RULES: list[Rule] = [
    *(AbsoluteThreshold(theta) for theta in (0.0, 1e-4, 1e-3, 4e-3, 0.01)),
    *(Additive(t) for t in (0.2, 0.4, 0.6)),
    *(Multiplicative(alpha) for alpha in (0.3, 0.1, 0.03, 0.003)),
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


def attack_tails(cases: int, size: int, k: int, seed: int = 0) -> tuple[float, float]:
    """Compare intervals with the exact certificates of other tails of the same mass.

    Returns:
        The largest relative excess over an end, and the share of tails that moved.
    """
    rng = np.random.default_rng(seed)
    p = targets(rng, cases, size)
    stored = TopK.from_probabilities(p, k=k)
    cap, tail = p[:, k - 1], p[:, k:]
    thetas = [cut.threshold(stored) for rule in RULES if (cut := rule.cut(stored))]
    theta = np.clip(np.choose(rng.integers(0, len(RULES), cases), thetas), 0.0, cap)
    other = random_tails(rng, tail, cap, theta)
    truth = certify(TopK.from_probabilities(np.column_stack([p[:, :k], other])), RULES).lower
    moved = float((np.abs(other - tail).max(axis=1) > 1e-6).mean())
    return excess(certify(stored, RULES), truth), moved


def excess(intervals: Certificates, truth: Floats) -> float:
    """Return the largest excess of the truth over [lower, upper], relative to the truth."""
    with np.errstate(invalid="ignore"):
        scale = np.where(np.isinf(truth) | (truth == 0), 1.0, truth)
        below = np.where(intervals.lower == truth, 0.0, (intervals.lower - truth) / scale)
        above = np.where(intervals.upper == truth, 0.0, (truth - intervals.upper) / scale)
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

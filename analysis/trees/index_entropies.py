"""H[R], the entropy of the accepted sibling index of independent drafts, in one context.

H[R], equation (3) of arXiv 2504.15475, links KL to tokens per call. It is at least KL(p || q) (6);
for races it is at most KL + log(KL + 1) + 4 in bits (8); and it bounds the tokens per call from
above (5). Trees draft without replacement, where the index can have less entropy.

The index has no largest value. The probabilities of the first `EXACT` values are exact; later
values are grouped in blocks in which the probability is nearly constant.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..topk import Floats

EXACT = 64  # sibling indices whose probabilities are exact
BLOCKS = 1000  # number of blocks of all later indices
UNLIKELY = 1e-12  # total probability that may be left out
BIN = 0.005  # width of the bins of log(success probability) in which tokens are counted together


def index_entropies(log_p: Floats, log_q: Floats) -> tuple[float, float, float]:
    """Return KL(p || q) and H[R] of greedy sampling and of races, from (V,) log-probabilities.

    All are infinite if the target can emit a token that the drafter never drafts.

    Greedy (GSS, the greedy rejection sampling of Harsha et al.): index i accepts S_(i-1) - S_i,
    with S_i = sum of max(0, p - L_i q), L_0 = 0 and L_(i+1) = L_i + S_i.

    Races (ERSS, the Poisson functional representation of Li and El Gamal): the winner w is drawn
    from p, and its index is geometric with success 1 / sum_j max(p_j, q_j p_w / q_w).
    """
    p = np.exp(log_p)
    q = np.exp(log_q)
    if p[q == 0].sum() > UNLIKELY:
        return math.inf, math.inf, math.inf
    both = (p > 0) & (q > 0)
    q_total = q.sum()
    order = np.argsort(log_q[both] - log_p[both])  # by decreasing p / q
    p = p[both][order]
    q = q[both][order]
    log_ratio = (log_p[both] - log_q[both])[order]
    kl = float(p @ log_ratio)
    ratio = np.exp(log_ratio)
    p_above = np.cumsum(p)
    q_above = np.cumsum(q)
    return (
        max(kl, 0.0),
        _greedy(ratio, p_above, q_above),
        _races(p, 1 / (p_above + ratio * (q_total - q_above))),
    )


def _greedy(ratio: Floats, p_above: Floats, q_above: Floats) -> float:
    p_above = np.append(0.0, p_above)
    q_above = np.append(0.0, q_above)

    def mass_left(level: Any) -> Any:
        """Return S, the probability that is not accepted yet, at a level L."""
        above = np.searchsorted(-ratio, -np.asarray(level))  # tokens with p / q > L
        return np.maximum(p_above[above] - level * q_above[above], 0.0)

    level = 0.0
    remaining = [1.0]
    while len(remaining) <= EXACT and remaining[-1] > UNLIKELY:
        level += remaining[-1]
        remaining.append(float(mass_left(level)))
    masses = -np.diff(remaining)
    if remaining[-1] <= UNLIKELY:
        return _entropy(masses, np.ones_like(masses))
    levels = np.exp(np.linspace(math.log(level), math.log(ratio[0]), BLOCKS + 1))
    rest = mass_left(levels)
    # number of indices in each block, from dL / di = S
    widths = 2 * np.diff(levels) / (rest[1:] + rest[:-1]).clip(min=UNLIKELY)
    return _entropy(np.append(masses, -np.diff(rest)), np.append(np.ones_like(masses), widths))


def _races(p: Floats, success: Floats) -> float:
    log_success = np.log(success)
    group = ((log_success - log_success.min()) / BIN).astype(np.intp)
    weight = np.bincount(group, p)
    mean = np.bincount(group, p * log_success)[weight > 0] / weight[weight > 0]
    weight = weight[weight > 0]
    log_fail = np.log1p(-np.exp(mean).clip(max=1 - 1e-15))
    last = max(2.0 * EXACT, math.log(UNLIKELY) / log_fail.max())
    later = np.exp(np.linspace(math.log(EXACT), math.log(last), BLOCKS + 1))[1:]
    edges = np.append(np.arange(EXACT + 1.0), later)
    remaining = np.exp(edges[:, None] * log_fail) @ weight
    return _entropy(-np.diff(remaining), np.diff(edges))


def _entropy(masses: Floats, widths: Floats) -> float:
    """Return the entropy of an index, from the masses and widths of uniform blocks."""
    seen = masses > 0
    return float(-(masses[seen] * np.log(masses[seen] / widths[seen])).sum())


def races_entropy_upper(kl: float) -> float:
    """Return the bound (8) on H[R] of races in nats: KL + log(KL / log 2 + 1) + 4 log 2."""
    return kl + math.log1p(kl / math.log(2)) + 4 * math.log(2)

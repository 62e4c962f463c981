"""What a step can be, where its log-probabilities are known up to an error: ranges of its numbers.

Of the K stored tokens each probability lies between two ends. The tail is what they leave of 1, its
N = V - K tokens are at most as probable as rank K, and no more is known of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from .topk import Floats, TopK

ROUNDING = 1e-12  # of sums of probabilities, far above that of float64


class Range(NamedTuple):
    """The least and the largest value, both included."""

    low: Floats
    high: Floats


def probability_range(dist: TopK) -> Range:
    """Return the (N, K) ends of the stored probabilities; both fall, as the probabilities do."""
    assert dist.log_prob_error is not None
    low, high = (dist.log_probs + sign * dist.log_prob_error for sign in (-1.0, 1.0))
    low = np.maximum.accumulate(low[:, ::-1], axis=1)[:, ::-1]
    high = np.minimum.accumulate(high, axis=1)
    return Range(np.exp(low), np.minimum(np.exp(high), 1.0))


def tail_range(dist: TopK) -> Range:
    """Return the (N,) ends of T, the mass that is not stored."""
    low, high = probability_range(dist)
    others = dist.vocab_size - dist.k
    if not others:
        return Range(np.zeros(len(dist)), np.zeros(len(dist)))
    least, most = (1.0 - part.sum(axis=1) for part in (high, low))
    most = np.minimum(most + ROUNDING, others * high[:, -1])
    return Range(np.minimum(np.maximum(least - ROUNDING, 0.0), most), most)


def entropy_range(dist: TopK) -> Range:
    """Return the (N,) ends of the entropy over the whole vocabulary, nats.

    x log(1/x) is concave, so that of a stored token is least at an end. Of the tail, it is least
    where every token is as probable as rank K, and largest where all are alike.
    """
    low, high = probability_range(dist)
    at_ends = np.stack([_surprise(low), _surprise(high)])
    peak = np.where((low < 1 / np.e) & (1 / np.e < high), 1 / np.e, at_ends.max(axis=0))
    tail, others = tail_range(dist), dist.vocab_size - dist.k
    with np.errstate(divide="ignore", invalid="ignore"):
        last = np.where(tail.low > 0, -tail.low * np.log(high[:, -1]), 0.0)
        mass = np.minimum(tail.high, others / np.e)
        even = np.where(mass > 0, mass * (np.log(others) - np.log(mass)), 0.0)
    return Range(at_ends.min(axis=0).sum(axis=1) + last, peak.sum(axis=1) + even)


def _surprise(p: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(p > 0, -p * np.log(p), 0.0)

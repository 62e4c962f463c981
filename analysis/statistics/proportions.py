"""Proportions: intervals, paired differences, and calibration of a confidence.

Right and wrong answers to the same questions are paired. Only discordant pairs distinguish the two:
c that only the first has right, and b that only the second has right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from ..topk import Floats
from .bootstrap import Flags, Integers

BINS = 10  # of a confidence, equal parts of [0, 1]


def quantile(confidence: float) -> float:
    """Return the normal quantile of a two-sided interval.

    >>> round(quantile(0.95), 4)
    1.96
    """
    return NormalDist().inv_cdf((1 + confidence) / 2)


def proportion(right: int, items: int, confidence: float) -> tuple[float, float]:
    """Return Wilson's interval of a proportion (Wilson 1927), in [0, 1] and of positive width.

    >>> [round(end, 4) for end in proportion(0, 10, 0.95)]
    [0.0, 0.2775]

    Raises:
        ValueError: there are no items, or `right` exceeds their number.
    """
    if not 0 <= right <= items or items == 0:
        raise ValueError(f"{right} of {items} is not a proportion")
    z = quantile(confidence)
    share, scale = right / items, 1 + z * z / items
    middle = (share + z * z / (2 * items)) / scale
    half = z * math.sqrt(share * (1 - share) / items + (z / (2 * items)) ** 2) / scale
    # ends at 0 and 1 are exact; rounding must not move them
    low = 0.0 if right == 0 else middle - half
    return low, 1.0 if right == items else middle + half


def difference(lost: int, won: int, items: int, confidence: float) -> tuple[float, float]:
    """Return the interval of the second proportion minus the first (Agresti and Min 2005).

    Wald's interval after adding 1/2 to each of the four cells of the paired table, so its width is
    positive even without discordant pairs.

    Args:
        lost: c, items that only the first has right.
        won: b, items that only the second has right.
        items: number of all items, concordant ones included.
        confidence: of the interval.

    >>> [round(end, 3) for end in difference(0, 0, 100, 0.95)]
    [-0.019, 0.019]

    Raises:
        ValueError: there are no items, or the discordant pairs exceed their number.
    """
    if min(lost, won) < 0 or lost + won > items or items == 0:
        raise ValueError(f"{lost} lost and {won} won of {items} items is not a paired table")
    mean, error = _mean_difference(lost, won, items)
    half = quantile(confidence) * error
    return max(-1.0, mean - half), min(1.0, mean + half)


def _mean_difference(lost: int, won: int, items: int) -> tuple[float, float]:
    """Return the difference and its standard error, with 1/2 added to each of four cells."""
    size = items + 2
    mean = (won - lost) / size
    return mean, math.sqrt(((won + lost + 1) / size - mean * mean) / size)


def loss_p_value(lost: int, won: int, items: int, margin: float) -> float:
    """Return the one-sided p-value of a loss of at least `margin`, consistent with `difference`.

    It is below 1 - confidence if and only if the lower end of the one-sided interval is above
    -margin.

    >>> round(loss_p_value(20, 21, 316, 0.05), 4)
    0.0046
    """
    mean, error = _mean_difference(lost, won, items)
    return NormalDist().cdf(-(mean + margin) / error)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values with Holm's correction, to be compared with the level of a single test.

    Of n values in increasing order the i-th, from 0, is multiplied by n - i and raised to those
    before it (Holm 1979). The probability of any false rejection is then at most the level.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    corrected = np.zeros(len(p_values))
    times = len(p_values) - np.arange(len(p_values))
    corrected[order] = np.maximum.accumulate(times * np.asarray(p_values)[order])
    return [min(1.0, float(p)) for p in corrected]


def mcnemar(lost: int, won: int) -> float:
    """Return the two-sided p-value of McNemar's exact test on the discordant pairs.

    >>> mcnemar(0, 0), mcnemar(5, 0), mcnemar(3, 3)
    (1.0, 0.0625, 1.0)
    """
    pairs, fewer = lost + won, min(lost, won)
    tail = sum(math.comb(pairs, k) for k in range(fewer + 1))
    return float(min(1.0, 2 * tail / 2**pairs))


def reliability(confidence: Floats, accepted: Flags, prompts: Integers) -> Floats:
    """Return the number of tokens, their confidence and their acceptance by bin, as sums.

    Args:
        confidence: (N,) the drafter's probability of each tested token; 1 is in the last bin.
        accepted: (N,) whether it was accepted.
        prompts: (N,) index of its prompt, 0 .. P-1.

    Returns:
        (P, BINS, 3) sums: number of tokens, confidence, number of accepted tokens.

    Raises:
        ValueError: a confidence lies outside [0, 1].
    """
    if not np.all((confidence >= 0) & (confidence <= 1)):
        raise ValueError("a confidence lies outside [0, 1]: give probabilities")
    sums = np.zeros((int(prompts.max(initial=-1)) + 1, BINS, 3))
    bin_index = np.minimum((confidence * BINS).astype(np.intp), BINS - 1)
    columns = [np.ones_like(confidence), confidence, accepted]
    np.add.at(sums, (prompts, bin_index), np.column_stack(columns))
    return sums


def calibration_error(sums: Floats) -> Floats:
    """Return the expected calibration error from (..., BINS, 3) sums of `reliability`.

    ECE = sum over bins b of n_b / N |accepted_b - confidence_b|, means of the n_b tokens there.

    >>> q, accepted = np.array([0.8, 0.8, 0.3]), np.array([True, True, False])
    >>> sums = reliability(q, accepted, np.array([0, 0, 0]))
    >>> float(calibration_error(sums.sum(axis=0)).round(6))  # 2/3 of 0.2, and 1/3 of 0.3
    0.233333
    """
    tokens, confidence, accepted = np.moveaxis(sums, -1, 0)
    return np.asarray(np.abs(accepted - confidence).sum(axis=-1) / tokens.sum(axis=-1))

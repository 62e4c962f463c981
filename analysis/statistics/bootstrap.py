"""Means, ratios and quantiles over decoding steps, and their bootstrap over prompts.

Steps of one prompt are correlated, so whole prompts are resampled, each with all its answers. A
certificate can be +inf (empty rejection region): quantiles rank it at the top, means replace it by
the rule's ceiling. If a certificate is an interval, its lower end counts.

With few prompts plain percentile intervals are too narrow, so they are widened by Student's t
(`student_factor`, `tail_level`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..array_input import as_array
from ..topk import Floats, TopK
from ..validation import described
from .estimate import Estimate

Flags = NDArray[np.bool_]
Integers = NDArray[np.intp]
Numbers = NDArray[np.float64] | NDArray[np.intp]
Counted = NDArray[Any]  # numbers or flags

QUANTILES = {"median": 0.5, "p5": 0.05, "p25": 0.25}
MIN_SPREAD = 1e-12  # a smaller standard deviation of draws is rounding error
# with fewer prompts, intervals of quantiles and simultaneous ones cover less often than their
# confidence: benchmarks/results/bootstrap_coverage.csv
FEW_PROMPTS = 30
MAX_GROUPS = 8192  # if there are more prompts, so many groups of them are resampled
MAX_WEIGHTS = 2**24  # resamples times groups, unless that leaves fewer than `ALWAYS_DRAWN` groups
ALWAYS_DRAWN = 1000  # so many prompts are never grouped, whatever the number of resamples


class Resampling(NamedTuple):
    """The settings of a bootstrap; `confidence` is that of every interval."""

    resamples: int
    confidence: float
    seed: int


def student_factor(confidence: float, prompts: int) -> float:
    """Return sqrt(n / (n - 1)) t, the half width of an interval over n prompts in standard errors.

    t is the quantile of Student's t at (1 + confidence) / 2 with n - 1 degrees of freedom. As n
    grows, this becomes the quantile of the normal law. NaN for a single prompt.

    >>> [round(student_factor(0.95, n), 3) for n in (2, 6, 30, 100_000)]
    [17.969, 2.816, 2.08, 1.96]
    """
    from scipy.special import stdtrit  # importing it takes 0.4 s, and every command imports this

    if prompts < 2:
        return math.nan
    t = float(stdtrit(prompts - 1, (1 + confidence) / 2))
    return math.sqrt(prompts / (prompts - 1)) * t


def tail_level(confidence: float, prompts: int) -> float:
    """Return the share of draws beyond each end of an expanded percentile interval.

    It is Phi(-`student_factor`) instead of (1 - confidence) / 2: Hesterberg 2015, "What Teachers
    Should Know About the Bootstrap", arXiv 1411.5279. NaN for a single prompt.

    >>> [round(tail_level(0.95, n), 4) for n in (2, 6, 30, 100_000)]
    [0.0, 0.0024, 0.0188, 0.025]
    """
    return math.erfc(student_factor(confidence, prompts) / math.sqrt(2)) / 2


def expanded_interval(draws: Floats, tail: float) -> tuple[Floats, Floats]:
    """Return the ends (...) of the expanded percentile intervals of (B, ...) draws.

    The share `tail` (`tail_level`) of the draws lies beyond each end. Draws of +inf rank at the
    top. Draws of NaN, where the statistic is undefined, are left out; if all are, or if `tail` is
    NaN, the ends are NaN.
    """
    if math.isnan(tail):
        undefined = draws[0] * math.nan
        return undefined, undefined
    ordered = np.sort(draws, axis=0)  # NaN last
    valid = np.sum(~np.isnan(draws), axis=0)
    cut = quantile_rank(tail, valid)
    low = np.take_along_axis(ordered, (cut - 1)[None], axis=0)[0]
    high = np.take_along_axis(ordered, np.maximum(valid - cut, 0)[None], axis=0)[0]
    return low, high


class PromptBootstrap:
    """Resamples of prompts with replacement, shared by all statistics.

    Attributes:
        answer_index: (N,) the answer each step belongs to, 0 .. A-1.
        answer_steps: (A,) number of steps of each answer.
        count: number of prompts.
        weights: (B, G) multiplicity of each prompt, or group of prompts, in each of B resamples. To
            bound memory, no more than G = min(P, `MAX_GROUPS`, max(`ALWAYS_DRAWN`,
            `MAX_WEIGHTS` // B)) are drawn. If there are more prompts than that, these are random
            groups, whose sizes differ by at most one.
        confidence: of the intervals.
        tail: the share of draws beyond each end of an interval; NaN for a single prompt.
    """

    def __init__(
        self,
        answers: Any,
        resamples: int,
        confidence: float,
        seed: int,
        prompt_of_answer: Integers | None = None,
    ) -> None:
        """Draw the resamples.

        Args:
            answers: (N,), a label of the answer each step belongs to: numbers, texts or other
                hashable objects.
            resamples: B.
            confidence: of the intervals.
            seed: of the draws.
            prompt_of_answer: (A,), the number of the prompt each answer belongs to, from 0. None:
                each answer has a prompt of its own.

        Raises:
            ValueError: there is not one label per step.
        """
        self.answer_index = numbered("prompts", answers)
        self.answer_steps = np.bincount(self.answer_index)
        if prompt_of_answer is None:
            group = np.arange(len(self.answer_steps))
        else:
            group = np.asarray(prompt_of_answer)
        self.count = int(group.max()) + 1
        most = max(ALWAYS_DRAWN, MAX_WEIGHTS // resamples)
        drawn = min(self.count, MAX_GROUPS, most)
        generator = np.random.default_rng(seed)
        times = generator.multinomial(drawn, np.full(drawn, 1 / drawn), size=resamples)
        self.weights = times.astype(np.float64)
        self.confidence = confidence
        self.tail = tail_level(confidence, drawn)
        if drawn < self.count:
            group = (generator.permutation(self.count) % drawn)[group]
        self._group = group  # (A,) column of `weights` of each answer
        self._grouped = prompt_of_answer is not None or drawn < self.count

    def sums(self, per_answer: Numbers) -> Floats:
        """Return the (B, ...) sums over resampled prompts, from the (A, ...) sums of each answer.

        Integers are summed exactly, whatever the order of addition. A resample that draws a sum of
        +inf has the sum +inf.
        """
        flat = np.asarray(per_answer, dtype=np.float64).reshape(len(self.answer_steps), -1)
        if self._grouped:
            size = self.weights.shape[1]
            flat = np.stack([np.bincount(self._group, x, size) for x in flat.T], axis=1)
        endless = np.isposinf(flat)
        sums = self.weights @ np.where(endless, 0.0, flat)
        if endless.any():
            sums[(self.weights @ endless.astype(np.float64)) > 0] = np.inf
        return sums.reshape(-1, *np.shape(per_answer)[1:])

    def ratio(self, above: Numbers, below: Numbers, empty: float = math.nan) -> Estimate:
        """Return the ratios (...) of sums over all prompts, with their intervals.

        Args:
            above: (A, ...), the numerator's sum of each answer.
            below: (A, ...), the denominator's.
            empty: the value of a ratio whose denominator is 0.
        """

        def quotient(above: Floats, below: Floats) -> Floats:
            above, below = np.broadcast_arrays(above, below)
            result = np.full(below.shape, empty)
            np.divide(above, below, out=result, where=below != 0)
            return result

        low, high = self.interval(quotient(self.sums(above), self.sums(below)))
        return Estimate(quotient(above.sum(axis=0), below.sum(axis=0))[()], low, high)

    def ratio_interval(self, counted: Counted, among: Counted | None = None) -> Estimate:
        """Return the `ratio` of the sums of (N,) values: `counted` to `among`, or to all steps."""
        above = np.bincount(self.answer_index, counted)
        below = self.answer_steps if among is None else np.bincount(self.answer_index, among)
        return self.ratio(above, below)

    def interval(self, draws: Floats) -> tuple[Floats, Floats]:
        """Return the `expanded_interval` of (B, ...) draws; NaN if there is a single prompt."""
        return expanded_interval(draws, self.tail)

    def quantiles(self, values: Floats, shares: Sequence[float]) -> tuple[Floats, Floats]:
        """Return the quantiles of (N,) values and their draws, (Q,) and (B, Q).

        The quantile at a share q is the smallest value that at least a share q of the steps does
        not exceed: always an observed value, possibly +inf. A resample weights the sorted steps.
        Its quantile is found among blocks of b steps, then inside one: O(B (G N/b + Q b)).
        """
        size = len(values)
        order = np.argsort(values, kind="stable")
        ordered = values[order]
        levels = np.asarray(shares, dtype=np.float64)
        point = ordered[quantile_rank(levels, np.full(levels.shape, size)) - 1]

        block = math.isqrt(size) + 1
        blocks = -(-size // block)
        never = self.weights.shape[1]  # owner of the padding, which is never drawn
        owner = np.full(blocks * block, never)
        owner[:size] = self._group[self.answer_index[order]]
        weights = np.column_stack([self.weights, np.zeros(len(self.weights))])
        cell = owner * blocks + np.arange(len(owner)) // block
        content = np.bincount(cell, minlength=(never + 1) * blocks).reshape(-1, blocks)
        reached = np.cumsum(weights @ content.astype(np.float64), axis=1)  # (B, blocks)
        wanted = quantile_rank(levels, reached[:, -1:])  # (B, Q)

        block_index = np.sum(
            reached[:, None, :] < wanted[:, :, None], axis=2
        )  # (B, Q) block of the rank
        padded = np.column_stack([np.zeros(len(reached)), reached])
        before = np.take_along_axis(padded, block_index, axis=1)
        inside = owner.reshape(blocks, block)[block_index]  # (B, Q, block)
        steps = np.cumsum(weights[np.arange(len(weights))[:, None, None], inside], axis=2)
        offset = np.sum(before[:, :, None] + steps < wanted[:, :, None], axis=2)
        return point, ordered[block_index * block + offset]

    def quantile_interval(self, values: Floats, share: float = 0.5) -> Estimate:
        """Return the quantile of (N,) values at a share, with its interval."""
        points, draws = self.quantiles(values, [share])
        low, high = self.interval(draws)
        return Estimate(float(points[0]), float(low[0]), float(high[0]))


def numbered(name: str, labels: Any) -> Integers:
    """Return a number 0 .. P-1 for each of (N,) labels, equal for equal labels.

    An array of numbers is numbered by size, anything else in order of appearance.

    Raises:
        ValueError: the labels are not one row, or one is missing, masked or not hashable.
    """
    import pandas as pd

    if hasattr(labels, "detach") or isinstance(labels, np.ndarray):
        labels = as_array(name, labels)  # of a tensor; without a mask
    counted = isinstance(labels, np.ndarray) and labels.ndim == 1 and labels.dtype.kind in "iu"
    if counted and labels.size:
        return np.unique(labels, return_inverse=True)[1].astype(np.intp)
    is_row = getattr(labels, "ndim", 1) == 1 and isinstance(labels, Iterable)
    values = pd.Series(list(labels) if is_row and not isinstance(labels, str) else [], dtype=object)
    if values.empty:
        raise ValueError(f"{name} is {described(labels)}: give one label per step, (N,)")
    if values.isna().any():
        raise ValueError(f"{name}: step {int(values.isna().argmax())} has no label")
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "iuf":
        return np.unique(labels, return_inverse=True)[1].astype(np.intp)
    try:
        return pd.factorize(values)[0].astype(np.intp)
    except TypeError as error:
        raise ValueError(
            f"{name}: give labels that are hashable, as numbers or texts: {error}"
        ) from None


def simultaneous(
    estimates: Floats, draws: Floats, confidence: float, prompts: int
) -> tuple[Floats, Floats]:
    """Return simultaneous intervals of M quantities, ends (M,) each.

    They hold together, so the interval of the largest quantity covers as often as it says; its
    pointwise interval would not. With e the estimates, x their draws in resample b and s the
    standard deviations of x over b, the ends are

        e -/+ c w s,    c the quantile at `confidence` over b of max over the M of |x - e| / s

    (the maximum of the studentised deviations), and w the `student_factor` divided by the quantile
    of the normal law. A quantity without spread has no width.

    `draws` (B, M) are paired: a row is one resample. Draws that are not finite are left out. The
    ends are NaN for a single prompt, and for a quantity that is undefined or whose draws all are;
    they are infinite for an infinite quantity. Neither widens the intervals of the others.

    >>> draws = np.array([[-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]])
    >>> low, high = simultaneous(np.array([0.0, 5.0]), draws + [0, 5], 0.95, prompts=10)
    >>> low.round(2).tolist(), high.round(2).tolist()
    ([-1.22, 5.0], [1.22, 5.0])
    """
    defined = np.isfinite(draws)
    count = defined.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(defined, draws, 0.0).sum(axis=0) / count
        spread = np.sqrt((np.where(defined, draws - mean, 0.0) ** 2).sum(axis=0) / count)
        spread = np.where(spread > MIN_SPREAD, spread, np.where(count > 0, 0.0, np.nan))
        away = np.abs(draws - estimates) / spread
    counted = defined & (spread > 0) & np.isfinite(estimates)
    largest = np.sort(np.where(counted, away, 0.0).max(axis=1, initial=0.0))
    c = largest[quantile_rank(confidence, len(largest)) - 1]
    widening = student_factor(confidence, prompts) / NormalDist().inv_cdf((1 + confidence) / 2)
    half = c * widening * spread
    return estimates - half, estimates + half


def quantile_rank(level: float | Floats, count: int | NDArray[np.generic]) -> Integers:
    """Return the rank, from 1, of the quantile at `level` among `count` sorted values."""
    # a product that is an integer up to rounding must not move to the next rank
    ranks = np.ceil(np.multiply(level, count) - 1e-9).astype(np.intp)
    return np.asarray(np.maximum(ranks, 1))


def summarise(values: Floats, ceiling: float, bootstrap: PromptBootstrap) -> dict[str, Estimate]:
    """Return mean, median, p5 and p25 of (N,) certificates in nats, with their intervals.

    In the mean the rule's `ceiling` replaces +inf, an empty rejection region; quantiles may be
    +inf.
    """
    mean = bootstrap.ratio_interval(np.where(np.isinf(values), ceiling, values))
    points, draws = bootstrap.quantiles(values, list(QUANTILES.values()))
    lows, highs = bootstrap.interval(draws)
    quantiles = map(Estimate, points.tolist(), lows.tolist(), highs.tolist())
    return {"mean": Estimate(*map(float, mean)), **dict(zip(QUANTILES, quantiles, strict=True))}


def survival(values: Floats, levels: Floats, bootstrap: PromptBootstrap) -> Estimate:
    """Return the shares (G,) of N values strictly above each of (G,) increasing levels.

    Their intervals over prompts are pointwise.
    """
    below = np.searchsorted(levels, values, side="left")  # number of levels below each value
    width = len(levels) + 1
    size = len(bootstrap.answer_steps)
    counts = np.bincount(bootstrap.answer_index * width + below, minlength=size * width)
    above = np.cumsum(counts.reshape(size, width)[:, ::-1], axis=1)[:, -2::-1]
    return bootstrap.ratio(above, bootstrap.answer_steps[:, None])


def top_probability(dist: TopK, ranks: Sequence[int]) -> Floats:
    """Return (N, R) the total probability of the k most probable tokens, for each k in `ranks`."""
    total = np.cumsum(dist.probs[:, : max(ranks)], axis=1)
    mass: Floats = np.minimum(total[:, np.asarray(ranks) - 1], 1.0)  # rounding can exceed 1
    return mass

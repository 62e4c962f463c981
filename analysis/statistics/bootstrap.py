"""Means and quantiles over decoding steps, and their bootstrap over prompts.

Steps of one prompt are correlated, so whole prompts are resampled. A certificate can be +inf
(empty rejection region) or known as an interval [lower, upper]: quantiles rank +inf at the top,
means replace it by the rule's ceiling, and a statistic of an interval is computed at both ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..topk import TopK

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
Integers = NDArray[np.intp]
Numbers = NDArray[np.float64] | NDArray[np.intp]

QUANTILES = {"median": 0.5, "p5": 0.05, "p25": 0.25}
FEW_PROMPTS = 30  # with fewer, percentile intervals over prompts are too narrow


class Resampling(NamedTuple):
    """The settings of a bootstrap; `confidence` is that of all intervals."""

    resamples: int
    confidence: float
    seed: int


def prompt_counts(prompts: int) -> dict[str, int | bool]:
    """Return the columns beside an interval: of how many prompts it is, and if they are too few.

    Examples:
        >>> prompt_counts(29), prompt_counts(30)["few_prompts"]
        ({'prompts': 29, 'few_prompts': True}, False)
    """
    return {"prompts": prompts, "few_prompts": prompts < FEW_PROMPTS}


class PromptBootstrap:
    """Resamples prompts with replacement; the same resamples serve every statistic.

    Attributes:
        prompts: (N,) index of the prompt of each step, 0 .. P-1.
        steps: (P,) number of steps of each prompt.
        weights: (B, P) how often each prompt is drawn in each of B resamples.
    """

    def __init__(
        self,
        prompts: Integers,
        resamples: int,
        confidence: float,
        seed: int,
        draws: int | None = None,
    ) -> None:
        """Draw `resamples` resamples of the prompts; `confidence` is that of all intervals.

        A resample has as many prompts as there are, or `draws`. To draw prompts, and with each one
        of its repeats, number the repeats of all prompts as prompts, and draw once a prompt.

        Raises:
            ValueError: there is no step, or a prompt index without one.
        """
        self.prompts = np.asarray(prompts, dtype=np.intp)
        self.steps = np.bincount(self.prompts)
        if len(self.prompts) == 0 or not self.steps.all():
            raise ValueError("every prompt needs at least one step: number the prompts 0 .. P-1")
        count = len(self.steps)
        generator = np.random.default_rng(seed)
        drawn = generator.multinomial(
            count if draws is None else draws, np.full(count, 1 / count), size=resamples
        )
        self.weights = drawn.astype(np.float64)
        self.confidence = confidence

    @property
    def count(self) -> int:
        """Number of prompts."""
        return len(self.steps)

    @property
    def counted(self) -> dict[str, int | bool]:
        """The columns beside every interval, as `prompt_counts`."""
        return prompt_counts(self.count)

    def sums(self, per_prompt: Numbers) -> Floats:
        """Return the (B, ...) sums over the resampled prompts of (P, ...) sums of each prompt.

        Integers are summed exactly, so that these sums do not depend on the order of addition. A
        sum of +inf makes those of the resamples infinite that its prompt is in.
        """
        flat = np.asarray(per_prompt, dtype=np.float64).reshape(self.count, -1)
        endless = np.isposinf(flat)
        sums = self.weights @ np.where(endless, 0.0, flat)
        if endless.any():
            sums[(self.weights @ endless.astype(np.float64)) > 0] = np.inf
        return sums.reshape(-1, *np.shape(per_prompt)[1:])

    def interval(self, draws: Floats) -> tuple[Floats, Floats]:
        """Return the percentile interval of (B, ...) draws along their first axis.

        Draws of +inf rank at the top; NaN (a statistic undefined in a resample) is left out,
        and the limits are NaN where it is undefined in all.
        """
        ordered = np.sort(draws, axis=0)  # NaN last
        valid = np.sum(~np.isnan(draws), axis=0)
        cut = _rank((1 - self.confidence) / 2, valid)
        low = np.take_along_axis(ordered, (cut - 1)[None], axis=0)[0]
        high = np.take_along_axis(ordered, np.maximum(valid - cut, 0)[None], axis=0)[0]
        return low, high

    def mean(self, values: Floats) -> tuple[float, Floats]:
        """Return the mean of (N,) finite values and its (B,) draws."""
        totals = np.bincount(self.prompts, weights=values)
        return float(totals.sum() / len(values)), self.sums(totals) / self.sums(self.steps)

    def quantiles(self, values: Floats, at: Sequence[float]) -> tuple[Floats, Floats]:
        """Return the quantiles of (N,) values and their draws, (Q,) and (B, Q).

        The quantile at q is the smallest value that at least a share q of the steps does not
        exceed: always an observed value, also next to +inf. Each resample is a weighting of the
        sorted steps. Its quantiles are found in two levels, first the block of sorted steps by
        the blocks' weights, then the step in the block: O(B (P N/b + Q b)) for blocks of b.
        """
        size = len(values)
        order = np.argsort(values, kind="stable")
        ordered = values[order]
        levels = np.asarray(at, dtype=np.float64)
        point = ordered[_rank(levels, np.full(levels.shape, size)) - 1]

        block = math.isqrt(size) + 1
        blocks = -(-size // block)
        owner = np.full(blocks * block, self.count)  # the padding belongs to a prompt never drawn
        owner[:size] = self.prompts[order]
        weights = np.column_stack([self.weights, np.zeros(len(self.weights))])
        cell = owner * blocks + np.arange(len(owner)) // block
        content = np.bincount(cell, minlength=(self.count + 1) * blocks).reshape(-1, blocks)
        reached = np.cumsum(weights @ content.astype(np.float64), axis=1)  # (B, blocks)
        rank = _rank(levels, reached[:, -1:])  # (B, Q)

        found = np.sum(reached[:, None, :] < rank[:, :, None], axis=2)  # (B, Q) block of the rank
        padded = np.column_stack([np.zeros(len(reached)), reached])
        before = np.take_along_axis(padded, found, axis=1)
        inside = owner.reshape(blocks, block)[found]  # (B, Q, block)
        steps = np.cumsum(weights[np.arange(len(weights))[:, None, None], inside], axis=2)
        offset = np.sum(before[:, :, None] + steps < rank[:, :, None], axis=2)
        return point, ordered[found * block + offset]


def _rank(level: float | Floats, count: NDArray[np.generic]) -> Integers:
    """Return the 1-based rank of the quantile at `level` among `count` sorted values."""
    # level * count that is whole but for rounding must not move to the next rank
    rank = np.ceil(np.multiply(level, count) - 1e-9).astype(np.intp)
    return np.asarray(np.maximum(rank, 1))


def summarise(
    lower: Floats, upper: Floats, ceiling: float, bootstrap: PromptBootstrap
) -> dict[str, dict[str, float]]:
    """Return mean, median, p5 and p25 of certificates known as intervals.

    Args:
        lower: (N,) lower ends in nats, +inf where the rejection region is empty.
        upper: (N,) upper ends.
        ceiling: the rule's ceiling in nats, which stands for +inf in means: log 2, or
            log(m+1) for a tree. A quantile that falls on an empty region is +inf.
        bootstrap: the prompts of the steps and their resamples.

    Returns:
        By statistic `value`, of the lower ends (what is certain), and `optimistic`, of the upper
        ones; `ci_low`, the lower confidence limit of value, and `ci_high`, the upper of optimistic.
    """

    def ends(values: Floats) -> tuple[list[float], Floats, Floats]:
        mean, means = bootstrap.mean(np.where(np.isinf(values), ceiling, values))
        points, draws = bootstrap.quantiles(values, list(QUANTILES.values()))
        return [mean, *points.tolist()], *bootstrap.interval(np.column_stack([means, draws]))

    sure = ends(lower)
    best = sure if np.array_equal(lower, upper) else ends(upper)
    return {
        name: {
            "value": sure[0][at],
            "optimistic": best[0][at],
            "ci_low": float(sure[1][at]),
            "ci_high": float(best[2][at]),
        }
        for at, name in enumerate(("mean", *QUANTILES))
    }


def point_statistics(values: Floats) -> dict[str, float]:
    """Return mean, median, p5 and p25 of (N,) values, without intervals."""
    levels = np.array(list(QUANTILES.values()))
    points = np.sort(values)[_rank(levels, np.full(levels.shape, len(values))) - 1]
    return {"mean": float(values.mean()), **dict(zip(QUANTILES, points.tolist(), strict=True))}


def share_above(values: Floats, eps: Floats) -> Floats:
    """Return the share of (N,) values above each of the levels `eps`, strictly."""
    below = np.searchsorted(np.sort(values), eps, side="right")
    return np.asarray(1.0 - below / len(values))


def top_probability(dist: TopK, ranks: Sequence[int]) -> Floats:
    """Return the probability of the k most probable tokens of N steps for each k: (N, R).

    Args:
        dist: the steps; K at least the largest of `ranks`.
        ranks: numbers of tokens, increasing.
    """
    total = np.cumsum(dist.probs[:, : max(ranks)], axis=1)
    kept: Floats = np.minimum(total[:, np.asarray(ranks) - 1], 1.0)  # rounding can exceed 1
    return kept

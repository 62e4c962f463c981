"""The least and the most that the mean certified run can be, where certificates are intervals.

A step is certified for sure when lower > eps, possibly when upper > eps only. The mean run,
certified steps over maximal certified runs, is not monotone in them: one more certified step can
lengthen a run, join two, or begin one of its own. Its extremes over all choices of the unknown
steps need no search. The unknown steps between two known ones form a block, and blocks do not
interact:

- least: a block adds as many runs of one step as fit without touching a run beside it. No mean
  run is below 1, so each of them lowers it, and nothing else in a block lowers it more;
- most: a block beside a certified step is filled, which adds steps and no run, and joins two runs
  where it lies between them. A block on its own, of n steps, adds them and one run: it is filled
  when n exceeds the mean run reached. So the longest of these are filled, as many as raise the
  mean.

Sums over prompts suffice for both, also of resampled prompts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bootstrap import Flags, Floats, Integers

# sums (P, ...) over all prompts, or over those of each resample
Total = Callable[[Integers], NDArray[Any]]


@dataclass(frozen=True)
class MeanRuns:
    """What the unknown steps of each of P trajectories can do, at each of E levels; (P, E) each.

    Attributes:
        certified: steps certified for sure.
        runs: maximal runs of these.
        singles: runs of one step that the blocks can add, none touching another.
        joined: steps of the blocks beside a certified step.
        bridges: blocks with a certified step at both ends.
        sizes: (1 + S,) 0, then the sizes of the blocks without one, decreasing.
        alone: (P, E, 1 + S) number of these by size, none of size 0.
    """

    certified: Integers
    runs: Integers
    singles: Integers
    joined: Integers
    bridges: Integers
    sizes: Integers
    alone: Integers

    @classmethod
    def of(cls, certain: Flags, possible: Flags, prompts: Integers) -> MeanRuns:
        """Find the runs and the blocks.

        Args:
            certain: (E, N) steps certified whatever the certificates are.
            possible: (E, N) steps certified at best; they include the certain ones.
            prompts: (N,) index of the trajectory of each step, increasing by 0 or 1.
        """
        unknown = possible & ~certain
        first = np.r_[True, prompts[1:] != prompts[:-1]]
        last = np.r_[first[1:], True]
        begins = unknown & (first | ~np.roll(unknown, 1, axis=1))
        ends = unknown & (last | ~np.roll(unknown, -1, axis=1))
        level, start = np.nonzero(begins)  # of each block; both are in the order of the blocks
        stop = np.nonzero(ends)[1]
        size = stop - start + 1
        before = ~first[start] & certain[level, start - 1]
        after = ~last[stop] & certain[level, (stop + 1) % len(prompts)]
        isolated = ~(before | after)
        negative, which = np.unique(-size[isolated], return_inverse=True)
        sizes = np.append(0, -negative)

        shape = (int(prompts[-1]) + 1, len(certain))
        cell = prompts[start] * shape[1] + level
        alone = np.bincount(
            cell[isolated] * len(sizes) + which + 1, minlength=shape[0] * shape[1] * len(sizes)
        )

        def per_prompt(amount: NDArray[np.generic]) -> Integers:
            sums = np.bincount(cell, weights=amount, minlength=shape[0] * shape[1])
            return sums.astype(np.intp).reshape(shape)

        starts = np.flatnonzero(first)
        opens = certain & (first | ~np.roll(certain, 1, axis=1))
        return cls(
            certified=np.add.reduceat(certain, starts, axis=1, dtype=np.intp).T,
            runs=np.add.reduceat(opens, starts, axis=1, dtype=np.intp).T,
            singles=per_prompt((size + 1 - before - after) // 2),
            joined=per_prompt(np.where(isolated, 0, size)),
            bridges=per_prompt(before & after),
            sizes=sizes,
            alone=alone.reshape(*shape, len(sizes)),
        )

    def least(self, total: Total) -> Floats:
        """Return the least mean run, (..., E) as `total` sums; 0 when there may be no run."""
        runs, singles = total(self.runs), total(self.singles)
        return _mean(total(self.certified) + singles, np.where(runs > 0, runs + singles, 0))

    def most(self, total: Total) -> Floats:
        """Return the largest mean run, (..., E) as `total` sums; 0 when there is no run."""
        alone = total(self.alone)
        steps = np.cumsum(alone * self.sizes, axis=-1)  # of the blocks filled, the longest first
        runs = np.cumsum(alone, axis=-1)
        steps += total(self.certified + self.joined)[..., None]
        runs += total(self.runs - self.bridges)[..., None]
        return np.asarray(_mean(steps, runs).max(axis=-1))


def _mean(steps: NDArray[Any], runs: NDArray[Any]) -> Floats:
    mean = np.zeros(np.shape(runs))
    np.divide(steps, runs, out=mean, where=runs > 0)
    return mean

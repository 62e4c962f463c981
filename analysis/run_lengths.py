"""Certifiable run lengths: how many tokens a drafter with KL(p||q) below eps is sure to advance.

A step is certified at eps when its certificate exceeds eps, strictly. With N steps, F of them
not certified, and E trajectories whose last step is certified, the estimators are

- ``per_call`` = N / (F + E): tokens per verification call, the corrected or bonus token counted,
  for drafts of unlimited length, a trajectory's end ending its last segment. The published
  Tables 5 and 6 decode consistently as this;
- ``mean_run`` = certified steps / maximal certified runs, the paper's wording;
- ``long_run`` = N / F: the long-run tokens per call of trajectories that do not end;
- ``residual_64`` = mean of min(run from a start, 64) over the starts with at least 64 steps left,
  so that no trajectory's end shortens a run.

All are ratios of sums over prompts, so that a bootstrap over prompts needs only these sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.statistics import Floats, Integers, PromptBootstrap

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Trajectories:
    """Where each prompt's trajectory lies among the steps; lengths may differ.

    Attributes:
        starts: (P,) index of the first step of each trajectory.
        prompts: (N,) index of the trajectory of each step.
    """

    starts: Integers
    prompts: Integers

    @classmethod
    def from_positions(cls, position: NDArray[np.integer]) -> Trajectories:
        """Find the trajectories from the (N,) position of each step in its own, 0-based.

        Raises:
            ValueError: the steps are not in order, or a trajectory has a gap.
        """
        position = np.asarray(position)
        starts = np.flatnonzero(position == 0)
        prompts = np.cumsum(position == 0) - 1
        if len(position) == 0 or position[0] != 0:
            raise ValueError("the first step must be step 0 of its trajectory")
        if not np.array_equal(position, np.arange(len(position)) - starts[prompts]):
            raise ValueError(
                "the steps of a trajectory must be in order and without a gap: 0, 1, 2, ..."
            )
        return cls(starts, prompts)

    def total(self, flags: Flags | Integers) -> Integers:
        """Sum (E, N) values over the steps of each trajectory: (P, E)."""
        sums: Integers = np.add.reduceat(flags, self.starts, axis=1, dtype=np.intp).T
        return sums


@dataclass(frozen=True)
class Counts:
    """Sums over the steps of each of P trajectories, at each of E levels; (P, E) each."""

    steps: Integers  # (P, 1)
    failures: Integers
    certified_ends: Integers
    runs: Integers  # maximal certified runs
    residuals: Integers  # sum of min(run from a start, window)
    residual_starts: Integers  # (P, 1) starts with at least `window` steps left

    @classmethod
    def of(
        cls, certificates: Floats, eps: Sequence[float], trajectories: Trajectories, window: int
    ) -> Counts:
        """Count the (N,) certificates of consecutive steps at each level of `eps`, in nats."""
        size, starts = len(certificates), trajectories.starts
        certified = certificates > np.asarray(eps, dtype=np.float64)[:, None]
        first = np.zeros(size, dtype=bool)
        first[starts] = True
        begins = certified & (first | ~np.roll(certified, 1, axis=1))
        ends = np.append(starts[1:], size) - 1

        step = np.arange(size)
        stop = np.where(certified, size, step)  # index of the next failure, or of the end of all
        stop = np.minimum.accumulate(stop[:, ::-1], axis=1)[:, ::-1]
        left = ends[trajectories.prompts] + 1 - step  # steps from this one to the end, inclusive
        # with `window` steps left the cap comes before the trajectory's end
        residual = np.where(left >= window, np.minimum(stop - step, window), 0)
        return cls(
            steps=trajectories.total(np.ones((1, size), dtype=bool)),
            failures=trajectories.total(~certified),
            certified_ends=certified[:, ends].T.astype(np.intp),
            runs=trajectories.total(begins),
            residuals=trajectories.total(residual),
            residual_starts=trajectories.total((left >= window)[None]),
        )

    def ratios(self, window: int) -> dict[str, tuple[Integers, Integers]]:
        """Return numerator and denominator of each estimator."""
        return {
            "per_call": (self.steps, self.failures + self.certified_ends),
            "mean_run": (self.steps - self.failures, self.runs),
            "long_run": (self.steps, self.failures),
            f"residual_{window}": (self.residuals, self.residual_starts),
        }


def run_lengths(
    lo: Floats,
    hi: Floats,
    eps: Sequence[float],
    trajectories: Trajectories,
    bootstrap: PromptBootstrap,
    window: int = 64,
) -> pd.DataFrame:
    """Estimate the certifiable run lengths of one rule at every level of `eps`.

    Args:
        lo: (N,) lower ends of the certificates in nats, +inf where always accepted.
        hi: (N,) upper ends; equal to `lo` where exact.
        eps: KL levels in nats.
        trajectories: the trajectory of each step.
        bootstrap: resamples of the prompts, in the order of `trajectories`.
        window: steps left, and cap, of the residual estimator.

    Returns:
        One row a level and estimator: `value` from `lo`, `optimistic` from `hi`, the limits
        `low` (of value) and `high` (of optimistic), `failures`, the number of
        `failing_prompts` (both of `lo`), `prompts`, `steps`. Without a failure `long_run` is
        +inf with the one-sided limit of `failure_free_bound`. NaN where an estimator is not
        defined: no trajectory has `window` steps.
    """
    pessimistic = _estimates(Counts.of(lo, eps, trajectories, window), window, bootstrap)
    exact = np.array_equal(lo, hi)
    optimistic = (
        pessimistic
        if exact
        else _estimates(Counts.of(hi, eps, trajectories, window), window, bootstrap)
    )
    table = pessimistic.drop(columns="high")
    table["optimistic"] = optimistic["value"]
    table["high"] = optimistic["high"]
    table.insert(0, "eps", np.tile(np.asarray(eps, dtype=np.float64), len(table) // len(eps)))
    return table.sort_values("eps", kind="stable", ignore_index=True)


def _estimates(counts: Counts, window: int, bootstrap: PromptBootstrap) -> pd.DataFrame:
    """Return a table of all estimators, one after the other, each at all levels."""
    failures = counts.failures.sum(axis=0)
    failing = np.count_nonzero(counts.failures, axis=0)
    parts = []
    for name, (above, below) in counts.ratios(window).items():
        above, below = np.broadcast_arrays(above, below)
        value = _ratio(above.sum(axis=0), below.sum(axis=0), name)
        draws = _ratio(bootstrap.sums(above), bootstrap.sums(below), name)
        low, high = bootstrap.interval(draws)
        if name == "long_run":
            bound = failure_free_bound(
                int(counts.steps.sum()), bootstrap.count, bootstrap.confidence
            )
            low = np.where(failures == 0, bound, low)
        parts.append(
            pd.DataFrame(
                {
                    "estimator": name,
                    "value": value,
                    "low": low,
                    "high": high,
                    "failures": failures,
                    "failing_prompts": failing,
                    "prompts": bootstrap.count,
                    "steps": int(counts.steps.sum()),
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def _ratio(above: NDArray[np.generic], below: NDArray[np.generic], name: str) -> Floats:
    """Divide; without a denominator a run never ends (long_run), none exists, or none is seen."""
    empty = {"long_run": math.inf, "mean_run": 0.0}.get(name, math.nan)
    result = np.full(np.shape(above), empty)
    np.divide(above, below, out=result, where=np.asarray(below) != 0)
    return result


def failure_free_bound(steps: int, prompts: int, confidence: float) -> float:
    """Return the lower confidence limit of N / F when none of the prompts has a failure.

    If a share s of all prompts had a failure, `prompts` of them would show none with probability
    (1 - s)^prompts; s above 1 - (1 - confidence)^(1/prompts) is refuted. The limit counts one
    failure a failing prompt: no sample without a failure says how many come together.

    >>> round(failure_free_bound(64000, 500, 0.95), 1)  # about N / 3, the rule of three
    21427.8
    """
    share = -math.expm1(math.log1p(-confidence) / prompts)
    return steps / (prompts * share)

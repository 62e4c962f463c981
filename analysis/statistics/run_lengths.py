"""Certifiable run lengths: the tokens a call guaranteed to any drafter with KL(p||q) below eps.

A step is certified at eps when its certificate is strictly above eps. With N steps, F of them not
certified, and E trajectories whose last step is certified, the estimators are

- ``per_call`` = N / (F + E): tokens per verification call, the corrected or bonus token counted,
  for drafts of unlimited length, a trajectory's end ending its last segment. The published
  Tables 5 and 6 decode consistently as this;
- ``mean_run`` = certified steps / maximal certified runs, the wording of the paper's text;
- ``random_100`` = mean of min(run from a start, 100) over all steps as starts, a trajectory's end
  ending its last run: the wording of the paper's captions. Of trajectories of 128 steps it cannot
  exceed 61.3, and the printed cells do;
- ``long_run`` = N / F: the long-run tokens per call of trajectories that do not end;
- ``residual_64`` = mean of min(run from a start, 64) over the starts with at least 64 steps left,
  so that no trajectory's end shortens a run.

All are ratios of sums over prompts, so a bootstrap over prompts needs only these sums. Where
certificates are intervals, all estimators but ``mean_run`` grow with them and are computed at both
ends. ``mean_run`` is not monotone; `MeanRuns` computes its extremes.

A trajectory's end cuts the segment that it falls into, which bounds all but the last two by the
length of the trajectories: long_run / per_call is 1 / (1 - E / (F + E)). Where more than the
share `CENSORED` of the segments is cut they are lower bounds, and printed as such.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .bootstrap import Flags, Floats, Integers, PromptBootstrap
from .trajectories import CENSORED, Trajectories

RANDOM_CAP = 100  # steps of a run from a random start, the cap of the paper's captions
RANDOM = f"random_{RANDOM_CAP}"
MARKS = {"cut": "censored", "cut_upper": "censored_upper"}  # column of the mark


# sums (P, ...) over all prompts, or over those of each resample
Total = Callable[[Integers], NDArray[Any]]
Sums = dict[str, Integers]  # over the steps of each of P trajectories, at each of E levels: (P, E)


def step_sums(certificates: Floats, eps: Floats, trajectories: Trajectories, window: int) -> Sums:
    """Return the sums behind the estimators, for (N,) certificates at each of (E,) levels, nats.

    Returns:
        steps (P, 1), failures, certified_ends, runs (maximal certified ones), residuals (the sum of
        min(run from a start, window)) and residual_starts (P, 1), those with `window` steps left,
        from_any (the sum of min(run from a start, RANDOM_CAP) over all starts) and any_cut, the
        starts whose run the trajectory's end cuts before this cap.
    """
    size, starts = len(certificates), trajectories.starts
    certified = certificates > eps[:, None]
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
    run = np.minimum(stop - step, left)
    return {
        "steps": trajectories.total(np.ones((1, size), dtype=bool)),
        "failures": trajectories.total(~certified),
        "certified_ends": certified[:, ends].T.astype(np.intp),
        "runs": trajectories.total(begins),
        "residuals": trajectories.total(residual),
        "residual_starts": trajectories.total((left >= window)[None]),
        "from_any": trajectories.total(np.minimum(run, RANDOM_CAP)),
        "any_cut": trajectories.total((run == left) & (left < RANDOM_CAP)),
    }


def _estimates(sums: Sums, window: int, total: Total) -> dict[str, Floats]:
    """Return each estimator except mean_run, as a ratio of `total` sums over prompts."""
    totals = {name: total(values) for name, values in sums.items()}
    return {
        "per_call": _ratio(totals["steps"], totals["failures"] + totals["certified_ends"]),
        RANDOM: _ratio(totals["from_any"], totals["steps"]),
        "long_run": _ratio(totals["steps"], totals["failures"], math.inf),
        f"residual_{window}": _ratio(totals["residuals"], totals["residual_starts"]),
    }


def _cut(sums: Sums) -> dict[str, Floats]:
    """Return the (E,) shares of calls, certified runs and starts that a trajectory's end cuts."""
    names = ("certified_ends", "failures", "runs", "any_cut", "steps")
    ends, failures, runs, cut, steps = (_over_all(sums[name]) for name in names)
    return {
        "per_call": _ratio(ends, failures + ends),
        "mean_run": _ratio(ends, runs, 0.0),
        RANDOM: _ratio(cut, steps),
    }


class MeanRuns:
    """The extremes of the mean run given interval certificates, of P trajectories at E levels.

    A step is certain if lower > eps, and possible if only upper > eps. The mean run, certified
    steps over maximal certified runs, is not monotone in them: one more certified step can lengthen
    a run, join two runs, or start its own. Its extremes over all choices of the possible steps need
    no search. Adjacent possible steps form a block, and blocks do not interact:

    - least: a block adds as many runs of one step as fit without touching a neighbouring run. No
      mean run is below 1, so each of them lowers it, and no other choice lowers it more;
    - most: a block next to a certain step is filled, which adds steps but no run, and joins two
      runs if it lies between them. An isolated block of n steps adds n steps and one run: it is
      filled if n exceeds the mean run reached so far. So the longest isolated blocks are filled, as
      long as they raise the mean.

    Both need only sums over prompts, also over resampled ones.
    """

    def __init__(self, certain: Flags, possible: Flags, prompts: Integers) -> None:
        """Count runs and blocks.

        Args:
            certain: (E, N) steps certified by their lower ends.
            possible: (E, N) steps certified by their upper ends; a superset of the certain ones.
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
        negative, size_index = np.unique(-size[isolated], return_inverse=True)
        self.sizes = np.append(0, -negative)  # 0, then the sizes of isolated blocks, decreasing

        shape = (int(prompts[-1]) + 1, len(certain))
        cell = prompts[start] * shape[1] + level

        def per_prompt(amount: NDArray[np.generic]) -> Integers:
            sums = np.bincount(cell, weights=amount, minlength=shape[0] * shape[1])
            return sums.astype(np.intp).reshape(shape)

        places = cell[isolated] * len(self.sizes) + size_index + 1
        alone = np.bincount(places, minlength=shape[0] * shape[1] * len(self.sizes))
        self.alone = alone.reshape(*shape, len(self.sizes))  # (P, E, 1 + S) blocks by size
        starts = np.flatnonzero(first)
        opens = certain & (first | ~np.roll(certain, 1, axis=1))
        # (P, E) each: certain steps, their runs, and the contributions of the blocks to both
        self.certified = np.add.reduceat(certain, starts, axis=1, dtype=np.intp).T
        self.runs = np.add.reduceat(opens, starts, axis=1, dtype=np.intp).T
        self.singles = per_prompt((size + 1 - before - after) // 2)
        self.joined = per_prompt(np.where(isolated, 0, size))
        self.bridges = per_prompt(before & after)

    def least(self, total: Total) -> Floats:
        """Return the least mean run, (..., E) as `total` sums; 0 if possibly there is no run."""
        runs, singles = total(self.runs), total(self.singles)
        return _mean(total(self.certified) + singles, np.where(runs > 0, runs + singles, 0))

    def most(self, total: Total) -> Floats:
        """Return the largest mean run, (..., E) as `total` sums; 0 if there is no run."""
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


def run_lengths(
    lower: Floats,
    upper: Floats,
    eps: Sequence[float],
    trajectories: Trajectories,
    bootstrap: PromptBootstrap,
    window: int = 64,
) -> pd.DataFrame:
    """Estimate the certifiable run lengths of one rule at every level of `eps`.

    Args:
        lower: (N,) lower ends of the certificates in nats, +inf where always accepted.
        upper: (N,) upper ends; equal to `lower` where exact.
        eps: KL levels in nats.
        trajectories: the trajectory of each step.
        bootstrap: resamples of the prompts, in the order of `trajectories`.
        window: steps left, and cap, of the residual estimator.

    Returns:
        One row a level and estimator: `value` and `value_upper`, the least and the most that
        certificates between `lower` and `upper` give, the limits `ci_low` (of value) and
        `ci_high` (of value_upper), `cut` and `cut_upper`, the shares of the
        estimator's segments that trajectories' ends cut under `lower` and under `upper`
        (0 for long_run and the residual, which ends do not shorten), `failures`, the
        number of `failing_prompts` (both of `lower`), `prompts`, `few_prompts`, `steps`.
        Without a failure `long_run` is +inf with the one-sided limit of
        `failure_free_bound`. NaN where an estimator is not defined: no trajectory has
        `window` steps.
    """
    levels = np.asarray(eps, dtype=np.float64)
    exact = np.array_equal(lower, upper)
    sure = step_sums(lower, levels, trajectories, window)
    possible = sure if exact else step_sums(upper, levels, trajectories, window)
    runs = MeanRuns(lower > levels[:, None], upper > levels[:, None], trajectories.prompts)

    def ends(total: Total) -> tuple[dict[str, Floats], dict[str, Floats]]:
        least = _estimates(sure, window, total)
        most = least if exact else _estimates(possible, window, total)
        return least | {"mean_run": runs.least(total)}, most | {"mean_run": runs.most(total)}

    (value, value_upper), draws = ends(_over_all), ends(bootstrap.sums)
    cut, cut_upper = _cut(sure), _cut(possible)
    failures, steps = _over_all(sure["failures"]), int(sure["steps"].sum())
    frames = []
    for name in ("per_call", "mean_run", RANDOM, "long_run", f"residual_{window}"):
        low, high = bootstrap.interval(draws[0][name])[0], bootstrap.interval(draws[1][name])[1]
        if name == "long_run":
            bound = failure_free_bound(steps, bootstrap.count, bootstrap.confidence)
            low = np.where(failures == 0, bound, low)
        columns = {
            "eps": levels,
            "estimator": name,
            "value": value[name],
            "value_upper": value_upper[name],
            "ci_low": low,
            "ci_high": high,
            "cut": cut.get(name, 0.0),
            "cut_upper": cut_upper.get(name, 0.0),
            "failures": failures,
            "failing_prompts": np.count_nonzero(sure["failures"], axis=0),
        }
        frames.append(pd.DataFrame(columns))
    table = pd.concat(frames).sort_values("eps", kind="stable", ignore_index=True)
    return table.assign(steps=steps, **bootstrap.counted)


def with_censored(table: pd.DataFrame) -> pd.DataFrame:
    """Add flags for values that are lower bounds, by the share of segments cut."""
    return table.assign(**{mark: table[cut] > CENSORED for cut, mark in MARKS.items()})


def censored_ends(row: Mapping[Any, Any]) -> tuple[bool, bool]:
    """Return whether `value` and `value_upper` of a row of `run_lengths` are lower bounds."""
    return bool(row["cut"] > CENSORED), bool(row["cut_upper"] > CENSORED)


def _over_all(per_prompt: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(np.sum(per_prompt, axis=0))


def _ratio(above: NDArray[Any], below: NDArray[Any], empty: float = math.nan) -> Floats:
    """Return the quotient; `empty` where the denominator is 0."""
    above, below = np.broadcast_arrays(above, below)
    result = np.full(below.shape, empty)
    np.divide(above, below, out=result, where=below != 0)
    return result


def failure_free_bound(steps: int, prompts: int, confidence: float) -> float:
    """Return the lower confidence limit of N / F if no prompt has a failure.

    If a share s of all prompts had a failure, a sample would show none with probability
    (1 - s)^prompts, so s above 1 - (1 - confidence)^(1/prompts) is rejected. The limit assumes one
    failure per failing prompt, as a sample without failures does not tell how they cluster.

    Examples:
        >>> round(failure_free_bound(64000, 500, 0.95), 1)  # about N / 3, the rule of three
        21427.8
    """
    share = -math.expm1(math.log1p(-confidence) / prompts)
    return steps / (prompts * share)

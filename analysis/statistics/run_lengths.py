"""Certifiable run lengths: the tokens a call guaranteed to any drafter with KL(p||q) below eps.

A step is certified at eps when its certificate is strictly above eps. With N steps, F of them not
certified, and E trajectories whose last step is certified, the estimators are

- ``per_call`` = N / (F + E): tokens per verification call, the corrected or bonus token counted,
  for drafts of unlimited length, a trajectory's end ending its last segment. The published
  Tables 5 and 6 decode consistently as this;
- ``mean_run`` = certified steps / maximal certified runs, the wording of the paper's text;
- ``random_100`` = mean of min(run from a start, 100) over all steps as starts, a trajectory's end
  ending its last run: the wording of the paper's captions. Of trajectories of 128 steps it cannot
  exceed 61.3, and the printed cells do.

All are ratios of sums over prompts, so a bootstrap over prompts needs only these sums.

A trajectory's end cuts the segment that it falls into, which bounds the estimators by the length of
the trajectories. Where more than the share `CENSORED` of the segments is cut they are lower bounds,
and printed as such.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .bootstrap import Floats, Integers, PromptBootstrap
from .trajectories import CENSORED, Trajectories

RANDOM_CAP = 100  # steps of a run from a random start, the cap of the paper's captions
RANDOM = f"random_{RANDOM_CAP}"


# sums (P, ...) over all prompts, or over those of each resample
Total = Callable[[Integers], NDArray[Any]]
Sums = dict[str, Integers]  # over the steps of each of P trajectories, at each of E levels: (P, E)


def step_sums(certificates: Floats, eps: Floats, trajectories: Trajectories) -> Sums:
    """Return the sums behind the estimators, for (N,) certificates at each of (E,) levels, nats.

    Returns:
        steps (P, 1), failures, certified_ends, runs (maximal certified ones), from_any (the sum of
        min(run from a start, RANDOM_CAP) over all starts) and any_cut, the starts whose run the
        trajectory's end cuts before this cap.
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
    run = np.minimum(stop - step, left)
    return {
        "steps": trajectories.total(np.ones((1, size), dtype=bool)),
        "failures": trajectories.total(~certified),
        "certified_ends": certified[:, ends].T.astype(np.intp),
        "runs": trajectories.total(begins),
        "from_any": trajectories.total(np.minimum(run, RANDOM_CAP)),
        "any_cut": trajectories.total((run == left) & (left < RANDOM_CAP)),
    }


def _estimates(sums: Sums, total: Total) -> dict[str, Floats]:
    """Return each estimator, as a ratio of `total` sums over prompts."""
    totals = {name: total(values) for name, values in sums.items()}
    steps, failures = totals["steps"], totals["failures"]
    return {
        "per_call": _ratio(steps, failures + totals["certified_ends"]),
        "mean_run": _ratio(steps - failures, totals["runs"], 0.0),
        RANDOM: _ratio(totals["from_any"], steps),
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


def run_lengths(
    certificates: Floats,
    eps: Sequence[float],
    trajectories: Trajectories,
    bootstrap: PromptBootstrap,
) -> pd.DataFrame:
    """Estimate the certifiable run lengths of one rule at every level of `eps`.

    Args:
        certificates: (N,) in nats, lower ends where they are intervals, +inf where always accepted.
        eps: KL levels in nats.
        trajectories: the trajectory of each step.
        bootstrap: resamples of the prompts, in the order of `trajectories`.

    Returns:
        One row a level and estimator: `value`, its interval `ci_low` and `ci_high`, `cut`, the
        share of the estimator's segments that trajectories' ends cut, `failures`, the number of
        `failing_prompts`, `prompts`, `steps`.
    """
    levels = np.asarray(eps, dtype=np.float64)
    sums = step_sums(certificates, levels, trajectories)
    value, draws = _estimates(sums, _over_all), _estimates(sums, bootstrap.sums)
    cut = _cut(sums)
    frames = []
    for name in ("per_call", "mean_run", RANDOM):
        low, high = bootstrap.interval(draws[name])
        columns = {
            "eps": levels,
            "estimator": name,
            "value": value[name],
            "ci_low": low,
            "ci_high": high,
            "cut": cut[name],
            "failures": _over_all(sums["failures"]),
            "failing_prompts": np.count_nonzero(sums["failures"], axis=0),
        }
        frames.append(pd.DataFrame(columns))
    table = pd.concat(frames).sort_values("eps", kind="stable", ignore_index=True)
    return table.assign(steps=int(sums["steps"].sum()), prompts=bootstrap.count)


def with_censored(table: pd.DataFrame) -> pd.DataFrame:
    """Add a flag for values that are lower bounds, by the share of segments cut."""
    return table.assign(censored=table["cut"] > CENSORED)


def _over_all(per_prompt: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(np.sum(per_prompt, axis=0))


def _ratio(above: NDArray[Any], below: NDArray[Any], empty: float = math.nan) -> Floats:
    """Return the quotient; `empty` where the denominator is 0."""
    above, below = np.broadcast_arrays(above, below)
    result = np.full(below.shape, empty)
    np.divide(above, below, out=result, where=below != 0)
    return result

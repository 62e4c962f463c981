"""Certifiable run lengths: the tokens per call guaranteed to any drafter with KL(p||q) below eps.

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

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..topk import Floats
from .bootstrap import Flags, Integers, PromptBootstrap
from .trajectories import CENSORED, Trajectories

RANDOM_CAP = 100  # steps of a run from a random start, the cap of the paper's captions
RANDOM = f"random_{RANDOM_CAP}"


def step_sums(certified: Flags, trajectories: Trajectories) -> dict[str, Integers]:
    """Return the sums behind the estimators over the steps of each trajectory, (P,) each.

    steps, failures, certified_ends (0 or 1), runs (maximal certified ones), from_any (the sum of
    min(run from a start, RANDOM_CAP) over all starts) and any_cut, the starts whose run the
    trajectory's end cuts before this cap.
    """
    starts = trajectories.starts
    ends = trajectories.ends
    step = np.arange(len(certified))
    begins = certified & ~np.roll(certified, 1)
    begins[starts] = certified[starts]
    stop = np.where(certified, len(certified), step)  # the next failure, or the end of all
    stop = np.minimum.accumulate(stop[::-1])[::-1]
    left = ends[trajectories.prompt_index] - step  # steps from this one to the end, inclusive
    run = np.minimum(stop - step, left)
    return {
        "steps": ends - starts,
        "failures": trajectories.total(~certified),
        "certified_ends": certified[ends - 1].astype(np.intp),
        "runs": trajectories.total(begins),
        "from_any": trajectories.total(np.minimum(run, RANDOM_CAP)),
        "any_cut": trajectories.total((run == left) & (left < RANDOM_CAP)),
    }


def run_lengths(
    certificates: Floats,
    eps: Sequence[float],
    trajectories: Trajectories,
    bootstrap: PromptBootstrap,
) -> pd.DataFrame:
    """Estimate the certifiable run lengths of one rule at every level of `eps`, in nats.

    `certificates` are (N,), in nats: lower ends where they are intervals, +inf where every token is
    accepted.

    Returns:
        One row for each level and estimator: eps, estimator; `value` with its interval `ci_low` and
        `ci_high`; `cut`, the share of the estimator's segments that the ends of trajectories cut;
        `failures`, the number of steps that are not certified, and `failing_prompts` of prompts
        that have one; `steps` and `prompts`, their numbers.
    """
    rows = []
    for level in sorted(eps):
        sums = step_sums(certificates > level, trajectories)
        steps, failures, ends, runs = (
            sums[name] for name in ("steps", "failures", "certified_ends", "runs")
        )
        calls = failures + ends
        certified = steps - failures
        estimators = {  # numerator, denominator, segments, and those that are cut
            "per_call": (steps, calls, calls, ends),
            "mean_run": (certified, runs, runs, ends),
            RANDOM: (sums["from_any"], steps, steps, sums["any_cut"]),
        }
        for name, (above, below, segments, cut) in estimators.items():
            rows.append(
                {
                    "eps": level,
                    "estimator": name,
                    **bootstrap.ratio(above, below, empty=0.0).columns(),
                    "cut": cut.sum() / max(segments.sum(), 1),
                    "failures": failures.sum(),
                    "failing_prompts": np.count_nonzero(failures),
                }
            )
    return pd.DataFrame(rows).assign(steps=len(certificates), prompts=bootstrap.count)


def with_censored(table: pd.DataFrame) -> pd.DataFrame:
    """Add a flag for values that are lower bounds, by the share of segments cut."""
    return table.assign(censored=table["cut"] > CENSORED)

"""Certifiable run lengths: tokens per call guaranteed to any drafter with KL(p||q) <= eps.

A step is certified at eps if its certificate is strictly above eps. A streak is a maximal sequence
of certified steps. The paper defines the run length in three ways. Let N be the number of steps, F
of them not certified, and E the number of trajectories whose last step is certified.

- ``per_call`` = N / (F + E): tokens per call of the target, its own one included, for drafts of any
  length. The published Tables 5 and 6 agree with it.
- ``mean_run`` = certified steps / streaks, as the paper's text says.
- ``random_100`` = the mean over all steps of min(steps to the end of the streak, 100), as the
  paper's captions say. For trajectories of 128 steps it can't exceed 61.3, but printed cells do.

All are ratios of sums over prompts, and these sums are all that a bootstrap over prompts needs.

The end of a trajectory cuts its last call or streak, so no estimate exceeds the length of the
trajectories. If more than the share `CENSORED` of the calls, streaks or (``random_100``) steps is
cut, the estimate is printed as a lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..topk import Floats
from .bootstrap import Flags, Integers, PromptBootstrap
from .trajectories import CENSORED, Trajectories

RANDOM_CAP = 100  # steps to the end of a streak that count at most, as the paper's captions say
RANDOM = f"random_{RANDOM_CAP}"


def step_sums(certified: Flags, trajectories: Trajectories) -> dict[str, Integers]:
    """Return the sums over each trajectory that the estimators need, (A,) each.

    `certified` is (N,), whether each step is.

    Returns:
        steps; failures, the steps that are not certified; certified_ends, 1 if the last step is
        certified, else 0; streaks; from_any, the sum over all steps of the steps to the end of the
        streak, each at most `RANDOM_CAP`; any_cut, the number of steps whose streak the end of the
        trajectory cuts before this cap.
    """
    starts = trajectories.starts
    ends = trajectories.ends
    step = np.arange(len(certified))
    begins = certified & ~np.roll(certified, 1)
    begins[starts] = certified[starts]
    stop = np.where(certified, len(certified), step)  # the next failure, or the end of all
    stop = np.minimum.accumulate(stop[::-1])[::-1]
    left = ends[trajectories.answer_index] - step  # steps from this one to the end, inclusive
    ahead = np.minimum(stop - step, left)  # certified steps from this one on
    return {
        "steps": ends - starts,
        "failures": trajectories.total(~certified),
        "certified_ends": certified[ends - 1].astype(np.intp),
        "streaks": trajectories.total(begins),
        "from_any": trajectories.total(np.minimum(ahead, RANDOM_CAP)),
        "any_cut": trajectories.total((ahead == left) & (left < RANDOM_CAP)),
    }


def run_lengths(
    certificates: Floats,
    eps: Sequence[float],
    trajectories: Trajectories,
    bootstrap: PromptBootstrap,
) -> pd.DataFrame:
    """Estimate the certifiable run lengths of one rule at every level of `eps`.

    Args:
        certificates: (N,), in nats; the lower end of an interval, +inf if nothing can be rejected.
        eps: KL levels, in nats.
        trajectories: of the N steps.
        bootstrap: resamples of their prompts.

    Returns:
        One row for each level and estimator: eps; estimator; value, in tokens, with its interval
        ci_low and ci_high; cut, the share of calls, streaks or steps that the ends of trajectories
        cut; failures, the number of steps that are not certified; failing_prompts, the number of
        answers (of a prompt there may be several) that have one; steps and prompts, their numbers.
    """
    rows = []
    for level in sorted(eps):
        sums = step_sums(certificates > level, trajectories)
        steps = sums["steps"]
        failures = sums["failures"]
        ends = sums["certified_ends"]
        streaks = sums["streaks"]
        calls = failures + ends
        certified = steps - failures
        estimators = {  # numerator, denominator, segments (or steps), and how many of these are cut
            "per_call": (steps, calls, calls, ends),
            "mean_run": (certified, streaks, streaks, ends),
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
    """Add the column censored: whether the value is a lower bound, as too much of it is cut."""
    return table.assign(censored=table["cut"] > CENSORED)

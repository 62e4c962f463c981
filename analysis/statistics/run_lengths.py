"""Certifiable run lengths: the tokens per call guaranteed to any drafter with KL(p||q) below eps.

A step is certified at eps when its certificate is strictly above eps. A streak is a maximal
sequence of certified steps. The paper defines the length in three ways. Let N be the number of
steps, F of them not certified, and E the number of trajectories whose last step is certified.

- ``per_call`` = N / (F + E): tokens per call of the target, its own one included, for drafts of any
  length. The published Tables 5 and 6 agree with this one;
- ``mean_run`` = certified steps / streaks, the wording of the paper's text;
- ``random_100`` = the mean over all steps of min(steps to the end of the streak, 100), the wording
  of the paper's captions. For trajectories of 128 steps it can't exceed 61.3, but printed cells do.

All are ratios of sums over prompts, so a bootstrap over prompts needs only these sums.

The end of a trajectory cuts its last call or streak, so no estimator exceeds the length of the
trajectories. If more than the share `CENSORED` of calls or streaks is cut, the estimator is a lower
bound, and is printed as one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..topk import Floats
from .bootstrap import Flags, Integers, PromptBootstrap
from .trajectories import CENSORED, Trajectories

RANDOM_CAP = 100  # steps from one to the end of its streak, the cap of the paper's captions
RANDOM = f"random_{RANDOM_CAP}"


def step_sums(certified: Flags, trajectories: Trajectories) -> dict[str, Integers]:
    """Return the sums behind the estimators over the steps of each trajectory, (A,) each.

    Returns:
        `steps`; `failures`, the steps that are not certified; `certified_ends`, 1 if the last step
        is certified, else 0; `streaks`; `from_any`, the sum over all steps of the steps to the end
        of the streak, at most `RANDOM_CAP`; `any_cut`, the number of steps whose streak the end of
        the trajectory cuts before this cap.
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
        steps = sums["steps"]
        failures = sums["failures"]
        ends = sums["certified_ends"]
        streaks = sums["streaks"]
        calls = failures + ends
        certified = steps - failures
        estimators = {  # numerator, denominator, segments, and those that are cut
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
    """Add a flag for values that are lower bounds, by the share of segments cut."""
    return table.assign(censored=table["cut"] > CENSORED)

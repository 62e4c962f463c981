"""What certificates guarantee to every drafter whose KL stays within a bound.

A step is certified at eps when its certificate exceeds eps: a drafter whose KL is at most eps at
every step is accepted there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..rules import Rule, StrictGreedy
from ..statistics.bootstrap import Flags
from ..statistics.estimate import Estimate
from ..statistics.trajectories import Trajectories, count_calls
from ..topk import Floats
from .parameter_range import build_range
from .solve import Goal, solve_all
from .target import Target
from .usual_drafter import LAWS, draws_of_means, usual_counts

FAMILIES = ("additive", "multiplicative", "absolute", "typical", "mars", "tree")  # searched


def certified_by_greedy(target: Target, eps: float) -> Flags | None:
    """Return (N,) whether strict greedy certifies a step at eps; None if the study lacks it."""
    ends = target.certificates.get(StrictGreedy())
    return None if ends is None else ends[0] > eps


def guaranteed_per_call(certified: Flags, target: Target, draft_length: int | None = None) -> float:
    """Return the tokens per call that certified steps guarantee at least; NaN without a call."""
    counts = count_calls(certified, target.trajectories, draft_length)
    calls = counts.calls.sum()
    return float(counts.tokens.sum() / calls) if calls else math.nan


def expected_per_call(accepted: Floats, trajectories: Trajectories) -> float:
    """Return the tokens per call if steps are accepted independently; NaN without a call.

    It is the number of tokens over the expected number of calls, for drafts of unlimited length.
    `accepted` (N,) are probabilities; zeros and ones give the result of `guaranteed_per_call`.
    """
    tested = np.ones(len(accepted), dtype=bool)
    tested[trajectories.starts] = False  # prefill emits the first token
    ends = np.zeros(len(accepted), dtype=bool)
    ends[trajectories.ends - 1] = True  # where a call ends, even if the token is accepted
    calls = np.where(ends, 1.0, 1 - accepted)[tested].sum()
    return float(tested.sum() / calls) if calls else math.nan


def usual_acceptance(
    target: Target, columns: Sequence[tuple[Rule, float | Floats]]
) -> Iterator[tuple[str, int, Floats]]:
    """Yield the predicted acceptance of a usual drafter by law of its directions and column.

    The prediction is a model (`analysis.acceptance.usual_drafter`). Each column is a rule and a KL,
    a number or (N,) one a step, in nats. All are computed together, so ask for all at once.

    Yields:
        The law, the place of the column, and (N,) shares. Nothing if no distributions are stored.
    """
    if target.dist is None or not columns:
        return
    draws = draws_of_means(len(target.dist))
    for law, counts in usual_counts(target.dist, columns, list(LAWS), draws=draws).items():
        for place, accepted in enumerate(counts):
            yield law, place, accepted / draws


def greedy_guarantees(target: Target, eps: float) -> dict[str, float]:
    """Return what strict greedy guarantees at eps; empty if it is not in the study.

    Returns:
        `certified`, the share of steps; `per_call`, the least tokens per call; with a drafter
        `drafter_within`, the share of steps at which its KL is at most eps.
    """
    certified = certified_by_greedy(target, eps)
    if certified is None:
        return {}
    values = {
        "certified": float(certified.mean()),
        "per_call": guaranteed_per_call(certified, target),
    }
    if target.kl is not None:
        values["drafter_within"] = float((target.kl <= eps).mean())
    return values


class StrictestSetting(NamedTuple):
    """The strictest setting of a family of rules that certifies a share of the steps."""

    family: Rule  # at the strict end of the range that is searched
    parameter: str  # the parameter that is searched
    # whether the setting is the smallest value that certifies the share; else it is the largest
    is_least: bool
    estimate: Estimate  # of the value; NaN where it, or an end of its interval, is beyond the range
    any_setting: bool  # whether the setting and the ends of its interval are the strict end
    rule: Rule | None  # at the setting; None if even the relaxed end is not enough


def strictest_settings(target: Target, eps: float, share: float) -> list[StrictestSetting]:
    """Return the strictest setting of each of `FAMILIES` that certifies a share of steps at eps.

    Families without a rule in the study are left out. So are those whose rules need more
    log-probabilities than an engine's log has.
    """
    dist = target.dist
    if dist is None:
        return []
    studied = {rule.name for rule in target.certificates}
    ranges = [build_range({"rule": name}) for name in FAMILIES if name in studied]
    ranges = [
        searched for searched in ranges if max(rule.minimum_k for rule in searched.rules) <= dist.k
    ]
    solutions = solve_all(dist, ranges, eps, [Goal(share)], target.bootstrap, target.trajectories)
    settings = []
    for searched, (solution,) in zip(ranges, solutions, strict=True):
        strictest, last = searched.rules
        settings.append(
            StrictestSetting(
                family=strictest,
                parameter=searched.parameter,
                is_least=searched.value(last) > searched.value(strictest),
                estimate=solution.estimate,
                any_setting=solution.any_setting,
                rule=solution.rule,
            )
        )
    return settings

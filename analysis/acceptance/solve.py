"""The strictest setting of a rule that reaches a goal, with its interval over prompts.

A more relaxed rule certifies, and accepts, a superset of the steps. So each step has a first
setting at which it passes, and trying a setting tells whether that one lies below or above it. The
share of steps and the tokens per call (for a head nearly: see `count_calls`) grow with the
parameter, in the sample and in every resample of its prompts, so the strictest setting is found by
halving, and each setting is tried at those steps only that are still open. Settings are
`RESOLUTION` apart, or 1 for an integer. The limits of the interval are quantiles of the settings
that the resamples need (`PromptBootstrap.tail`): a resample needs at most a setting iff it reaches
the goal there. A single prompt gives no interval.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from ..certificates.certify import certify
from ..parameter_range import RESOLUTION, ParameterRange
from ..rules import Rule
from ..statistics.bootstrap import Flags, Integers, Numbers, PromptBootstrap, quantile_rank
from ..statistics.estimate import Estimate
from ..statistics.trajectories import Trajectories, count_calls
from ..topk import TopK
from .judgement import CHUNK, Steps

ROUNDING = 1e-9  # by which a sum may miss the goal
Passing = Callable[[Rule, Integers], Flags]  # (n,): which of n steps, by index, pass under a rule


@dataclass(frozen=True)
class Goal:
    """The goal of a search: a share of the steps, or tokens per call."""

    wanted: float  # the share, in (0, 1], or the tokens per verification call, at least 1
    calls: bool = False  # whether it is tokens per call
    draft_length: int | None = None  # of the calls; None for drafts of unlimited length

    def sums(self, passed: Flags, trajectories: Trajectories) -> tuple[Numbers, Numbers]:
        """Return numerator and denominator of the goal, (P,) each, from (D, N) passing steps."""
        if self.calls:
            counts = count_calls(passed, trajectories, self.draft_length)
            return counts.tokens, counts.calls
        return trajectories.total(passed[0]), trajectories.ends - trajectories.starts


class Solution(NamedTuple):
    """The result of a search."""

    # the strictest rule that reaches the goal; None if the end of the range does not
    rule: Rule | None
    # its parameter, with its interval over prompts; NaN beyond the end of the range. The ends are
    # NaN for a single prompt, too
    value: float
    ci_low: float
    ci_high: float
    # share or tokens per call at this value, or at the end of the range; NaN without a call
    reached: float
    any_setting: bool = False  # whether the strict end of the range is enough, in resamples too

    @property
    def estimate(self) -> Estimate:
        """The parameter with its interval."""
        return Estimate(self.value, self.ci_low, self.ci_high)


def solve(
    dist: TopK,
    searched: ParameterRange,
    eps: float,
    goals: Sequence[Goal],
    bootstrap: PromptBootstrap,
    trajectories: Trajectories,
) -> list[Solution]:
    """Find the strictest settings of a rule whose certificates reach each goal.

    A step is certified if the lower end of its certificate exceeds eps: a drafter whose KL is at
    most eps at every step is accepted there.

    Args:
        dist: N steps of the target.
        searched: the rule, with the first and last setting of the range to search.
        eps: largest KL of the drafter, at least 0, in nats.
        goals: shares of certified steps, or guaranteed tokens per call.
        bootstrap: over the prompts of the steps.
        trajectories: of the steps.

    >>> from ..parameter_range import build_range
    >>> dist = TopK.from_probabilities([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1]])
    >>> searched = build_range({"rule": "additive"})
    >>> steps = Trajectories.from_positions(np.array([0, 0]))
    >>> bootstrap = PromptBootstrap(steps.answer_index, 20, 0.9, 0)
    >>> (solution,) = solve(dist, searched, 0.06, [Goal(1.0)], bootstrap, steps)
    >>> solution.value, solution.reached
    (0.3001, 1.0)
    """

    def certified(rule: Rule, part: Integers) -> Flags:
        return certify(dist[part], [rule]).lower[:, 0] > eps

    return _solve(searched, [certified], goals, bootstrap, trajectories)


def solve_accepted(
    steps: Steps, searched: ParameterRange, goals: Sequence[Goal], bootstrap: PromptBootstrap
) -> list[Solution]:
    """Find the strictest settings with which a drafter's acceptance reaches each goal."""

    def accepted(depth: Steps, rule: Rule, part: Integers) -> Flags:
        return rule.accepts(steps.target[part], *depth.drafted(part))

    passing = [partial(accepted, depth) for depth in steps.by_depth]
    return _solve(searched, passing, goals, bootstrap, steps.trajectories)


def _solve(
    searched: ParameterRange,
    passing: Sequence[Passing],
    goals: Sequence[Goal],
    bootstrap: PromptBootstrap,
    trajectories: Trajectories,
) -> list[Solution]:
    """Solve for each goal, given which steps pass under rules, by depth."""
    setting, last = _settings(searched)
    size = len(trajectories.answer_index)
    # the first setting at which a step passes, last + 1 for none, lies between these
    least = np.zeros((len(passing), size), dtype=np.int64)
    most = np.full_like(least, last + 1)

    def passed(at: int) -> Flags:
        """Return the (D, N) steps that pass under a setting."""
        for passes, low, high in zip(passing, least, most, strict=True):
            steps = np.flatnonzero((low <= at) & (at < high))
            for begin in range(0, len(steps), CHUNK):
                part = steps[begin : begin + CHUNK]
                flags = passes(setting(at), part)
                high[part[flags]] = at
                low[part[~flags]] = at + 1
        return most <= at

    draws = len(bootstrap.weights)
    alone = math.isnan(bootstrap.tail)  # a single prompt
    cut = 0 if alone else int(quantile_rank(bootstrap.tail, draws))

    def solution(goal: Goal) -> Solution:
        @cache
        def reached(at: int) -> tuple[float, bool, int]:
            """Return what a setting reaches, whether it is enough, and in how many resamples."""
            above, below = goal.sums(passed(at), trajectories)
            needed = goal.wanted - ROUNDING
            with np.errstate(invalid="ignore"):  # tokens per call, and there is no call
                ratio = float(np.divide(above.sum(), below.sum()))
            resamples = np.sum(bootstrap.sums(above) >= needed * bootstrap.sums(below))
            return ratio, ratio >= needed, int(resamples)

        def strictest(enough: Callable[[int], bool]) -> int | None:
            return bisect_left(range(last), True, key=enough) if enough(last) else None

        if math.isnan(reached(last)[0]):
            return Solution(None, math.nan, math.nan, math.nan, math.nan)
        found = strictest(lambda at: reached(at)[1])
        ends: list[int | None] = [None, None]
        if not alone:
            ends = [
                strictest(lambda at: reached(at)[2] >= cut),
                strictest(lambda at: reached(at)[2] >= draws - cut + 1),
            ]
        if searched.value(setting(last)) < searched.value(setting(0)):
            ends.reverse()
        value, low, high = (
            math.nan if at is None else searched.value(setting(at)) for at in (found, *ends)
        )
        rule = None if found is None else setting(found)
        reaches = reached(last if found is None else found)[0]
        any_setting = found == 0 and ends == [0, 0]
        return Solution(rule, value, low, high, reaches, any_setting)

    return [solution(goal) for goal in goals]


def _settings(searched: ParameterRange) -> tuple[Callable[[int], Rule], int]:
    """Return the settings of a range by number, from the strictest, and the number of the last."""
    rule, end = searched.rules
    parameter = searched.parameter
    strict = searched.value(rule)
    distance = searched.value(end) - strict
    kind = type(rule.parameters[parameter])
    step = math.copysign(1 if kind is int else RESOLUTION, distance)
    last = max(1, math.ceil(distance / step - ROUNDING))

    @cache
    def setting(at: int) -> Rule:
        if at == last:
            return end
        return replace(rule, **{parameter: kind(round(strict + at * step, 10))})

    return setting, last

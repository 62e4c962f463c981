"""The strictest setting of a rule that reaches a goal, with its interval over prompts.

A more relaxed rule certifies, and accepts, a superset of the steps. So each step has a first
setting at which it passes, found on a coarse grid and then among the settings of one of its cells.
The share of steps and the tokens per call (for a head nearly: see `count_calls`) grow with the
parameter, in the sample and in every resample of its prompts, so the strictest setting is found by
halving. Settings are `RESOLUTION` apart, or 1 for an integer. The limits of the interval are
quantiles of the settings that the resamples need: a resample needs at most a setting iff it reaches
the goal there.
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
from ..rule_config import ParameterRange
from ..rules import Rule
from ..statistics.bootstrap import Flags, Integers, Numbers, PromptBootstrap, rank
from ..statistics.trajectories import Trajectories, count_calls
from ..topk import TopK
from .judgement import CHUNK, Steps

RESOLUTION = 1e-4  # of a continuous parameter
GRID = 10  # settings that are tried at a time
ROUNDING = 1e-9  # by which a sum may miss the goal
Passing = Callable[[Sequence[Rule], Integers], Flags]  # (n, R): n steps by index, under R rules


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
    value: float  # its parameter, with its interval over prompts; NaN beyond the end of the range
    ci_low: float
    ci_high: float
    # share or tokens per call at this value, or at the end of the range; NaN without a call
    reached: float


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

    >>> from ..rule_config import build_range
    >>> dist = TopK.from_probabilities([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1]])
    >>> searched = build_range({"rule": "additive"})
    >>> steps = Trajectories.from_positions(np.array([0, 0]))
    >>> bootstrap = PromptBootstrap(steps.prompts, 20, 0.9, 0)
    >>> (solution,) = solve(dist, searched, 0.06, [Goal(1.0)], bootstrap, steps)
    >>> solution.value, solution.reached
    (0.3001, 1.0)
    """

    def certified(rules: Sequence[Rule], part: Integers) -> Flags:
        return certify(dist[part], rules).lower > eps

    return _solve(searched, [certified], goals, bootstrap, trajectories)


def solve_accepted(
    steps: Steps, searched: ParameterRange, goals: Sequence[Goal], bootstrap: PromptBootstrap
) -> list[Solution]:
    """Find the strictest settings with which a drafter's acceptance reaches each goal."""

    def accepted(depth: Steps, rules: Sequence[Rule], part: Integers) -> Flags:
        dist, drafted = steps.target[part], depth.drafted(part)
        return np.column_stack([rule.accepts(dist, *drafted) for rule in rules])

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
    settings = _settings(searched)
    size, last = len(trajectories.prompts), len(settings) - 1
    first = np.stack([_first_passing(settings, passes, np.arange(size)) for passes in passing])
    values = [searched.value(rule) for rule in settings]
    draws = len(bootstrap.weights)
    cut = int(rank((1 - bootstrap.confidence) / 2, draws))

    def solution(goal: Goal) -> Solution:
        @cache
        def reached(setting: int) -> tuple[float, bool, int]:
            """Return what a setting reaches, whether it is enough, and in how many resamples."""
            above, below = goal.sums(first <= setting, trajectories)
            drawn_above, drawn_below = bootstrap.sums(above), bootstrap.sums(below)
            needed = goal.wanted - ROUNDING
            with np.errstate(invalid="ignore"):  # tokens per call, and there is no call
                ratio = float(np.divide(above.sum(), below.sum()))
            return ratio, ratio >= needed, int(np.sum(drawn_above >= needed * drawn_below))

        def strictest(enough: Callable[[int], bool]) -> int | None:
            return bisect_left(range(last), True, key=enough) if enough(last) else None

        if math.isnan(reached(last)[0]):
            return Solution(None, math.nan, math.nan, math.nan, math.nan)
        found = strictest(lambda setting: reached(setting)[1])
        strict = strictest(lambda setting: reached(setting)[2] >= cut)
        relaxed = strictest(lambda setting: reached(setting)[2] >= draws - cut + 1)
        ends = (strict, relaxed) if values[-1] >= values[0] else (relaxed, strict)
        value, low, high = (math.nan if at is None else values[at] for at in (found, *ends))
        rule = None if found is None else settings[found]
        return Solution(rule, value, low, high, reached(last if found is None else found)[0])

    return [solution(goal) for goal in goals]


def _settings(searched: ParameterRange) -> list[Rule]:
    (rule, end), parameter = searched.rules, searched.parameter
    strict, distance = searched.value(rule), searched.value(end) - searched.value(rule)
    kind = type(rule.parameters[parameter])
    step = math.copysign(1 if kind is int else RESOLUTION, distance)
    count = max(1, math.ceil(distance / step - ROUNDING))
    values = (kind(round(strict + i * step, 10)) for i in range(count))
    return [*(replace(rule, **{parameter: value}) for value in values), end]


def _first_passing(settings: Sequence[Rule], passing: Passing, steps: Integers) -> Integers:
    """Return the (n,) place of the first of S settings at which each step passes; S if none."""
    found = np.full(len(steps), len(settings))
    if not len(steps) or not len(settings):
        return found
    stride = -(-len(settings) // GRID)
    ends = [*range(stride - 1, len(settings) - 1, stride), len(settings) - 1]
    rules = [settings[end] for end in ends]
    parts = [steps[begin : begin + CHUNK] for begin in range(0, len(steps), CHUNK)]
    flags = np.concatenate([passing(rules, part) for part in parts])
    cell = np.where(flags.any(axis=1), flags.argmax(axis=1), -1)
    for at, end in enumerate(ends):
        begin, inside = ends[at - 1] + 1 if at else 0, cell == at
        found[inside] = begin + _first_passing(settings[begin:end], passing, steps[inside])
    return found

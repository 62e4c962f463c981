"""The strictest setting of a rule that reaches a goal, with its interval over prompts.

A more relaxed setting certifies, and accepts, a superset of the steps. So the share of steps that
pass, and the tokens per call (for a head nearly: see `count_calls`), grow from the strict to the
relaxed end, in the sample and in every resample of its prompts. The strictest setting that reaches
the goal is therefore found by bisection. Each step has a first setting at which it passes; a trial
narrows this down, and evaluates only the steps for which its outcome is still open.

Several searches share their passes over the steps. Steps in a file are read a few times, and never
held in memory. Settings are `RESOLUTION` apart, or 1 for an integer parameter.

The ends of the interval are quantiles of the settings that the resamples need
(`PromptBootstrap.tail`): a resample needs at most a setting iff it reaches the goal there. A single
prompt gives no interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np

from ..certificates.certify import certify
from ..rules import Rule
from ..statistics.bootstrap import Flags, Integers, Numbers, PromptBootstrap, quantile_rank
from ..statistics.estimate import Estimate
from ..statistics.trajectories import Trajectories, count_calls
from ..topk import Distributions, TopK
from .judgement import Steps
from .parameter_range import RESOLUTION, ParameterRange

ROUNDING = 1e-9  # by how much a result may fall short of the goal
Trial = tuple[Rule, Flags]  # a setting, and the (D, N) steps to evaluate it at, by depth
Result = TypeVar("Result")
Trials = Generator[Trial, Flags, Result]  # yields trials, and is sent which of their steps pass
# (D, n): which of n steps pass under a rule, given their distributions and indices
Passing = Callable[[Rule, TopK, Integers], Flags]


@dataclass(frozen=True)
class Goal:
    """The goal of a search: a share of steps that pass, or tokens per call."""

    wanted: float  # the share, in (0, 1], or the tokens per verification call, at least 1
    is_per_call: bool = False  # whether it is tokens per call
    draft_length: int | None = None  # of the calls; None for drafts of unlimited length

    def sums(self, passed: Flags, trajectories: Trajectories) -> tuple[Numbers, Numbers]:
        """Return numerator and denominator of the goal, (P,) each, from (D, N) passing steps."""
        if self.is_per_call:
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
    dist: Distributions,
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

    >>> from .parameter_range import build_range
    >>> dist = TopK.from_probabilities([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1]])
    >>> searched = build_range({"rule": "additive"})
    >>> steps = Trajectories.from_positions(np.array([0, 0]))
    >>> bootstrap = PromptBootstrap(steps.answer_index, 20, 0.9, 0)
    >>> (solution,) = solve(dist, searched, 0.06, [Goal(1.0)], bootstrap, steps)
    >>> solution.value, solution.reached
    (0.3001, 1.0)
    """
    (solutions,) = solve_all(dist, [searched], eps, goals, bootstrap, trajectories)
    return solutions


def solve_all(
    dist: Distributions,
    ranges: Sequence[ParameterRange],
    eps: float,
    goals: Sequence[Goal],
    bootstrap: PromptBootstrap,
    trajectories: Trajectories,
) -> list[list[Solution]]:
    """Return the solutions of `solve` for several rules, which share passes over the steps."""

    def certified(rule: Rule, part: TopK, _: Integers) -> Flags:
        lower = certify(part, [rule]).lower.T
        return lower > eps

    searches = [_Search(searched, 1, bootstrap, trajectories) for searched in ranges]
    return _solutions([search.solutions(goals) for search in searches], dist, certified)


def solve_accepted(
    steps: Steps, searched: ParameterRange, goals: Sequence[Goal], bootstrap: PromptBootstrap
) -> list[Solution]:
    """Find the strictest settings with which a drafter's acceptance reaches each goal."""
    depths = steps.by_depth

    def accepted(rule: Rule, part: TopK, index: Integers) -> Flags:
        return np.stack([rule.accepts(part, *depth.drafted(index)) for depth in depths])

    search = _Search(searched, len(depths), bootstrap, steps.trajectories)
    (solutions,) = _solutions([search.solutions(goals)], steps.target, accepted)
    return solutions


def _solutions(
    searches: Sequence[Trials[list[Solution]]], dist: Distributions, passing: Passing
) -> list[list[Solution]]:
    """Run searches side by side: each pass over the steps evaluates a trial of every search."""
    solutions: dict[int, list[Solution]] = {}
    replies: Mapping[int, Flags | None] = dict.fromkeys(range(len(searches)))
    while replies:
        trials: dict[int, Trial] = {}
        for number, reply in replies.items():
            try:
                trials[number] = searches[number].send(reply)  # type: ignore[arg-type]
            except StopIteration as end:
                solutions[number] = end.value
        replies = _run_trials(trials, dist, passing)
    return [solutions[number] for number in range(len(searches))]


def _run_trials(
    trials: Mapping[int, Trial], dist: Distributions, passing: Passing
) -> dict[int, Flags]:
    """Return which steps pass in each trial."""
    passed = {number: np.zeros_like(steps) for number, (_, steps) in trials.items()}
    wanted = np.zeros(len(dist), dtype=bool)
    for _, steps in trials.values():
        wanted |= steps.any(axis=0)
    for index, part in dist.parts(wanted) if trials else ():
        for number, (rule, steps) in trials.items():
            tried = np.flatnonzero(steps[:, index].any(axis=0))
            if len(tried):
                chosen = part if len(tried) == len(part) else part[tried]
                passed[number][:, index[tried]] = passing(rule, chosen, index[tried])
    return passed


class _Reached(NamedTuple):
    """What a setting reaches of a goal."""

    ratio: float  # share, or tokens per call; NaN without a call
    enough: bool  # whether the ratio reaches the goal
    resamples: int  # number of resamples whose ratio does


class _Search:
    """A search for the strictest settings of one rule, as a generator of trials."""

    def __init__(
        self,
        searched: ParameterRange,
        depths: int,
        bootstrap: PromptBootstrap,
        trajectories: Trajectories,
    ) -> None:
        """Begin with every setting possible for every step."""
        self._searched = searched
        self._setting, self._last = _settings(searched)
        self._bootstrap = bootstrap
        self._trajectories = trajectories
        # bounds on the first setting at which each step passes; last + 1 if it never does
        shape = depths, len(trajectories.answer_index)
        self._lower = np.zeros(shape, dtype=np.min_scalar_type(self._last + 1))
        self._upper = np.full_like(self._lower, self._last + 1)
        self._known: dict[tuple[Goal, int], _Reached] = {}

    def solutions(self, goals: Sequence[Goal]) -> Trials[list[Solution]]:
        """Solve for each goal."""
        solutions = []
        for goal in goals:
            solution = yield from self._solution(goal)
            solutions.append(solution)
        return solutions

    def _solution(self, goal: Goal) -> Trials[Solution]:
        reached = yield from self._reached(goal, self._last)
        if math.isnan(reached.ratio):
            return Solution(None, math.nan, math.nan, math.nan, math.nan)
        strictest = yield from self._strictest(goal, None)
        ends = yield from self._ends(goal)
        if strictest is not None:
            reached = yield from self._reached(goal, strictest)
        strict, relaxed = map(self._value, ends)
        falls = self._value(self._last) < self._value(0)
        return Solution(
            rule=None if strictest is None else self._setting(strictest),
            value=self._value(strictest),
            ci_low=relaxed if falls else strict,
            ci_high=strict if falls else relaxed,
            reached=reached.ratio,
            any_setting=strictest == 0 and ends == (0, 0),
        )

    def _ends(self, goal: Goal) -> Trials[tuple[int | None, int | None]]:
        """Return the settings at both ends of the interval; None where there is none."""
        tail = self._bootstrap.tail
        if math.isnan(tail):  # a single prompt
            return None, None
        draws = len(self._bootstrap.weights)
        cut = int(quantile_rank(tail, draws))
        strict = yield from self._strictest(goal, cut)
        relaxed = yield from self._strictest(goal, draws - cut + 1)
        return strict, relaxed

    def _strictest(self, goal: Goal, resamples: int | None) -> Trials[int | None]:
        """Return the first setting that reaches the goal in the sample, or in so many resamples."""
        low = 0
        high = number = self._last
        first = None
        while first is None or low < high:
            reached = yield from self._reached(goal, number)
            enough = reached.enough if resamples is None else reached.resamples >= resamples
            if enough:
                high = first = number
            elif number == self._last:
                return None
            else:
                low = number + 1
            number = (low + high) // 2
        return first

    def _reached(self, goal: Goal, number: int) -> Trials[_Reached]:
        if (goal, number) in self._known:
            return self._known[goal, number]
        steps = (self._lower <= number) & (number < self._upper)
        if steps.any():
            passes = yield self._setting(number), steps
            self._upper[steps & passes] = number
            self._lower[steps & ~passes] = number + 1
        above, below = goal.sums(self._upper <= number, self._trajectories)
        needed = goal.wanted - ROUNDING
        with np.errstate(invalid="ignore"):  # tokens per call, and there is no call
            ratio = float(np.divide(above.sum(), below.sum()))
        enough = self._bootstrap.sums(above) >= needed * self._bootstrap.sums(below)
        reached = _Reached(ratio, ratio >= needed, int(enough.sum()))
        self._known[goal, number] = reached
        return reached

    def _value(self, number: int | None) -> float:
        return math.nan if number is None else self._searched.value(self._setting(number))


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
    def setting(number: int) -> Rule:
        if number == last:
            return end
        return replace(rule, **{parameter: kind(round(strict + number * step, 10))})

    return setting, last

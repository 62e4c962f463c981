"""The strictest setting of a rule that reaches a goal, with its interval over prompts.

A more relaxed rule certifies, and accepts, a superset of the steps. So the share of steps and the
tokens a call (for a head nearly: see `count_calls`) grow with the parameter, in the sample and in
every resample of its prompts. Each question is therefore a bisection for the first setting at which
a ratio of sums over prompts reaches the goal. Settings are on a grid with steps of `RESOLUTION`, or
of 1 for an integer. The limits of the interval are quantiles of the settings that the resamples
need. A resample needs at most a setting iff it reaches the goal there, so the same bisection finds
them, each for another number of resamples.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from ..certificates.certify import certify
from ..rule_config import ParameterRange
from ..rules import Rule
from ..statistics.bootstrap import Flags, Integers, Numbers, PromptBootstrap
from ..statistics.trajectories import Trajectories, count_calls
from ..topk import TopK
from .judgement import Steps

RESOLUTION = 1e-4  # of a continuous parameter
ROUNDING = 1e-9  # by which a sum may miss the goal
Passing = Callable[[Rule, Integers], Flags]  # whether the steps of given indices pass under a rule


@dataclass(frozen=True)
class Goal:
    """The goal of a search: a share of the steps, or tokens a call.

    Attributes:
        share: in (0, 1]; or None.
        tokens: per verification call, at least 1; or None.
        draft_length: of the calls; None for drafts of unlimited length.
    """

    share: float | None = None
    tokens: float | None = None
    draft_length: int | None = None

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: not exactly one of share and tokens is given, or one is out of range.
        """
        if (self.share is None) == (self.tokens is None):
            raise ValueError("give either share or tokens")
        if self.share is not None and not 0 < self.share <= 1:
            raise ValueError(f"share={self.share!r} is not allowed: give a number in (0, 1]")
        if self.tokens is not None and not 1 <= self.tokens < math.inf:
            raise ValueError(f"tokens={self.tokens!r} is not allowed: give a number of at least 1")

    @property
    def wanted(self) -> float:
        """The number to reach."""
        return float(self.tokens if self.share is None else self.share)  # type: ignore[arg-type]

    def sums(self, passed: Flags, trajectories: Trajectories) -> tuple[Numbers, Numbers]:
        """Return numerator and denominator of the goal, (P,) each, from (D, N) passing steps."""
        if self.share is None:
            counts = count_calls(passed[..., None], trajectories, self.draft_length)
            return counts.tokens, counts.calls[:, 0]
        steps = np.bincount(trajectories.prompts)
        return np.bincount(trajectories.prompts, weights=passed[0]), steps


@dataclass(frozen=True)
class Solution:
    """The result of a search.

    Attributes:
        rule: the strictest rule that reaches the goal; None if the end of the range does not.
        value: its parameter; NaN without a rule.
        ci_low: lower limit of the interval over prompts; NaN beyond the end of the range.
        ci_high: upper limit, likewise.
        reached: share or tokens a call at this value, or at the end of the range; NaN without a
            call.
    """

    rule: Rule | None
    value: float
    ci_low: float
    ci_high: float
    reached: float


def solve(
    dist: TopK,
    searched: ParameterRange,
    eps: float,
    goal: Goal,
    bootstrap: PromptBootstrap,
    trajectories: Trajectories,
) -> Solution:
    """Find the strictest setting of a rule whose certificates reach a goal.

    A step is certified if the lower end of its certificate exceeds eps: a drafter whose KL is at
    most eps at every step is accepted there.

    Args:
        dist: N steps of the target.
        searched: the rule, with the first and last setting of the range to search.
        eps: largest KL of the drafter, at least 0, in nats.
        goal: a share of certified steps, or guaranteed tokens a call.
        bootstrap: over the prompts of the steps.
        trajectories: of the steps.

    Raises:
        ValueError: eps is negative, or `certify` raises for a rule.

    Examples:
        >>> from ..rule_config import build_range
        >>> dist = TopK.from_probabilities([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1]])
        >>> searched = build_range({"rule": "additive"})
        >>> steps = Trajectories.from_positions(np.array([0, 0]))
        >>> bootstrap = PromptBootstrap(steps.prompts, 20, 0.9, 0)
        >>> solution = solve(dist, searched, 0.06, Goal(share=1.0), bootstrap, steps)
        >>> solution.value, solution.reached
        (0.3001, 1.0)
    """
    (solution,) = solve_each(
        dist, searched, eps, [goal], bootstrap=bootstrap, trajectories=trajectories
    )
    return solution


def solve_each(
    dist: TopK,
    searched: ParameterRange,
    eps: float,
    goals: Sequence[Goal],
    *,
    bootstrap: PromptBootstrap,
    trajectories: Trajectories,
) -> list[Solution]:
    """Solve for several goals, as `solve`, with shared evaluations of settings."""
    if not eps >= 0:
        raise ValueError(f"eps={eps!r} is not allowed: give a number of at least 0")

    def certified(rule: Rule, steps: Integers) -> Flags:
        return certify(_some(dist, steps), rule).lower[:, 0] > eps

    settings = _Settings(searched, certified, bootstrap, trajectories)
    return [settings.answer(goal) for goal in goals]


def solve_accepted(
    steps: Steps, searched: ParameterRange, goals: Sequence[Goal], bootstrap: PromptBootstrap
) -> list[Solution]:
    """Find the strictest settings with which a drafter's acceptance reaches each goal."""

    def accepted(rule: Rule, index: Integers) -> Flags:
        depth, step = np.divmod(index, len(steps))
        passed = np.empty(len(index), dtype=bool)
        for deep, at_depth in enumerate(steps.by_depth):
            selected = depth == deep
            part = step[selected]
            passed[selected] = rule.accepts(_some(steps.target, part), *at_depth.drafted(part))
        return passed

    depths = len(steps.by_depth)
    settings = _Settings(searched, accepted, bootstrap, steps.trajectories, depths)
    return [settings.answer(goal) for goal in goals]


def _some(dist: TopK, steps: Integers) -> TopK:
    return dist if len(steps) == len(dist) else dist[steps]


class _Settings:
    """The settings of a range on a grid, from 0 (strict) to `last` (relaxed), with passing steps.

    `passing` takes indices of steps; those of depth d start at (d - 1) N.

    Attributes:
        last: the index of the last setting.
        grows: whether the parameter grows as the rule is relaxed.
    """

    def __init__(
        self,
        searched: ParameterRange,
        passing: Passing,
        bootstrap: PromptBootstrap,
        trajectories: Trajectories,
        depths: int = 1,
    ) -> None:
        self._range, self._passing = searched, passing
        self._bootstrap, self._trajectories = bootstrap, trajectories
        self._strict, self._relaxed = (
            searched.value(searched.rules[0]),
            searched.value(searched.rules[-1]),
        )
        self.grows = self._relaxed >= self._strict
        self._whole = isinstance(searched.rules[0].parameters[searched.parameter], int)
        step = 1.0 if self._whole else RESOLUTION
        self.last = max(1, math.ceil(abs(self._relaxed - self._strict) / step - ROUNDING))
        self._step = math.copysign(step, self._relaxed - self._strict)
        size = depths * len(trajectories.prompts)
        self._known = {-1: np.zeros(size, dtype=bool), self.last + 1: np.ones(size, dtype=bool)}

    def value(self, i: int) -> float:
        """Return the parameter of setting i."""
        return self._relaxed if i == self.last else round(self._strict + i * self._step, 10)

    def rule(self, i: int) -> Rule:
        """Return the rule of setting i."""
        kind = int if self._whole else float
        return replace(self._range.rules[0], **{self._range.parameter: kind(self.value(i))})

    def passed(self, i: int) -> Flags:
        """Return (D N,) whether steps pass at setting i; earlier results decide most of them."""
        if i not in self._known:
            passed = self._known[max(place for place in self._known if place < i)].copy()
            possible = self._known[min(place for place in self._known if place > i)]
            open_ = np.flatnonzero(possible & ~passed)
            passed[open_] = self._passing(self.rule(i), open_)
            self._known[i] = passed
        return self._known[i]

    def answer(self, goal: Goal) -> Solution:
        """Return the solution for one goal."""
        needed = goal.wanted - ROUNDING

        @cache
        def sums(i: int) -> tuple[Numbers, Numbers]:
            by_depth = self.passed(i).reshape(-1, len(self._trajectories.prompts))
            return goal.sums(by_depth, self._trajectories)

        def overall(i: int) -> bool:
            above, below = sums(i)
            return bool(above.sum() >= needed * below.sum())

        @cache
        def resamples(i: int) -> int:
            above, below = map(self._bootstrap.sums, sums(i))
            return int(np.sum(above >= needed * below))

        if not sums(self.last)[1].sum():  # tokens a call, and no answer has a second token
            return Solution(None, math.nan, math.nan, math.nan, math.nan)
        size = len(self._bootstrap.weights)
        cut = max(1, math.ceil((1 - self._bootstrap.confidence) / 2 * size - ROUNDING))
        place, strict, relaxed = (
            _first(self.last, test)
            for test in (
                overall,
                lambda i: resamples(i) >= cut,
                lambda i: resamples(i) >= size - cut + 1,
            )
        )
        ends = [strict, relaxed] if self.grows else [relaxed, strict]
        value, low, high = (math.nan if i is None else self.value(i) for i in (place, *ends))
        above, below = sums(self.last if place is None else place)
        rule = None if place is None else self.rule(place)
        return Solution(rule, value, low, high, float(above.sum() / below.sum()))


def _first(last: int, test: Callable[[int], bool]) -> int | None:
    """Return the first index from 0 to `last` at which a monotone test holds; None if none."""
    return bisect_left(range(last), True, key=test) if test(last) else None

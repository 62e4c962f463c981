"""Solves for the strictest setting of a rule that reaches a goal, with its interval over prompts.

A more relaxed rule certifies, and accepts, a superset of the steps. So the share of steps and the
tokens a call (of a head nearly: see `count_calls`) grow with the parameter, in the sample as in
every resample of its prompts, and each question is a search: the first setting at which a ratio of
sums over prompts is reached. Settings lie on a grid: `RESOLUTION` apart, whole numbers of an
integer. The limits of the interval are quantiles of the resamples' own answers. A resample's answer
is not beyond a setting iff the resample reaches what is wanted there, so they are found by the same
search, each for another number of resamples.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from ..certificates.certify import certify
from ..rules.build import ParameterRange
from ..rules.rule import Rule
from ..statistics.bootstrap import Flags, Integers, Numbers, PromptBootstrap
from ..statistics.trajectories import Trajectories, count_calls
from ..topk import TopK
from .realised import Steps

RESOLUTION = 1e-4  # to which a continuous parameter is found
ROUNDING = 1e-9  # of a sum, by which it may miss what is wanted
Passing = Callable[[Rule, Integers], Flags]  # which of some steps pass under a rule


@dataclass(frozen=True)
class Goal:
    """What is wanted of a rule: a share of the steps, or tokens a call.

    Attributes:
        share: in (0, 1]; or None.
        tokens: a verification call, at least 1; or None.
        draft_length: of the calls, None for drafts of any length.
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
        """The number that is to be reached."""
        return float(self.tokens if self.share is None else self.share)  # type: ignore[arg-type]

    def sums(self, passed: Flags, trajectories: Trajectories) -> tuple[Numbers, Numbers]:
        """Return numerator and denominator, (P,) each, of (D, N) steps that pass by depth."""
        if self.share is None:
            made = count_calls(passed[..., None], trajectories, self.draft_length)
            return made.tokens, made.calls[:, 0]
        steps = np.bincount(trajectories.prompts)
        return np.bincount(trajectories.prompts, weights=passed[0]), steps


@dataclass(frozen=True)
class Solution:
    """The answer for one rule.

    Attributes:
        rule: that reaches what is wanted; None where not even the end of the range does.
        value: of the parameter that is turned; NaN without a rule.
        ci_low: lower limit of the interval over prompts; NaN beyond the end of the range.
        ci_high: upper limit, likewise.
        reached: share or tokens a call at value, or at the end of the range.
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
    divergence: str = "kl",
) -> Solution:
    """Find the strictest setting of a rule that certifies what is wanted.

    A step is certified when its certificate exceeds eps, by its lower end where it is an interval:
    a drafter whose KL is at most eps at every step is accepted there.

    Args:
        dist: N steps of the target.
        searched: the rule, and by its first and last setting the range that is searched.
        eps: of the drafter at every step, at least 0, in nats (or as the divergence is measured).
        goal: what is wanted.
        bootstrap: over the prompts of the steps.
        trajectories: of the steps.
        divergence: as `certify` names it.

    Raises:
        ValueError: eps is negative, or `certify` refuses a rule.

    Examples:
        >>> from ..rules.build import build_range
        >>> dist = TopK.from_probabilities([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1]])
        >>> searched = build_range({"rule": "additive", "t": [0.0, 1.0]})
        >>> steps = Trajectories.from_positions(np.array([0, 0]))
        >>> bootstrap = PromptBootstrap(steps.prompts, 20, 0.9, 0)
        >>> found = solve(dist, searched, 0.06, Goal(share=1.0), bootstrap, steps)
        >>> found.value, found.reached
        (0.3001, 1.0)
    """
    return solve_each(dist, searched, eps, [goal], bootstrap, trajectories, divergence)[0]


def solve_each(
    dist: TopK,
    searched: ParameterRange,
    eps: float,
    goals: Sequence[Goal],
    bootstrap: PromptBootstrap,
    trajectories: Trajectories,
    divergence: str = "kl",
) -> list[Solution]:
    """Answer several goals as `solve` does; they share the settings that are looked at."""
    if not eps >= 0:
        raise ValueError(f"eps={eps!r} is not allowed: give a number of at least 0")

    def certified(rule: Rule, at: Integers) -> Flags:
        return certify(_some(dist, at), rule, divergence=divergence).lower[:, 0] > eps

    settings = _Settings(searched, certified, bootstrap, trajectories)
    return [settings.answer(goal) for goal in goals]


def solve_accepted(
    steps: Steps, searched: ParameterRange, goals: Sequence[Goal], bootstrap: PromptBootstrap
) -> list[Solution]:
    """Find the strictest settings with which a drafter is accepted as often as is wanted."""

    def accepted(rule: Rule, at: Integers) -> Flags:
        depth, step = np.divmod(at, len(steps))
        kept = np.empty(len(at), dtype=bool)
        for deep, at_depth in enumerate(steps.by_depth):
            here = depth == deep
            part = step[here]
            kept[here] = rule.accepts(_some(steps.target, part), *at_depth.drafted(part))
        return kept

    depths = len(steps.by_depth)
    settings = _Settings(searched, accepted, bootstrap, steps.trajectories, depths)
    return [settings.answer(goal) for goal in goals]


def _some(dist: TopK, at: Integers) -> TopK:
    return dist if len(at) == len(dist) else dist[at]


class _Settings:
    """The settings of a range on a grid, from 0 (strict) to `last` (relaxed), and what they pass.

    `passing` takes steps by index, those of depth d at (d - 1) N and behind.

    Attributes:
        last: the place of the last setting.
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
        """Return the parameter at a place."""
        return self._relaxed if i == self.last else round(self._strict + i * self._step, 10)

    def rule(self, i: int) -> Rule:
        """Return the rule at a place."""
        kind = int if self._whole else float
        return replace(self._range.rules[0], **{self._range.parameter: kind(self.value(i))})

    def passed(self, i: int) -> Flags:
        """Return the (D N,) steps that pass at a place; places looked at before decide most."""
        if i not in self._known:
            passed = self._known[max(place for place in self._known if place < i)].copy()
            possible = self._known[min(place for place in self._known if place > i)]
            open_ = np.flatnonzero(possible & ~passed)
            passed[open_] = self._passing(self.rule(i), open_)
            self._known[i] = passed
        return self._known[i]

    def answer(self, goal: Goal) -> Solution:
        """Find the setting of one goal, and the limits of its interval."""
        wanted = goal.wanted - ROUNDING

        @cache
        def sums(i: int) -> tuple[Numbers, Numbers]:
            by_depth = self.passed(i).reshape(-1, len(self._trajectories.prompts))
            return goal.sums(by_depth, self._trajectories)

        def overall(i: int) -> bool:
            above, below = sums(i)
            return bool(above.sum() >= wanted * below.sum())

        @cache
        def resamples(i: int) -> int:
            above, below = map(self._bootstrap.sums, sums(i))
            return int(np.sum(above >= wanted * below))

        size = len(self._bootstrap.weights)
        cut = max(1, math.ceil((1 - self._bootstrap.confidence) / 2 * size - ROUNDING))
        at, strict, relaxed = (
            _first(self.last, test)
            for test in (
                overall,
                lambda i: resamples(i) >= cut,
                lambda i: resamples(i) >= size - cut + 1,
            )
        )
        ends = [strict, relaxed] if self.grows else [relaxed, strict]
        value, low, high = (math.nan if i is None else self.value(i) for i in (at, *ends))
        above, below = sums(self.last if at is None else at)
        rule = None if at is None else self.rule(at)
        steps = below.sum()
        reached = float(above.sum() / steps) if steps else math.nan  # no answer has a second token
        return Solution(rule, value, low, high, reached)


def _first(last: int, test: Callable[[int], bool]) -> int | None:
    """Return the first of the places 0 to `last` at which a test holds, None where none does.

    A test that holds holds at all places behind.
    """
    return bisect_left(range(last), True, key=test) if test(last) else None

"""Which setting of a rule certifies what is wanted: the strictest, and its interval over prompts.

The certificates of a step grow as a rule is relaxed. So the share of certified steps and the
certified tokens a call grow with the parameter, in the sample as in every resample of its prompts,
and each question is a search: the first setting at which a ratio of sums over prompts is reached.
The limits of the interval are quantiles of the resamples' own answers. A resample's answer is not
beyond a setting iff the resample reaches what is wanted there, so they are found by the same
search, each for another number of resamples.

How many tokens have to be accepted at a step is found once, for all rules that go by ranks
(`certificates.needed`). A setting then is one comparison a step. The other steps are certified
setting by setting: those of trees and of rounded log-probabilities, and the few whose stored tokens
do not suffice.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..certificates.certify import certify
from ..certificates.needed import Needed, least_counts
from ..rules.dials import Dial
from ..rules.rule import Rule
from ..statistics.bootstrap import Flags, Numbers, PromptBootstrap
from ..statistics.calls import calls_made
from ..statistics.trajectories import Trajectories
from ..topk import TopK

RESOLUTION = 1e-4  # to which a continuous parameter is found
CHUNK = 8192  # steps certified at once
ROUNDING = 1e-9  # of a sum, by which it may miss what is wanted


@dataclass(frozen=True)
class Goal:
    """What is wanted of a rule: a share of certified steps, or certified tokens a call.

    Attributes:
        share: in (0, 1], of the steps; or None.
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

    def sums(self, certain: Flags, trajectories: Trajectories) -> tuple[Numbers, Numbers]:
        """Return what is above and below the ratio, (P, G) each, of (N, G) certain steps."""
        steps = np.bincount(trajectories.prompts)[:, None]
        if self.share is None:
            calls = calls_made(certain, trajectories, self.draft_length)
            return np.broadcast_to(steps, calls.shape), calls
        count = np.add.reduceat(certain, trajectories.starts, axis=0, dtype=np.intp)
        return count, np.broadcast_to(steps, count.shape)


@dataclass(frozen=True)
class Solution:
    """The answer for one rule.

    Attributes:
        parameter: that is turned.
        rule: with its value; None where not even the end of the dial reaches what is wanted.
        value: of the parameter; NaN without a rule.
        ci_low: lower limit of the interval over prompts; NaN where it lies beyond the dial's end.
        ci_high: upper limit, likewise.
        reached: share or tokens a call at value, or at the end of the dial.
    """

    parameter: str
    rule: Rule | None
    value: float
    ci_low: float
    ci_high: float
    reached: float


def solve(
    dist: TopK,
    dial: Dial,
    eps: float,
    goal: Goal,
    bootstrap: PromptBootstrap,
    trajectories: Trajectories,
    divergence: str = "kl",
) -> Solution:
    """Find the strictest setting of a rule that certifies what is wanted.

    A step is certified when its certificate exceeds eps, by its lower end where it is an interval:
    a drafter that is nowhere further than eps from the target is accepted there.

    Args:
        dist: N steps of the target.
        dial: the rule, and by its first and last setting the range that is searched.
        eps: of the drafter at every step, at least 0, in nats (or as the divergence is measured).
        goal: what is wanted.
        bootstrap: over the prompts of the steps.
        trajectories: of the steps.
        divergence: as `certify` names it.

    Raises:
        ValueError: eps is negative, or `certify` refuses a rule.

    Example:
        >>> from ..rules.dials import build_dial
        >>> dist = TopK.from_probabilities([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1]])
        >>> dial = build_dial({"rule": "additive", "t": [0.0, 1.0]})
        >>> steps = Trajectories.from_positions(np.array([0, 0]))
        >>> found = solve(
        ...     dist, dial, 0.06, Goal(share=1.0), PromptBootstrap(steps.prompts, 20, 0.9, 0), steps
        ... )
        >>> found.value, found.reached
        (0.3001, 1.0)
    """
    return Solver(dist, eps, bootstrap, trajectories, divergence).solve(dial, [goal])[0]


class Solver:
    """Answers for several rules and goals, which share what is computed."""

    def __init__(
        self,
        dist: TopK,
        eps: float,
        bootstrap: PromptBootstrap,
        trajectories: Trajectories,
        divergence: str = "kl",
    ) -> None:
        """Find what the steps need; args and errors are those of `solve`."""
        if not eps >= 0:
            raise ValueError(f"eps={eps!r} is not allowed: give a number of at least 0")
        self._dist, self._eps, self._divergence = dist, eps, divergence
        self._bootstrap, self._trajectories = bootstrap, trajectories
        rounded = dist.log_prob_error is not None
        self._needed = None if rounded else Needed(dist, least_counts(dist, eps, divergence))

    def solve(self, dial: Dial, goals: Sequence[Goal]) -> list[Solution]:
        """Find the strictest setting of a rule for each goal; args and errors as of `solve`."""
        settings = _Settings(self._dist, dial, self._eps, self._divergence, self._needed)
        return [
            _answer(settings, _Reached(settings, goal, self._bootstrap, self._trajectories))
            for goal in goals
        ]


def _answer(settings: _Settings, reached: _Reached) -> Solution:
    """Find the setting of one goal, and the limits of its interval."""
    resamples, confidence = reached.resamples, reached.confidence
    cut = max(1, math.ceil((1 - confidence) / 2 * resamples - ROUNDING))
    at, strict, relaxed = (
        _first(settings.last, test)
        for test in (
            reached.overall,
            lambda i: reached.in_resamples(i) >= cut,
            lambda i: reached.in_resamples(i) >= resamples - cut + 1,
        )
    )
    ends = [strict, relaxed] if settings.grows else [relaxed, strict]
    value, low, high = (math.nan if i is None else settings.value(i) for i in (at, *ends))
    rule = None if at is None else settings.rule(at)
    ratio = reached.ratio(settings.last if at is None else at)
    return Solution(settings.parameter, rule, value, low, high, ratio)


def _first(last: int, test: Callable[[int], bool]) -> int | None:
    """Return the first of the places 0 to `last` at which a test holds, None where none does.

    A test that holds holds at all places behind.
    """
    return bisect_left(range(last), True, key=test) if test(last) else None


class _Settings:
    """The settings of a dial on a grid, from 0 (strict) to `last` (relaxed), and what they certify.

    Attributes:
        last: the place of the dial's last setting.
        grows: whether the parameter grows as the rule is relaxed.
        parameter: its name.
    """

    def __init__(
        self, dist: TopK, dial: Dial, eps: float, divergence: str, needed: Needed | None
    ) -> None:
        certify(dist[:1], dial.rules, divergence=divergence)  # what it refuses, is refused here
        self._dist, self._dial, self._eps, self._divergence = dist, dial, eps, divergence
        by_rank = needed is not None and needed.met(dial.rules[0]) is not None
        self._needed = needed if by_rank else None
        self._open = np.arange(len(dist))  # steps that are certified setting by setting
        if self._needed is not None:
            self._open = np.flatnonzero(self._needed.counts > dist.k)
        self._strict, self._relaxed = dial.value(dial.rules[0]), dial.value(dial.rules[-1])
        self.parameter, self.grows = dial.parameter, self._relaxed >= self._strict
        self._whole = isinstance(dial.rules[0].parameters[dial.parameter], int)
        step = 1.0 if self._whole else RESOLUTION
        self.last = max(1, math.ceil(abs(self._relaxed - self._strict) / step - ROUNDING))
        self._step = math.copysign(step, self._relaxed - self._strict)
        self._certain: dict[int, Flags] = {}

    def value(self, i: int) -> float:
        """Return the parameter at a place."""
        return self._relaxed if i == self.last else round(self._strict + i * self._step, 10)

    def rule(self, i: int) -> Rule:
        """Return the rule at a place."""
        kind = int if self._whole else float
        return replace(self._dial.rules[0], **{self._dial.parameter: kind(self.value(i))})

    def certain(self, i: int) -> Flags:
        """Return the (N,) steps that are certified at a place."""
        if i not in self._certain:
            self._certain[i] = self._certify(i)
        return self._certain[i]

    def _certify(self, i: int) -> Flags:
        """Certify the steps, but for those that a place looked at before decides."""
        rule = self.rule(i)
        certain = None if self._needed is None else self._needed.met(rule)
        if certain is None:
            certain = np.zeros(len(self._dist), dtype=bool)
        at = self._open
        stricter = max((place for place in self._certain if place < i), default=None)
        if stricter is not None:
            sure = self._certain[stricter][at]
            certain[at[sure]] = True
            at = at[~sure]
        relaxed = min((place for place in self._certain if place > i), default=None)
        if relaxed is not None:
            at = at[self._certain[relaxed][at]]
        for start in range(0, len(at), CHUNK):
            part = at[start : start + CHUNK]
            found = certify(self._dist[part], rule, divergence=self._divergence)
            certain[part] = found.lower[:, 0] > self._eps
        return certain


class _Reached:
    """How far settings come towards one goal, overall and in the resamples."""

    def __init__(
        self,
        settings: _Settings,
        goal: Goal,
        bootstrap: PromptBootstrap,
        trajectories: Trajectories,
    ) -> None:
        self._settings, self._goal = settings, goal
        self._bootstrap, self._trajectories = bootstrap, trajectories
        self.resamples, self.confidence = len(bootstrap.weights), bootstrap.confidence
        self._known: dict[int, tuple[Numbers, Numbers]] = {}
        self._enough: dict[int, int] = {}

    def overall(self, i: int) -> bool:
        """Whether the steps at hand reach what is wanted at a place."""
        above, below = self._sums(i)
        return bool(above.sum() >= (self._goal.wanted - ROUNDING) * below.sum())

    def in_resamples(self, i: int) -> int:
        """Return how many resamples reach it."""
        if i not in self._enough:
            above, below = map(self._bootstrap.sums, self._sums(i))
            self._enough[i] = int(np.sum(above >= (self._goal.wanted - ROUNDING) * below))
        return self._enough[i]

    def ratio(self, i: int) -> float:
        """Return what the steps at hand reach."""
        above, below = self._sums(i)
        return float(above.sum() / below.sum())

    def _sums(self, i: int) -> tuple[Numbers, Numbers]:
        """Return what is above and below the ratio, (P,) each."""
        if i not in self._known:
            certain = self._settings.certain(i)[:, None]
            above, below = self._goal.sums(certain, self._trajectories)
            self._known[i] = above[:, 0], below[:, 0]
        return self._known[i]

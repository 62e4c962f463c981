"""What a rule may accept at steps where p0 and the entropy are known as ranges only.

Rounded log-probabilities leave a box of p0 and entropy at each step. A test that is monotone in
both (rising or falling in each) has its extremes at the four corners of the box. The built-in rules
are known to be monotone. A user's rule is code that can only be evaluated, so it is evaluated at
points inside the box as well, where it must lie between its values at the corners. If it does not
at any step, the rule is refused by name; so is one that reads anything else of a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from .. import RuleError
from ..rule_base import Counts, Rule, Threshold
from ..rules import Tree
from ..topk import ROUNDING, Floats, TopK

INNER_POINTS = 2048  # test points in total, shared among the steps; but each step gets
MIN_POINTS = 16  # at least so many
MAX_POINTS = 128  # and at most so many
# fractional steps that fill a square evenly (the plane's golden ratio: x^3 = x + 1)
EVENLY = np.array([0.7548776662466927, 0.5698402909980532])


class AcceptanceRange(NamedTuple):
    """The least and the largest test of N steps: rank r is accepted if r <= ranks and p > theta."""

    least_theta: Floats  # (N,) -inf if the rule returns counts
    most_theta: Floats  # (N,)
    least_ranks: NDArray[np.int64]  # (N,) K for an unknown count
    most_ranks: NDArray[np.int64]  # (N,) V for an unknown count


def checked_test(dist: TopK, rule: Rule) -> Threshold | Counts | Tree:
    """Return a rule's test; RuleError if its limit on ranks needs more stored tokens."""
    if isinstance(rule, Tree):
        return rule
    test = rule.acceptance_test(dist)
    if isinstance(test, Threshold):
        ranks = 1 if test.max_rank is None else int(np.max(test.max_rank, initial=1)) + 1
        if dist.k < min(ranks, dist.vocab_size):
            raise RuleError(
                f"rule {rule.label!r} accepts up to rank {ranks - 1}, so its minimum_k must be "
                f"{ranks}; K={dist.k} are stored"
            )
    return test


def acceptance_range(dist: TopK, rule: Rule) -> AcceptanceRange:
    """Return the range of the test of a rule that judges single tokens.

    Raises:
        RuleError: the test is not monotone in p0 and the entropy, or reads anything else.
    """
    low, high = (ends[:, 0] for ends in dist.prob_range)
    tests = [
        _Test.of(_Known(p0, entropy, dist.k, dist.vocab_size), rule)
        for p0 in (low, high)
        for entropy in dist.entropy_range
    ]
    thetas = np.array([test.offset + test.slope * p0 for test in tests for p0 in (low, high)])
    above = [test.offset + (test.slope - 1.0) * p0 for test in tests for p0 in (low, high)]
    test_range = AcceptanceRange(
        least_theta=thetas.min(axis=0),
        most_theta=thetas.max(axis=0),
        least_ranks=np.min([test.least_ranks for test in tests], axis=0),
        most_ranks=np.max([test.most_ranks for test in tests], axis=0),
    )
    if rule.is_custom:
        for steps in _inner_steps(dist):
            _check_inner(steps, rule, test_range)
    x0_only = np.min(above, axis=0) >= 0.0  # theta is nowhere below p0
    return test_range._replace(most_ranks=np.where(x0_only, 1, test_range.most_ranks))


@dataclass(frozen=True, eq=False)
class _Known:
    """Steps with p0 and the entropy alone; a rule that reads anything else is noted, and fails."""

    top_probability: Floats
    entropy: Floats
    k: int
    vocab_size: int
    temperature: float = 1.0
    logits: None = None
    read: list[str] = field(default_factory=list)  # what else was read; selections share the list

    def __len__(self) -> int:
        return len(self.top_probability)

    def __getitem__(self, steps: Any) -> _Known:
        p0 = self.top_probability[steps]
        return replace(self, top_probability=p0, entropy=self.entropy[steps])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.read.append(f"dist.{name}")
        raise AttributeError(f"dist.{name} is not known")

    @property
    def top_surprisal(self) -> Floats:
        return -np.log(self.top_probability)

    @property
    def probs(self) -> _FirstColumn:
        return _FirstColumn("dist.probs", self.top_probability, self.k, self.read)

    @property
    def log_probs(self) -> _FirstColumn:
        return _FirstColumn("dist.log_probs", -self.top_surprisal, self.k, self.read)


class _FirstColumn(NDArrayOperatorsMixin):
    """An array (N, K) of which only column 0, rank 1, may be read."""

    def __init__(self, name: str, first: Floats, k: int, read: list[str]) -> None:
        self.shape = len(first), k
        self.ndim = 2
        self._name = name
        self._first = first
        self._read = read

    def __len__(self) -> int:
        return len(self._first)

    def __getitem__(self, key: Any) -> Any:
        if np.any(np.broadcast_to(np.arange(self.shape[1]), self.shape)[key]):
            self._refuse("behind rank 1")
        return np.broadcast_to(self._first[:, None], self.shape)[key]

    def __array__(self, *_: Any, **__: Any) -> Floats:
        self._refuse("as a whole")

    def __array_ufunc__(self, *_: Any, **__: Any) -> Any:
        self._refuse("as a whole")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse("as a whole")

    def _refuse(self, how: str) -> NoReturn:
        self._read.append(f"{self._name} {how}")
        raise ValueError(f"{self._read[-1]} is not known")


class _Test(NamedTuple):
    """A rule's test of N steps: p > offset + slope p0, and a limit on ranks."""

    offset: Floats
    slope: float
    least_ranks: NDArray[np.int64]
    most_ranks: NDArray[np.int64]

    @classmethod
    def of(cls, steps: _Known, rule: Rule) -> _Test:
        dist: Any = steps
        try:
            test = checked_test(dist, rule)
        except RuleError:
            if not steps.read:
                raise
        if steps.read:  # also where the rule itself has caught the error
            raise RuleError(
                f"rule {rule.label!r} reads {steps.read[0]}, which rounded log-probabilities do "
                "not determine: let it use dist.top_probability and dist.entropy alone, or certify "
                "it on a model's own distributions"
            )
        size = steps.vocab_size
        if isinstance(test, Threshold):
            limit: Any = size if test.max_rank is None else test.max_rank
            ranks = np.broadcast_to(np.minimum(limit, size).astype(np.int64), len(steps))
            offset = np.broadcast_to(np.asarray(test.offset, dtype=np.float64), len(steps))
            return cls(offset, float(test.slope), ranks, ranks)
        assert not isinstance(test, Tree)
        counts = test.astype(np.int64)
        least, most = (np.where(counts < 0, unknown, counts) for unknown in (steps.k, size))
        return cls(np.full(len(steps), -np.inf), 0.0, least, most)


def _inner_steps(dist: TopK) -> Iterator[_Known]:
    """Yield the steps with p0 and entropy inside their boxes: in the middle, then spread evenly."""
    low, high = (ends[:, 0] for ends in dist.prob_range)
    least, most = dist.entropy_range
    count = min(max(INNER_POINTS // max(1, len(dist)), MIN_POINTS), MAX_POINTS)
    for turn in range(count):
        # each step has other points, so the points of all steps are dense
        point = np.arange(len(dist)) * count + turn
        share = (0.5 + point[:, None] * EVENLY) % 1.0 if turn else np.full((len(dist), 2), 0.5)
        p0 = low + share[:, 0] * (high - low)
        entropy = least + share[:, 1] * (most - least)
        yield _Known(p0, entropy, dist.k, dist.vocab_size)


def _check_inner(steps: _Known, rule: Rule, ends: AcceptanceRange) -> None:
    """Check that the test inside each step's box lies between the tests at its corners."""
    test = _Test.of(steps, rule)
    theta = test.offset + test.slope * steps.top_probability
    outside = theta < ends.least_theta - ROUNDING * (1.0 + np.abs(_finite(ends.least_theta)))
    outside |= theta > ends.most_theta + ROUNDING * (1.0 + np.abs(_finite(ends.most_theta)))
    outside |= (test.least_ranks < ends.least_ranks) | (test.most_ranks > ends.most_ranks)
    if outside.any():
        step = int(np.argmax(outside))
        raise RuleError(
            f"rule {rule.label!r} is not monotone in p0 and the entropy, as it must be to be "
            f"bounded from rounded log-probabilities: at step {step}, what it accepts at p0 = "
            f"{steps.top_probability[step]:.4g} and an entropy of {steps.entropy[step]:.4g} is not "
            "between what it accepts at the ends of their ranges; certify it on a model's own "
            "distributions"
        )


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, 0.0)

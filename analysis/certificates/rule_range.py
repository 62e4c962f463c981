"""What a rule may accept at steps of which p0 and the entropy are known as ranges only.

Rounded log-probabilities leave a box of p0 and entropy at each step. A test that is monotone in
both (rising or falling, in each) has its extremes at the four corners of this box. That is known of
the built-in rules. A rule of the user's is code, of which only values can be asked, so it is asked
further: at points inside the box, where the test must lie between those at the corners, and with
other probabilities behind p0, on which it must not depend. A rule that fails at any step is
refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import RuleError
from ..rule_base import Counts, Rule, Threshold
from ..rules import Tree
from ..topk import ROUNDING, Floats, TopK

INNER = 2048  # points inside the boxes of all steps together,
FEWEST, MOST = 16, 128  # and inside that of each step
# fractional steps that fill a square evenly (the plane's golden ratio: x^3 = x + 1)
EVENLY = np.array([0.7548776662466927, 0.5698402909980532])


class AcceptanceRange(NamedTuple):
    """The least and the largest test of N steps: a rank passes if <= ranks, with p > theta."""

    least_theta: Floats  # -inf where the rule gives counts
    most_theta: Floats
    least_ranks: NDArray[np.int64]  # K for a count that is unknown
    most_ranks: NDArray[np.int64]  # V for a count that is unknown


def checked_test(dist: TopK, rule: Rule) -> Threshold | Counts | Tree:
    """Return a rule's test, whose limit on ranks leaves a stored token to reject."""
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
    """Return what a rule of single tokens may accept, given the ranges of `dist`.

    Raises:
        RuleError: the test is not monotone in p0 and the entropy, or depends on something else.
    """
    low, high = (ends[:, 0] for ends in dist.prob_range)
    printed = replace(dist, log_prob_error=None)
    tests = []
    for p0 in (low, high):
        for entropy in dist.entropy_range:
            steps = _steps(printed, p0, entropy, printed.probs)
            tests.append(_Test.of(steps, rule))
            if rule.is_custom:
                _check_others(steps, rule, tests[-1], len(tests) - 1)
    thetas = np.array([test.offset + test.slope * p0 for test in tests for p0 in (low, high)])
    above = [test.offset + (test.slope - 1.0) * p0 for test in tests for p0 in (low, high)]
    found = AcceptanceRange(
        least_theta=thetas.min(axis=0),
        most_theta=thetas.max(axis=0),
        least_ranks=np.min([test.least_ranks for test in tests], axis=0),
        most_ranks=np.max([test.most_ranks for test in tests], axis=0),
    )
    if rule.is_custom:
        for steps in _inner_steps(dist, printed):
            _check_inner(steps, rule, found)
    x0_only = np.min(above, axis=0) >= 0.0  # theta is nowhere below p0
    return found._replace(most_ranks=np.where(x0_only, 1, found.most_ranks))


class _Test(NamedTuple):
    """A rule's test of N steps: p > offset + slope p0, and a limit on ranks."""

    offset: Floats
    slope: float
    least_ranks: NDArray[np.int64]
    most_ranks: NDArray[np.int64]

    @classmethod
    def of(cls, steps: TopK, rule: Rule) -> _Test:
        test = checked_test(steps, rule)
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


def _steps(printed: TopK, p0: Floats, entropy: Floats, probs: Floats, **columns: Any) -> TopK:
    """Return steps with these p0, entropies, and probabilities behind p0, at most p0."""
    probs = np.column_stack([p0, np.minimum(probs[:, 1:], p0[:, None])])
    surprisal = -np.log(p0)
    return replace(printed, top_surprisal=surprisal, entropy=entropy, stored_probs=probs, **columns)


def _check_others(steps: TopK, rule: Rule, wanted: _Test, turn: int) -> None:
    """Check that a test stays what it is where all but p0 and entropy is another."""
    k = steps.k
    size = steps.vocab_size
    p0 = steps.top_probability
    equal = 1 + (np.arange(len(steps)) + turn) % max(1, min(k - 1, 4))  # tokens as probable as x0
    behind = np.where(np.arange(k) <= equal[:, None], p0[:, None], 1e-3 * p0[:, None])
    others = (
        (np.roll(steps.ids, 1, axis=1), np.broadcast_to(p0[:, None], steps.ids.shape), -0.5),
        (steps.ids[:, ::-1], np.broadcast_to(1e-9 * p0[:, None], steps.ids.shape), -20.0),
        ((steps.ids + 1) % size, behind, -2.0),
    )
    for ids, probs, log_tail in others:
        tail = np.full(len(steps), log_tail)
        other = _steps(steps, p0, steps.entropy, probs, ids=ids, log_tail=tail)
        found = _Test.of(other, rule)
        same = np.abs(_finite(found.offset) - _finite(wanted.offset)) <= ROUNDING
        same &= np.isfinite(found.offset) == np.isfinite(wanted.offset)
        same &= found.slope == wanted.slope
        same &= found.least_ranks == wanted.least_ranks
        same &= found.most_ranks == wanted.most_ranks
        if not same.all():
            raise RuleError(
                f"rule {rule.label!r} depends on more than p0 and the entropy, and of these "
                "rounded log-probabilities only their ranges are taken into account: let it use "
                "dist.top_probability and dist.entropy alone, or certify it on a model's own "
                "distributions"
            )


def _inner_steps(dist: TopK, printed: TopK) -> Iterator[TopK]:
    """Yield steps with p0 and entropies inside their ranges: the middle, and others evenly."""
    low, high = (ends[:, 0] for ends in dist.prob_range)
    least, most = dist.entropy_range
    count = min(max(INNER // max(1, len(dist)), FEWEST), MOST)
    for turn in range(count):
        place = np.arange(len(dist)) * count + turn
        # each step has points of its own, so together they are dense
        share = (0.5 + place[:, None] * EVENLY) % 1.0 if turn else np.full((len(dist), 2), 0.5)
        p0 = low + share[:, 0] * (high - low)
        entropy = least + share[:, 1] * (most - least)
        yield _steps(printed, p0, entropy, printed.probs)


def _check_inner(steps: TopK, rule: Rule, ends: AcceptanceRange) -> None:
    """Check that a test inside the range of a step lies between those at its corners."""
    test = _Test.of(steps, rule)
    theta = test.offset + test.slope * steps.top_probability
    outside = theta < ends.least_theta - ROUNDING * (1.0 + np.abs(_finite(ends.least_theta)))
    outside |= theta > ends.most_theta + ROUNDING * (1.0 + np.abs(_finite(ends.most_theta)))
    outside |= (test.least_ranks < ends.least_ranks) | (test.most_ranks > ends.most_ranks)
    if outside.any():
        step = int(np.argmax(outside))
        raise RuleError(
            f"rule {rule.label!r} neither rises nor falls throughout with p0 and the entropy, as "
            "it must for rounded log-probabilities to bound it: what it accepts at p0 = "
            f"{steps.top_probability[step]:.4g} and an entropy of {steps.entropy[step]:.4g} is not "
            "between what it accepts at the ends of what step "
            f"{step} allows; certify it on a model's own distributions"
        )


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, 0.0)

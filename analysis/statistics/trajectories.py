"""Trajectories (the target's answers): where they begin and end, and their verification calls.

Prefill emits the first token of a trajectory, so the first draft is for the second token. A call
drafts up to gamma tokens, accepts those before the first rejected one, and emits one more token of
the target, which no rule tests. So a call ends at a rejected token, after a draft that is accepted
whole, or at the end of the trajectory.

The token at draft position i is judged at depth i, where an EAGLE-3 head has read i - 1 of its own
drafted tokens. Positions beyond the deepest measured depth are judged at that depth. A language
model drafts the same token at every depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .bootstrap import Flags, Integers

# A run length is a lower bound, printed with a ≥, if the ends of answers cut more than this share
# of the calls, streaks or (`random_100`) steps that it is counted over
CENSORED = 0.1


@dataclass(frozen=True)
class Trajectories:
    """The trajectories among the steps, one for each answer; lengths may differ."""

    starts: Integers  # (A,) index of the first step of each trajectory
    answer_index: Integers  # (N,) the answer each step belongs to

    @classmethod
    def from_positions(cls, position: NDArray[np.integer]) -> Trajectories:
        """Return the trajectories from the (N,) position of each step within its own, from 0.

        Raises:
            ValueError: the steps are not in order, or a trajectory has a gap.
        """
        position = np.asarray(position)
        starts = np.flatnonzero(position == 0)
        answer_index = np.cumsum(position == 0) - 1
        if len(position) == 0 or position[0] != 0:
            raise ValueError("the first step must be step 0 of its trajectory")
        if not np.array_equal(position, np.arange(len(position)) - starts[answer_index]):
            raise ValueError(
                "the steps of a trajectory must be in order and without a gap: 0, 1, 2, ..."
            )
        return cls(starts, answer_index)

    @property
    def ends(self) -> Integers:
        """(A,) index after the last step of each trajectory."""
        return np.append(self.starts[1:], len(self.answer_index))

    def total(self, values: Flags | Integers) -> Integers:
        """Return the (A,) sums of (N,) flags or integers over the steps of each trajectory."""
        sums: Integers = np.add.reduceat(values, self.starts, dtype=np.intp)
        return sums


class Calls(NamedTuple):
    """The C verification calls along trajectories."""

    answer_index: Integers  # (C,) the answer each call belongs to
    tested: Integers  # (C,) tokens that are tested: the accepted ones, and the rejected one
    accepted: Integers  # (C,) tokens that are accepted
    # (C,) tokens that are emitted: one more than accepted, unless the trajectory ends
    emitted: Integers


class CallCounts(NamedTuple):
    """Verification calls of each trajectory, (A,) each."""

    calls: Integers  # number of calls
    tokens: Integers  # emitted tokens, without the first, which prefill emits
    # for drafts of unlimited length: 1 if the trajectory's end cuts the last call, else 0
    cut: Integers


def calls_along(accepted: Flags, trajectories: Trajectories, draft_length: int | None) -> Calls:
    """Return the calls of each trajectory in turn, from the steps whose drafts are accepted.

    The last call drafts no further than the end of the trajectory. Engines may: vLLM counts
    accepted tokens beyond the end of an answer.

    Args:
        accepted: (N,), or (D, N) by depth from 1, whether the drafted token is accepted.
        trajectories: of the N steps.
        draft_length: gamma, at least 1; None for drafts of unlimited length.

    >>> steps = Trajectories.from_positions(np.arange(6))
    >>> accepted = np.array([0, 1, 1, 0, 1, 0], dtype=bool)
    >>> [counts.tolist() for counts in calls_along(accepted, steps, 2)[1:]]
    [[2, 2], [2, 1], [3, 2]]
    """
    ends = trajectories.ends[trajectories.answer_index]
    ahead = _accepted_ahead(np.atleast_2d(accepted), ends)
    if draft_length is not None:
        ahead = np.minimum(ahead, draft_length)
    begin = trajectories.starts + 1
    begin = begin[begin < trajectories.ends]
    begins = [begin]
    while len(begin):  # the next call of every trajectory
        after = begin + ahead[begin] + 1
        begin = after[after < ends[begin]]
        begins.append(begin)
    begin = np.sort(np.concatenate(begins))
    accepted_tokens = ahead[begin]
    emitted = np.minimum(accepted_tokens + 1, ends[begin] - begin)
    tested = emitted if draft_length is None else np.minimum(emitted, draft_length)
    return Calls(trajectories.answer_index[begin], tested, accepted_tokens, emitted)


def count_calls(
    accepted: Flags, trajectories: Trajectories, draft_length: int | None
) -> CallCounts:
    """Return the numbers of calls and tokens of each trajectory; arguments as of `calls_along`.

    If `accepted` marks the steps that are certain to be accepted at every depth, the number of
    calls is an upper bound for any drafter: with one more accepted token a call ends no earlier, so
    no more calls follow. If acceptance depends on the depth, this can fail by a little: a call that
    ends earlier may let the next one begin at a step that is accepted at depth 1 but not deeper.
    """
    calls = calls_along(accepted, trajectories, draft_length)
    is_cut = calls.emitted == calls.accepted
    size = len(trajectories.starts)
    return CallCounts(
        calls=np.bincount(calls.answer_index, minlength=size),
        tokens=trajectories.ends - trajectories.starts - 1,
        cut=np.bincount(calls.answer_index[is_cut], minlength=size),
    )


def _accepted_ahead(by_depth: Flags, ends: Integers) -> Integers:
    """Return (N,) how many tokens a call that begins at each step accepts."""
    step = np.arange(len(ends))
    rejected = np.where(by_depth[-1], len(ends), step)
    ahead: Integers = np.minimum(np.minimum.accumulate(rejected[::-1])[::-1], ends) - step
    for flags in by_depth[-2::-1]:  # an accepted token is followed by the next depth
        ahead = np.where(flags, 1 + np.where(step + 1 < ends, np.roll(ahead, -1), 0), 0)
    return ahead


def acceptance_by_position(tested: Integers, accepted: Integers) -> tuple[Integers, Integers]:
    """Return how many calls test, and how many accept, the i-th token of their draft, from i = 1.

    Their ratio is the acceptance rate at position i, given that the tokens before it are accepted.
    `tested` and `accepted` are the (C,) tokens of each call.

    >>> [x.tolist() for x in acceptance_by_position(np.array([2, 1, 2]), np.array([2, 0, 1]))]
    [[3, 2], [2, 1]]
    """
    position = np.arange(1, 1 + max(tested, default=0))[:, None]
    return (tested >= position).sum(axis=1), (accepted >= position).sum(axis=1)

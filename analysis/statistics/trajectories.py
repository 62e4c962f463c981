"""Trajectories among the steps of a study: their bounds, calls and repeated passages.

The prompt's pass emits the first token of a trajectory, so the first draft is for the second token.
A verification call drafts up to gamma tokens, accepts those before the first rejected one, and
emits one more token of the target, which no rule tests. So a call ends at a rejected step, after a
fully accepted draft, or at the end of the trajectory.

The token at place i of a draft is judged at depth i, where a head has read i - 1 of its own
guesses. Beyond the deepest measured depth, that depth is used. A language model drafts the same
token at every depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .bootstrap import Flags, Integers, Numbers

# A length is a lower bound if trajectories' ends cut more than this share of its segments: long_run
# then exceeds per_call by more than a ninth.
CENSORED = 0.1
LENGTH = 16  # tokens of a passage; in practice only loops and lists repeat this many


@dataclass(frozen=True)
class Trajectories:
    """The bounds of each prompt's trajectory among the steps; lengths may differ.

    Attributes:
        starts: (P,) index of the first step of each trajectory.
        prompts: (N,) index of the trajectory of each step.
    """

    starts: Integers
    prompts: Integers

    @classmethod
    def from_positions(cls, position: NDArray[np.integer]) -> Trajectories:
        """Return the trajectories from the (N,) position of each step within its own, from 0.

        Raises:
            ValueError: the steps are not in order, or a trajectory has a gap.
        """
        position = np.asarray(position)
        starts = np.flatnonzero(position == 0)
        prompts = np.cumsum(position == 0) - 1
        if len(position) == 0 or position[0] != 0:
            raise ValueError("the first step must be step 0 of its trajectory")
        if not np.array_equal(position, np.arange(len(position)) - starts[prompts]):
            raise ValueError(
                "the steps of a trajectory must be in order and without a gap: 0, 1, 2, ..."
            )
        return cls(starts, prompts)

    @property
    def ends(self) -> Integers:
        """(P,) index after the last step of each trajectory."""
        return np.append(self.starts[1:], len(self.prompts))

    def total(self, flags: Flags | Integers) -> Integers:
        """Return the sums of (E, N) values over the steps of each trajectory, (P, E)."""
        sums: Integers = np.add.reduceat(flags, self.starts, axis=1, dtype=np.intp).T
        return sums


class CallCounts(NamedTuple):
    """Verification calls along trajectories.

    Attributes:
        calls: (P, G) number of calls of each trajectory under each setting, possibly expected.
        tokens: (P,) emitted tokens, all but the first, which the prompt's pass emits.
        cut: (P, G) number of calls cut by a trajectory's end, 0 or 1; meaningful for drafts of
            unlimited length.
    """

    calls: Numbers
    tokens: Integers
    cut: Numbers


def count_calls(
    accepted: Flags, trajectories: Trajectories, draft_length: int | None
) -> CallCounts:
    """Return the calls of each trajectory, given the accepted steps.

    If `accepted` marks the steps that are certain to be accepted at every depth, the result is the
    most calls that any drafter can cause: a further rejection ends a call earlier, and from an
    earlier step on there are no fewer calls. If a step is accepted at some depths only, this holds
    nearly: a call that ends earlier may let the next one begin at a step that is accepted at depth
    1 but not deeper.

    Args:
        accepted: (N, G) for G settings, or (D, N, G) by depth from 1.
        trajectories: the P trajectories of the steps.
        draft_length: gamma, at least 1; None for drafts of unlimited length.

    Raises:
        ValueError: the draft length is below 1.

    Examples:
        >>> steps = Trajectories.from_positions(np.arange(6))
        >>> accepted = np.array([[0, 0], [1, 0], [1, 1], [0, 0], [1, 1], [1, 1]], dtype=bool)
        >>> count_calls(accepted, steps, 2).calls.tolist()
        [[2, 3]]
    """
    ahead = _accepted_ahead(accepted, trajectories, draft_length)
    ends = trajectories.ends
    settings = np.arange(ahead.shape[1])
    shape = len(ends), len(settings)
    calls, cut = np.zeros(shape, dtype=np.intp), np.zeros(shape, dtype=np.intp)
    begin = np.broadcast_to((trajectories.starts + 1)[:, None], shape).copy()
    while (going := begin < ends[:, None]).any():
        taken = ahead[np.where(going, begin, 0), settings]
        calls += going
        cut += going & (begin + taken == ends[:, None])
        begin += np.where(going, taken + 1, 0)
    return CallCounts(calls, ends - trajectories.starts - 1, cut)


def drafts_made(
    accepted: Flags, trajectories: Trajectories, draft_length: int
) -> tuple[Integers, Integers, Integers]:
    """Return the tested, accepted and emitted tokens of each call, trajectory by trajectory.

    The last call of a trajectory drafts no further than its end. Engines may do so: vLLM counts
    accepted tokens beyond the end of an answer.

    Args:
        accepted: (N,) whether each step's drafted token is accepted, or (D, N), by depth from 1.
        trajectories: of the steps.
        draft_length: at least 1.

    Raises:
        ValueError: the draft length is below 1.

    Examples:
        >>> steps = Trajectories.from_positions(np.arange(6))
        >>> accepted = np.array([0, 1, 1, 0, 1, 0], dtype=bool)
        >>> [counts.tolist() for counts in drafts_made(accepted, steps, 2)]
        [[2, 2], [2, 1], [3, 2]]
    """
    ahead = _accepted_ahead(accepted[..., None], trajectories, draft_length)[:, 0].tolist()
    calls = []
    for start, end in zip(trajectories.starts.tolist(), trajectories.ends.tolist(), strict=True):
        step = start + 1
        while step < end:
            taken, left = ahead[step], end - step
            calls.append((min(taken + 1, draft_length, left), taken, min(taken + 1, left)))
            step += taken + 1
    counts = np.array(calls, dtype=np.intp).reshape(-1, 3)
    return counts[:, 0], counts[:, 1], counts[:, 2]


def _accepted_ahead(
    accepted: Flags, trajectories: Trajectories, draft_length: int | None
) -> Integers:
    """Return the number of tokens accepted by a call that starts drafting at each step, (N, G).

    At the deepest depth D the call continues until a step is rejected or the trajectory ends. At an
    earlier depth an accepted token is followed by the next depth at the next step.
    """
    if draft_length is not None and draft_length < 1:
        raise ValueError(f"draft_length={draft_length!r} is not allowed: give an integer of >= 1")
    by_depth = accepted if accepted.ndim == 3 else accepted[None]
    size = by_depth.shape[1]
    step, end = np.arange(size)[:, None], trajectories.ends[trajectories.prompts][:, None]
    rejected = np.where(by_depth[-1], size, step)
    ahead = np.minimum(np.minimum.accumulate(rejected[::-1], axis=0)[::-1], end) - step
    for flags in by_depth[-2::-1]:
        behind = np.concatenate([ahead[1:], ahead[:1]])  # of the next step
        ahead = np.where(flags, 1 + np.where(step + 1 < end, behind, 0), 0)
    return ahead if draft_length is None else np.minimum(ahead, draft_length)


def inside_repeats(tokens: NDArray[np.integer], prompts: Integers, length: int = LENGTH) -> Flags:
    """Return (N,) whether each step lies inside a repeated n-gram of its answer, n = `length`.

    Step t of an answer does if its last n tokens, t - n + 1 to t, occurred before in the same
    answer, as the tokens s - n + 1 to s for some s < t. The two may overlap, as in a loop shorter
    than n. So the first n steps never do; in a repeated passage the steps from its n-th token on
    do.

    Args:
        tokens: (N,) token emitted at each step, answer by answer.
        prompts: (N,) index of each step's answer.
        length: n.

    Returns:
        (N,) flags.

    Examples:
        >>> inside_repeats(np.array([7, 8, 9, 7, 8, 9, 8]), np.zeros(7, dtype=int), 2).astype(int)
        array([0, 0, 0, 0, 1, 1, 0])
    """
    inside = np.zeros(len(tokens), dtype=bool)
    seen: set[tuple[int, bytes]] = set()
    for end in range(length, len(tokens) + 1):
        begin = end - length
        if prompts[begin] == prompts[end - 1]:
            passage = (int(prompts[begin]), tokens[begin:end].tobytes())
            inside[end - 1] = passage in seen
            seen.add(passage)
    return inside

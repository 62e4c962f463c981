"""Trajectories among the steps of a study: where each lies, its calls, its repeated passages.

The prompt's pass emits the first token of a trajectory, so that the first draft is for the second.
A verification call drafts up to gamma tokens, keeps those before the first rejected one, and emits
one more token of the target's own, which no rule tests. So a call ends at a rejected step, behind a
draft that was accepted as a whole, or where the trajectory ends.

The token at place i of a draft is judged at depth i: a head reads i - 1 of its own guesses there.
Behind the deepest depth that was measured, that one stands for all. A language model drafts alike
at every depth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .bootstrap import Flags, Integers, Numbers

# Share of segments cut by the trajectories' ends above which a length is a lower bound: long_run is
# over a ninth larger than per_call then.
CENSORED = 0.1
LENGTH = 16  # tokens of a passage: long enough that only a loop, or a list, repeats it


@dataclass(frozen=True)
class Trajectories:
    """Where each prompt's trajectory lies among the steps; lengths may differ.

    Attributes:
        starts: (P,) index of the first step of each trajectory.
        prompts: (N,) index of the trajectory of each step.
    """

    starts: Integers
    prompts: Integers

    @classmethod
    def from_positions(cls, position: NDArray[np.integer]) -> Trajectories:
        """Find the trajectories from the (N,) position of each step in its own, 0-based.

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
        """(P,) index behind the last step of each trajectory."""
        return np.append(self.starts[1:], len(self.prompts))

    def total(self, flags: Flags | Integers) -> Integers:
        """Sum (E, N) values over the steps of each trajectory: (P, E)."""
        sums: Integers = np.add.reduceat(flags, self.starts, axis=1, dtype=np.intp).T
        return sums


class CallCounts(NamedTuple):
    """Verification calls along trajectories.

    Attributes:
        calls: (P, G) of each trajectory under each setting, or the expected numbers.
        tokens: (P,) that they emit: all but the first, which the prompt's pass emits.
        cut: (P, G) of them, those that a trajectory's end cut, 0 or 1: drafts of any length only.
    """

    calls: Numbers
    tokens: Integers
    cut: Numbers


def count_calls(
    accepted: Flags, trajectories: Trajectories, draft_length: int | None
) -> CallCounts:
    """Count the calls of each trajectory, where each step's draft is accepted or rejected.

    Where only some steps are certain to be accepted, at every depth, these calls are the most that
    any drafter can cause, all others being rejected. For from a later step on there are no more
    calls than from an earlier one, and a call ends the earlier, the more is rejected. Where a step
    is accepted at some depths only, this holds nearly: a call that ends earlier can begin the next
    one at a step that is accepted at depth 1 and not deeper.

    Args:
        accepted: (N, G), steps by G settings, or (D, N, G), by depth from 1.
        trajectories: P, of the steps.
        draft_length: gamma, at least 1; None means drafts of any length.

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
        kept = ahead[np.where(going, begin, 0), settings]
        calls += going
        cut += going & (begin + kept == ends[:, None])
        begin += np.where(going, kept + 1, 0)
    return CallCounts(calls, ends - trajectories.starts - 1, cut)


def drafts_made(
    accepted: Flags, trajectories: Trajectories, draft_length: int
) -> tuple[Integers, Integers, Integers]:
    """Return the tested, accepted and emitted tokens of each call, trajectory by trajectory.

    The last call of a trajectory drafts no further than its end. Engines may: vLLM counts accepted
    tokens behind the end of an answer in it.

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
        at = start + 1
        while at < end:
            kept, left = ahead[at], end - at
            calls.append((min(kept + 1, draft_length, left), kept, min(kept + 1, left)))
            at += kept + 1
    counts = np.array(calls, dtype=np.intp).reshape(-1, 3)
    return counts[:, 0], counts[:, 1], counts[:, 2]


def _accepted_ahead(
    accepted: Flags, trajectories: Trajectories, draft_length: int | None
) -> Integers:
    """Return (N, G) how many tokens a call accepts that begins to draft at a step.

    At the deepest depth D they go on until a step is rejected, or the trajectory ends; at a depth
    before, an accepted token is followed by those of the next depth at the next step.
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


def place_shares(
    calls: float, reached: Sequence[float], accepted: Sequence[float]
) -> list[dict[str, float]]:
    """Return both shares of accepted tokens at each place of a draft.

    Args:
        calls: verifications.
        reached: by place, how many of them tested a token there.
        accepted: by place, how many accepted it.

    Returns:
        place (from 1), reached, accepted; `conditional` accepted / reached, the acceptance rate;
        `of_all` accepted / calls, what inference engines print.

    Examples:
        >>> place_shares(10, [10, 8], [8, 6])[1]
        {'place': 2, 'reached': 8, 'accepted': 6, 'conditional': 0.75, 'of_all': 0.6}
    """
    return [
        {
            "place": place,
            "reached": tested,
            "accepted": kept,
            "conditional": kept / tested if tested else math.nan,
            "of_all": kept / calls if calls else math.nan,
        }
        for place, (tested, kept) in enumerate(zip(reached, accepted, strict=True), start=1)
    ]


def inside_repeats(tokens: NDArray[np.integer], prompts: Integers, length: int = LENGTH) -> Flags:
    """Say of each step whether it lies inside a repeated n-gram of its answer so far, n = `length`.

    Step t of an answer does when its last n tokens, t - n + 1 to t, occurred before in the same
    answer: as the tokens s - n + 1 to s for some s < t. The two may overlap, as in a loop shorter
    than n. So the first n steps never do, and where an answer repeats a passage, the steps from the
    n-th token of the repetition on do.

    Args:
        tokens: (N,) token emitted at each step, answer after answer.
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

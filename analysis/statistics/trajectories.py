"""Trajectories among the steps of a study: where each lies, its calls, its repeated passages.

A verification call drafts up to gamma tokens, keeps those before the first rejected one, and emits
one more token of the target's own, which no rule tests. So a call ends at a rejected step, behind a
draft that was accepted as a whole, or where the trajectory ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .bootstrap import Flags, Integers

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

    def total(self, flags: Flags | Integers) -> Integers:
        """Sum (E, N) values over the steps of each trajectory: (P, E)."""
        sums: Integers = np.add.reduceat(flags, self.starts, axis=1, dtype=np.intp).T
        return sums


def calls_made(accepted: Flags, trajectories: Trajectories, draft_length: int | None) -> Integers:
    """Return the calls of each trajectory, where each step's draft is accepted or rejected.

    A call ends at every step that is not accepted: it is rejected there, or is emitted untested
    behind a whole draft. So up to such a step, the calls are as many as parts of gamma + 1 steps.

    Where only some steps are certain to be accepted, these calls are the most that any drafter can
    cause, all others being rejected. For from a later step on there are no more calls than from
    an earlier one, and a call ends the earlier, the more is rejected.

    Args:
        accepted: (N, G), steps by G settings.
        trajectories: P, of the steps.
        draft_length: gamma, at least 1; None means drafts of any length.

    Returns:
        (P, G).

    Raises:
        ValueError: the draft length is below 1.

    Examples:
        >>> steps = Trajectories.from_positions(np.arange(5))
        >>> accepted = np.array([[1, 0], [1, 1], [0, 0], [1, 1], [1, 1]], dtype=bool)
        >>> calls_made(accepted, steps, 2).tolist(), calls_made(accepted, steps, None).tolist()
        ([[2, 3]], [[2, 3]])
    """
    _check(draft_length)
    place, steps = _parts(accepted, trajectories)
    calls = np.ones_like(steps) if draft_length is None else -(-steps // (draft_length + 1))
    settings, count = accepted.shape[1], len(trajectories.starts)
    sums = np.bincount(place, weights=calls, minlength=settings * count)
    return np.asarray(sums.astype(np.intp).reshape(settings, count).T)


def calls_by_length(accepted: Flags, trajectories: Trajectories, longest: int) -> Integers:
    """Return the calls of `calls_made` at every draft length from 1 on, in one pass.

    Args:
        accepted: (N, G), steps by G settings.
        trajectories: P, of the steps.
        longest: draft length, at least 1.

    Returns:
        (P, G, longest).

    Examples:
        >>> steps = Trajectories.from_positions(np.arange(5))
        >>> accepted = np.array([1, 1, 0, 1, 1], dtype=bool)[:, None]
        >>> calls_by_length(accepted, steps, 3).tolist()
        [[[3, 2, 2]]]
    """
    _check(longest)
    place, steps = _parts(accepted, trajectories)
    settings, count = accepted.shape[1], len(trajectories.starts)
    sizes = np.arange(steps.max() + 1)
    parts = np.bincount(place * len(sizes) + steps, minlength=settings * count * len(sizes))
    calls = -(-sizes[:, None] // np.arange(2.0, longest + 2))
    sums = parts.reshape(settings, count, len(sizes)) @ calls
    return np.asarray(sums.astype(np.intp).transpose(1, 0, 2))


def _parts(accepted: Flags, trajectories: Trajectories) -> tuple[Integers, Integers]:
    """Return the parts of trajectories that end at a step which is not accepted, or with them.

    Returns:
        Of each part its setting and trajectory, as one index of (G, P), and its number of steps.
    """
    size, count = len(accepted), len(trajectories.starts)
    ends = ~accepted.T  # (G, N): setting after setting, as one long row of steps
    ends[:, np.append(trajectories.starts[1:], size) - 1] = True
    at = np.flatnonzero(ends)
    return at // size * count + trajectories.prompts[at % size], np.diff(at, prepend=-1)


def drafts_made(
    accepted: Flags, trajectories: Trajectories, draft_length: int
) -> tuple[Integers, Integers]:
    """Return of each call, in order, how many drafted tokens were tested and how many accepted.

    The last call of a trajectory drafts no further than its end.

    Args:
        accepted: (N,) whether each step's drafted token is accepted.
        trajectories: of the steps.
        draft_length: at least 1.

    Raises:
        ValueError: the draft length is below 1.

    Examples:
        >>> steps = Trajectories.from_positions(np.arange(5))
        >>> tested, kept = drafts_made(np.array([1, 1, 0, 1, 0], dtype=bool), steps, 2)
        >>> tested.tolist(), kept.tolist()
        ([2, 2], [2, 1])
    """
    _check(draft_length)
    ends = [*trajectories.starts[1:], len(accepted)]
    calls = []
    for begin, end in zip(trajectories.starts, ends, strict=True):
        at = int(begin)
        while at < end:
            last = min(at + draft_length, int(end))
            kept = int(np.argmin(np.append(accepted[at:last], False)))
            calls.append((min(kept + 1, last - at), kept))
            at += kept + 1
    counts = np.array(calls, dtype=np.int64).reshape(-1, 2)
    return counts[:, 0], counts[:, 1]


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


def _check(draft_length: int | None) -> None:
    if draft_length is not None and draft_length < 1:
        raise ValueError(f"draft_length={draft_length!r} is not allowed: give an integer of >= 1")


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

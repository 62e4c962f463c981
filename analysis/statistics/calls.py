"""Verification calls of drafts of a limited length: the most there can be, and those there were.

A call drafts up to gamma tokens, keeps those before the first rejected one, and emits one more
token of the target's own, which no rule tests. So where the next call begins depends on what was
accepted, and a step behind a fully accepted draft is skipped. Calls are cut where a trajectory
ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .bootstrap import Flags, Integers
from .run_lengths import Trajectories


def most_calls(certain: Flags, trajectories: Trajectories, draft_length: int | None) -> Integers:
    """Return the most calls of each trajectory that any drafter can cause.

    A certain step is accepted; any other one may be accepted or rejected. Of the steps that may be
    rejected, not all need to be in the worst case: a rejection moves the begin of the next call.
    So calls(i) = 1 + max(calls(i + gamma + 1), max over uncertain i + l, l < gamma, of
    calls(i + l + 1)).

    Args:
        certain: (N, G), steps by G settings.
        trajectories: P, of the steps.
        draft_length: gamma, at least 1; None means drafts of any length.

    Returns:
        (P, G).

    Raises:
        ValueError: the draft length is below 1.

    Example:
        >>> steps = Trajectories.from_positions(np.arange(5))
        >>> certain = np.array([[1, 0], [1, 1], [0, 0], [1, 1], [1, 1]], dtype=bool)
        >>> most_calls(certain, steps, 2).tolist(), most_calls(certain, steps, None).tolist()
        ([[2, 3]], [[2, 3]])
    """
    gamma, rows, begin = _rows(certain, trajectories, draft_length)
    size, count, settings = rows.shape
    if draft_length is None:  # every uncertain step but the last ends a call
        return np.asarray(1 + np.sum(~rows[:-1], axis=0))
    calls = np.zeros((size + gamma + 1, count, settings), dtype=np.intp)
    for i in range(size - 1, -1, -1):
        most = calls[i + gamma + 1]
        for at in range(i, min(i + gamma, size)):
            most = np.maximum(most, np.where(rows[at], 0, calls[at + 1]))
        calls[i] = 1 + most
    return np.asarray(calls[begin, np.arange(count)])


def calls_made(accepted: Flags, trajectories: Trajectories, draft_length: int | None) -> Integers:
    """Return the calls of each trajectory, (P, G), where (N, G) steps are accepted or rejected.

    Args and errors are those of `most_calls`.

    Example:
        >>> steps = Trajectories.from_positions(np.arange(5))
        >>> calls_made(np.array([[1], [1], [0], [1], [0]], dtype=bool), steps, 2).tolist()
        [[2]]
    """
    gamma, rows, begin = _rows(accepted, trajectories, draft_length)
    size, count, settings = rows.shape
    place = np.arange(count)[:, None], np.arange(settings)[None]
    rejected = np.full((count, settings), size)  # the next one from a step on
    calls = np.zeros((size + 1, count, settings), dtype=np.intp)
    for i in range(size - 1, -1, -1):
        rejected = np.where(rows[i], rejected, i)
        calls[i] = 1 + calls[(np.minimum(np.minimum(rejected, i + gamma) + 1, size), *place)]
    return np.asarray(calls[begin, np.arange(count)])


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

    Example:
        >>> steps = Trajectories.from_positions(np.arange(5))
        >>> tested, kept = drafts_made(np.array([1, 1, 0, 1, 0], dtype=bool), steps, 2)
        >>> tested.tolist(), kept.tolist()
        ([2, 2], [2, 1])
    """
    gamma, _, _ = _rows(accepted[:, None], trajectories, draft_length)
    ends = [*trajectories.starts[1:], len(accepted)]
    calls = []
    for begin, end in zip(trajectories.starts, ends, strict=True):
        at = int(begin)
        while at < end:
            last = min(at + gamma, int(end))
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

    Example:
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


def _rows(
    flags: Flags, trajectories: Trajectories, draft_length: int | None
) -> tuple[int, Flags, NDArray[np.intp]]:
    """Return gamma, (L, P, G) flags of trajectories that all end at step L, and (P,) begins.

    Before its begin, a trajectory's flags are true.
    """
    if draft_length is not None and draft_length < 1:
        raise ValueError(f"draft_length={draft_length!r} is not allowed: give an integer of >= 1")
    lengths = np.bincount(trajectories.prompts)
    size = int(lengths.max())
    begin = size - lengths
    rows = np.ones((size, len(lengths), flags.shape[1]), dtype=bool)
    step = np.arange(len(flags)) - trajectories.starts[trajectories.prompts]
    rows[begin[trajectories.prompts] + step, trajectories.prompts] = flags
    return (size if draft_length is None else min(draft_length, size)), rows, begin

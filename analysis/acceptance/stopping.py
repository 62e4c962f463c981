"""When a drafter should stop: certificates from its own side, calibrated over other prompts.

A draft token is sure to be accepted if the drafter's KL there is below C(q)
(`analysis.beyond.drafter_side`). Before the target is called the KL is not known; `level`
bounds it by split conformal prediction over prompts. `stopped_calls` says what a rule for stopping
costs and gains: drafted, accepted and wasted tokens, and calls.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..statistics.bootstrap import Flags, Floats, Integers
from ..statistics.trajectories import Trajectories

ROUNDING = 1e-9


def level(kl: Floats, trajectories: Trajectories, share: float, confidence: float) -> float:
    """Return the KL that a new prompt's steps stay below, calibrated on these prompts.

    Each prompt's score is the least value that a `share` of its steps do not exceed. The
    ceil((P + 1) confidence)-th smallest of P scores is not exceeded by the score of one more
    prompt, exchangeable with these, with a probability of at least `confidence` (split conformal
    prediction). So at least `share` of its steps have a KL of at most this.

    Args:
        kl: (N,) nats, may be infinite.
        trajectories: of the steps, one a prompt.
        share: of a prompt's steps, in (0, 1].
        confidence: over prompts, in (0, 1).

    Returns:
        Nats; +inf where the prompts are too few, fewer than confidence / (1 - confidence).

    Raises:
        ValueError: share or confidence is out of range.

    Example:
        >>> steps = Trajectories.from_positions(np.array([0, 1, 0, 1, 0, 1]))
        >>> level(np.array([0.1, 0.5, 0.2, 0.3, 0.9, 0.4]), steps, share=0.5, confidence=0.7)
        0.4
        >>> level(np.array([0.1, 0.5, 0.2, 0.3, 0.9, 0.4]), steps, share=1.0, confidence=0.8)
        inf
    """
    if not 0 < share <= 1:
        raise ValueError(f"share={share!r} is not allowed: give a number in (0, 1]")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence!r} is not allowed: give a number in (0, 1)")
    lengths = np.bincount(trajectories.prompts)
    ordered = np.asarray(kl)[np.lexsort((kl, trajectories.prompts))]
    ranks = np.maximum(1, np.ceil(share * lengths - ROUNDING).astype(np.intp))
    scores = np.sort(ordered[trajectories.starts + ranks - 1])
    rank = math.ceil((len(scores) + 1) * confidence - ROUNDING)
    return float(scores[rank - 1]) if rank <= len(scores) else math.inf


class Stopped(NamedTuple):
    """What drafting with a rule for stopping comes to, (P,) each."""

    calls: Integers  # of the target
    drafted: Integers  # tokens
    accepted: Integers  # of these


def stopped_calls(
    accepted: Flags, kept: Flags, trajectories: Trajectories, draft_length: int
) -> Stopped:
    """Count calls and tokens where a draft stops before the first step that is not kept.

    A call drafts at the steps from where it begins, up to `draft_length` tokens and to the end of
    the trajectory, as long as they are kept. It emits those before the first rejected one and one
    token of the target's own.

    Args:
        accepted: (N,) whether the drafted token of each step is accepted.
        kept: (N,) whether the drafter drafts there; the whole draft where all are.
        trajectories: of the steps.
        draft_length: at least 1.

    Raises:
        ValueError: the draft length is below 1.

    Example:
        >>> steps = Trajectories.from_positions(np.arange(4))
        >>> accepted, kept = np.array([1, 0, 1, 1], bool), np.array([1, 1, 0, 1], bool)
        >>> [column.tolist() for column in stopped_calls(accepted, kept, steps, 3)]
        [[3], [3], [2]]
    """
    if draft_length < 1:
        raise ValueError(f"draft_length={draft_length!r} is not allowed: give an integer of >= 1")
    ends = np.append(trajectories.starts[1:], len(accepted))
    stop = np.minimum(_next(~kept), ends[trajectories.prompts])
    step = np.arange(len(accepted))
    drafts = np.minimum(stop - step, draft_length)
    hits = np.minimum(_next(~accepted) - step, drafts)
    at, counts = trajectories.starts.copy(), np.zeros((3, len(ends)), dtype=np.intp)
    while (open_ := np.flatnonzero(at < ends)).size:
        here = at[open_]
        counts[:, open_] += [np.ones_like(here), drafts[here], hits[here]]
        at[open_] += hits[here] + 1
    return Stopped(*counts)


def depths_tested(accepted: Flags, trajectories: Trajectories, draft_length: int) -> Integers:
    """Return at which depth of a draft each step's token is tested, (N,), from 1; 0: at none.

    Drafts have `draft_length` tokens, or end with the trajectory. Not tested is the token behind a
    draft that was accepted as a whole.

    Example:
        >>> steps = Trajectories.from_positions(np.arange(6))
        >>> depths_tested(np.array([1, 1, 1, 0, 1, 0], bool), steps, 2).tolist()
        [1, 2, 0, 1, 1, 2]
    """
    ends = np.append(trajectories.starts[1:], len(accepted))
    step = np.arange(len(accepted))
    drafts = np.minimum(ends[trajectories.prompts] - step, draft_length)
    hits = np.minimum(_next(~accepted) - step, drafts)
    depths, at = np.zeros(len(accepted), dtype=np.intp), trajectories.starts.copy()
    while (open_ := np.flatnonzero(at < ends)).size:
        here = at[open_]
        tested = np.minimum(hits[here] + 1, drafts[here])
        first = np.repeat(np.cumsum(tested) - tested, tested)
        depth = np.arange(len(first)) - first
        depths[np.repeat(here, tested) + depth] = depth + 1
        at[open_] += hits[here] + 1
    return depths


def _next(flags: Flags) -> Integers:
    """Return the first flagged step from each step on, N where there is none."""
    size = len(flags)
    found = np.where(flags, np.arange(size), size)
    return np.asarray(np.minimum.accumulate(found[::-1])[::-1])

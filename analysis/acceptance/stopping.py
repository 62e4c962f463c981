"""When a drafter should stop: certificates from its own side, calibrated over other prompts.

A draft token is sure to be accepted if the drafter's KL there is below C(q)
(`analysis.beyond.drafter_side`). Before the target is called the KL is not known; `level`
bounds it by split conformal prediction over prompts. `stopped_calls` says what a rule for stopping
costs and gains: drafted, accepted and wasted tokens, and calls.
"""

from __future__ import annotations

import math

import numpy as np

from ..statistics.bootstrap import Floats
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

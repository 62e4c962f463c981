"""The ratio of the two largest logits at each step, by which MARS (arXiv 2601.15498) accepts."""

from __future__ import annotations

import numpy as np
import pandas as pd

THRESHOLD = 0.9  # of the logit ratio, the default of MARS
BELOW = "ratio below the threshold"
FIRST = "above, accepted at rank 1"
SECOND = "above, accepted at rank 2 (relaxed)"
REJECTED = "above, rejected"
OUTCOMES = (BELOW, FIRST, REJECTED, SECOND)


def top_two(trajectory: pd.DataFrame) -> pd.DataFrame:
    """Return the two largest logits and probabilities of each step, their ratios, and the outcome.

    `trajectory` has z1 and z2, the two largest logits, top_surprisal and draft_rank. The ratio
    z2 / z1 is 0 where z1 is not positive: MARS does not relax there.
    """
    z1 = trajectory["z1"].to_numpy(np.float64)
    z2 = trajectory["z2"].to_numpy(np.float64)
    p0 = np.exp(-trajectory["top_surprisal"].to_numpy(np.float64))
    probability_ratio = np.exp(z2 - z1)
    ratio = np.divide(z2, z1, out=np.zeros_like(z1), where=z1 > 0)
    rank = trajectory["draft_rank"].to_numpy()
    is_below = ~(ratio > THRESHOLD)
    outcome = np.select([is_below, rank == 1, rank == 2], [BELOW, FIRST, SECOND], REJECTED)
    return pd.DataFrame(
        {
            "z1": z1,
            "z2": z2,
            "p0": p0,
            "p1": p0 * probability_ratio,
            "ratio": ratio,
            "probability_ratio": probability_ratio,
            "outcome": pd.Categorical(outcome, OUTCOMES),
        }
    )

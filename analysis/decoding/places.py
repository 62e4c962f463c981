"""Acceptance by place of a draft: how often the i-th drafted token is accepted, once tested.

A head reads its own guesses from the second token of a draft on, so its rates fall along a draft.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd


def position_rates(calls: pd.DataFrame) -> pd.DataFrame:
    """Return how often the token at each place of a draft is tested and accepted, by run.

    Returns:
        run, place (from 1), tested, accepted, rate: the accepted share of the tested.
    """
    rows = []
    for run, mine in calls.groupby("run"):
        tested, accepted = mine["tested"].to_numpy(), mine["accepted"].to_numpy()
        for place in range(1, int(tested.max(initial=0)) + 1):
            n = int(np.sum(tested >= place))
            right = int(np.sum(accepted >= place))
            rows.append((run, place, n, right, right / n))
    return pd.DataFrame(rows, columns=["run", "place", "tested", "accepted", "rate"])


def place_rates(calls: pd.DataFrame, run: int, length: int) -> list[float]:
    """Return the (length,) acceptance rate of a run at each place of a draft.

    Places that no call reached take the rate of the last one that was; 0 where none was.
    """
    rates = position_rates(calls[calls["run"] == run])["rate"].tolist()
    return extended_rates(rates or [0.0], length)


def extended_rates(rates: Sequence[float], length: int) -> list[float]:
    """Return (length,) rates by place, the last one standing for all behind it."""
    return [*rates, *[rates[-1]] * length][:length]


def call_tokens(rates: Sequence[float]) -> float:
    """Return the expected tokens of a call, 1 + a_1 + a_1 a_2 + ..., (gamma,) rates by place.

    Examples:
        >>> call_tokens([0.5, 0.5]), call_tokens([])
        (1.75, 1.0)
    """
    return 1.0 + math.fsum(np.cumprod(rates))


def pooled_rate(rates: Sequence[float]) -> float:
    """Return the accepted share of the tested tokens of full drafts, (gamma,) rates by place.

    The token at place i is tested with probability a_1 ... a_(i-1), and accepted with a_1 ... a_i.

    Examples:
        >>> round(pooled_rate([0.75, 0.5]), 4)  # (0.75 + 0.375) / (1 + 0.75)
        0.6429
    """
    reached = np.cumprod(rates)
    return float(reached.sum() / (1.0 + reached[:-1].sum()))


def shifted_rates(rates: Sequence[float], level: float) -> list[float]:
    """Return (gamma,) rates all better or all worse: 0 at level 0, `rates` at 1/2, 1 at level 1.

    Straight lines in between, so each rate grows with the level.

    Examples:
        >>> shifted_rates([0.5, 0.25], 0.75), shifted_rates([0.5, 0.25], 0.25)
        ([0.75, 0.625], [0.25, 0.125])
    """
    if level <= 0.5:
        return [2 * level * a for a in rates]
    return [a + (2 * level - 1) * (1 - a) for a in rates]

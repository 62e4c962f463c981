"""Acceptance rates by place of a draft: accepted among tested i-th drafted tokens.

A head reads its own guesses from the second token on, so its rates fall along a draft.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd


def position_rates(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the tested and accepted tokens at each place of a draft, by run.

    Returns:
        run, place (from 1), tested, accepted, rate (accepted / tested).
    """
    rows = []
    for run, of_run in calls.groupby("run"):
        tested, accepted = of_run["tested"].to_numpy(), of_run["accepted"].to_numpy()
        for place in range(1, int(tested.max(initial=0)) + 1):
            n = int(np.sum(tested >= place))
            passed = int(np.sum(accepted >= place))
            rows.append((run, place, n, passed, passed / n))
    return pd.DataFrame(rows, columns=["run", "place", "tested", "accepted", "rate"])


def place_rates(calls: pd.DataFrame, run: int, length: int) -> list[float]:
    """Return the acceptance rate of a run at each place of a draft, (length,).

    Places that no call reached get the rate of the last one that was reached; 0 if there is none.
    """
    rates = position_rates(calls[calls["run"] == run])["rate"].tolist()
    rates = rates or [0.0]
    return [*rates, *[rates[-1]] * length][:length]


def pooled_rate(rates: Sequence[float]) -> float:
    """Return accepted / tested tokens of full drafts, from (gamma,) rates by place.

    The token at place i is tested with probability a_1 ... a_(i-1), and accepted with a_1 ... a_i.

    Examples:
        >>> round(pooled_rate([0.75, 0.5]), 4)  # (0.75 + 0.375) / (1 + 0.75)
        0.6429
    """
    reached = np.cumprod(rates)
    return float(reached.sum() / (1.0 + reached[:-1].sum()))


def shifted_rates(rates: Sequence[float], level: float) -> list[float]:
    """Return (gamma,) rates interpolated from 0 at level 0, over `rates` at 1/2, to 1 at level 1.

    The interpolation is linear, so each rate grows with the level.

    Examples:
        >>> shifted_rates([0.5, 0.25], 0.75), shifted_rates([0.5, 0.25], 0.25)
        ([0.75, 0.625], [0.25, 0.125])
    """
    if level <= 0.5:
        return [2 * level * a for a in rates]
    return [a + (2 * level - 1) * (1 - a) for a in rates]

"""Where drafting begins and stops to pay: the least acceptance, by draft length and batch size.

A call that drafts gamma tokens costs costs[gamma], and the target alone costs costs[0] a token.
Drafting pays where tokens_per_call(a, gamma) > costs[gamma] / costs[0]. The left side grows with
the acceptance rate a, so there is a least one. In a batch, all texts draft as many tokens and are
verified in one pass; costs are those of the batch, and the same holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from .closed_form import optimal_draft_length, tokens_per_call
from .metrics import Decoded
from .speed import call_costs

PRECISION = 1e-12  # of an acceptance rate
COLUMNS = [
    *("method", "temperature", "draft_length", "cost", "break_even", "tried"),
    *("rho", "rate", "speedup", "ci_low", "ci_high"),
]


def least_acceptance(costs: Sequence[float], gamma: int) -> float:
    """Return the least acceptance rate at which drafts of gamma tokens are no slower than none.

    Args:
        costs: seconds of a call with 0, 1, 2, ... drafted tokens; of 0, the target alone.
        gamma: from 1, below len(costs).

    Returns:
        In [0, 1]; NaN where drafts of this length do not pay even if all of them are accepted.

    Raises:
        ValueError: gamma is out of range, or a cost is not above 0.

    Example:
        >>> least_acceptance([1.0, 1.25], 1)  # 1 + a = 1.25
        0.25
        >>> least_acceptance([1.0, 2.5], 1)
        nan
    """
    if not 1 <= gamma < len(costs):
        raise ValueError(f"gamma={gamma} is not allowed: give 1 to {len(costs) - 1}")
    if not min(costs) > 0:
        raise ValueError(f"costs={list(costs)} are not allowed: give numbers above 0")
    wanted = costs[gamma] / costs[0]
    if wanted > gamma + 1:
        return math.nan
    if wanted <= 1:
        return 0.0
    if gamma == 1:
        return wanted - 1
    low, high = 0.0, 1.0
    while high - low > PRECISION:
        middle = (low + high) / 2
        if tokens_per_call(middle, gamma) < wanted:
            low = middle
        else:
            high = middle
    return high


def break_even(costs: Sequence[float]) -> tuple[int, float]:
    """Return the draft length that needs the least acceptance to pay, and this acceptance.

    Args:
        costs: as of `least_acceptance`.

    Returns:
        0 and NaN where no length pays. Of equal ones the shortest.

    Example:
        >>> gamma, a = break_even([1.0, 1.4, 1.5])  # 1 + a + a^2 = 1.5
        >>> gamma, round(a, 4)
        (2, 0.366)
    """
    found = [least_acceptance(costs, gamma) for gamma in range(1, len(costs))]
    paying = [(a, gamma) for gamma, a in enumerate(found, start=1) if not math.isnan(a)]
    if not paying:
        return 0, math.nan
    a, gamma = min(paying)
    return gamma, a


def by_length(decoded: Decoded, speeds: pd.DataFrame) -> pd.DataFrame:
    """Return break-even and measured acceptance at each draft length, from the measured costs.

    Args:
        decoded: calls and their seconds, of batch size 1.
        speeds: its table of `speed`.

    Returns:
        For methods that drafted chains with the model, at each length from 1 to the longest full
        draft: `cost` of a call over c_p (`call_costs`) and `break_even`, the least acceptance rate;
        where this length was `tried` also `rho`, `rate` and `speedup` with its interval `ci_low`,
        `ci_high` as measured, NaN elsewhere.
    """
    rows: list[dict[str, Any]] = []
    of_trees = decoded.of_trees.reindex(speeds.index, fill_value=False)
    mine = speeds[(speeds["drafter"] == "model").to_numpy() & ~of_trees.to_numpy()]
    for (method, temperature), group in mine.groupby(["method", "temperature"], sort=False):
        costs = call_costs(decoded, group)
        tried = group.set_index("draft_length")
        for gamma in range(1, len(costs)):
            found = tried.loc[gamma] if gamma in tried.index else None
            measured = {
                name: math.nan if found is None else float(found[name])
                for name in ("rho", "rate", "speedup", "ci_low", "ci_high")
            }
            rows.append(
                {
                    "method": method,
                    "temperature": temperature,
                    "draft_length": gamma,
                    "cost": costs[gamma] / costs[0],
                    "break_even": least_acceptance(costs, gamma),
                    "tried": found is not None,
                    **measured,
                }
            )
    return pd.DataFrame(rows, columns=COLUMNS)


def by_batch(decoded: Decoded, rate: float) -> pd.DataFrame:
    """Return where drafting pays at each batch size, from the seconds of passes over batches.

    A call of gamma drafted tokens is predicted to cost a pass of the target over gamma + 1 tokens
    of each text and gamma of the drafter over one: choosing tokens, roll-back, and texts of a
    batch that wait for each other are not in it.

    Args:
        decoded: its passes.
        rate: the acceptance rate for which a best length is wanted.

    Returns:
        One row a batch size: batch, `seconds` of the target's pass over one token of each text,
        `rho` the drafter's over it, `verify_ratio` of the longest pass over it and `longest` its
        tokens of a text, `break_even` the least acceptance rate at which any length pays and
        `at_length` the one that needs it, `rate`, `draft_length` the best one at this rate (0:
        drafting does not pay) and `speedup`, that predicted for it.
    """
    rows = []
    for batch in sorted(decoded.passes["batch"].unique()):
        passes = decoded.passes[decoded.passes["batch"] == batch]
        seconds = {model: one.sort_values("tokens") for model, one in passes.groupby("model")}
        verify = seconds["target"]["seconds"].to_numpy()
        draft = float(seconds["drafter"]["seconds"].iloc[0])
        costs = [float(one) + gamma * draft for gamma, one in enumerate(verify)]
        length, least = break_even(costs)
        best, speedup = optimal_draft_length(rate, costs)
        rows.append(
            {
                "batch": int(batch),
                "seconds": costs[0],
                "rho": draft / costs[0],
                "verify_ratio": verify[-1] / costs[0],
                "longest": len(verify),
                "break_even": least,
                "at_length": length,
                "rate": rate,
                "draft_length": best,
                "speedup": speedup,
            }
        )
    return pd.DataFrame(rows)

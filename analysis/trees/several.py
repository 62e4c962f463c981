"""The best lossless verification of several drafts of one token.

Of n drafts no lossless verification accepts one with a probability above

    1 - max over H of [Q_n(H) - p(H)],

Q_n(H) the probability that all n drafts lie in the set H; it is reached. The best H is a prefix of
the tokens by increasing p / q (docs/method.md). For n = 1 it is 1 - TV(p, q).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..topk import Floats
from .acceptance import drawn_rates

GRID = np.exp(np.arange(-36.0, 44.0, 0.25))  # times at which arrivals are counted
DRAWS = 64  # of the drafts of a step
COUNTS = (2, 4)  # drafts of one token
DRAFTS = "drafts"  # kind of a row


def best_of_drafts(p: Floats, q: Floats, count: int, replacement: bool = False) -> Floats:
    """Return the largest acceptance of so many drafts, (N,).

    Q_n(H) = q(H)^n for independent drafts. Drawn without replacement, token i arrives at an
    Exp(q_i) time, and the first n are the drafts: all lie in H if n of H arrive before the first
    of the others,

        Q_n(H) = integral over t of (1 - q(H)) exp(-(1 - q(H)) t) P(n of H have arrived by t),

    by the trapezoid rule in log t; the number of arrivals is Poisson binomial.

    Args:
        p: (N, V) target.
        q: (N, V) draft.
        count: n, at least 1.
        replacement: whether the drafts are independent.

    Examples:
        >>> p, q = np.array([[0.0, 1.0]]), np.array([[0.5, 0.5]])
        >>> [float(best_of_drafts(p, q, 2, way)[0].round(9)) for way in (True, False)]
        [0.75, 1.0]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(np.where(q > 0, p / q, np.inf), axis=1)
    p, q = (np.take_along_axis(x, order, axis=1) for x in (p, q))
    inside, mass = np.cumsum(q, axis=1), np.cumsum(p, axis=1)
    if replacement or count == 1:
        return np.asarray(1.0 - np.maximum(0.0, (inside**count - mass).max(axis=1)))
    rest = np.cumsum(q[:, ::-1], axis=1)[:, ::-1]
    rest = np.column_stack([rest[:, 1:], np.zeros(len(q))])  # of the tokens behind each prefix
    arrived = np.zeros((count, len(q), len(GRID)))  # probability of 0, 1, ... n - 1 arrivals
    arrived[0] = 1.0
    lost = np.zeros(len(q))
    for at in range(p.shape[1]):
        late = np.exp(-q[:, at, None] * GRID)
        arrived[1:] = late * arrived[1:] + (1.0 - late) * arrived[:-1]
        arrived[0] *= late
        weights = rest[:, at, None] * GRID * np.exp(-rest[:, at, None] * GRID)
        weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)  # of the first other one
        all_inside = 1.0 - (weights * arrived.sum(axis=0)).sum(axis=1)
        all_inside = np.where(rest[:, at] > 0, all_inside, 1.0)
        lost = np.maximum(lost, all_inside - mass[:, at])
    return 1.0 - lost


def several_statistics(p: Floats, q: Floats) -> pd.DataFrame:
    """Hold GSS and ERSS against the best verification of the same drafts, without replacement.

    Args:
        p: (N, V) target.
        q: (N, V) draft.

    Returns:
        Rows with rule (law and number of drafts), kind (drafts), eps (0: nothing is lost),
        statistic (acceptance, best, share) and value.
    """
    generator = np.random.default_rng(0)
    rates = np.zeros((2, max(COUNTS)))
    for _ in range(DRAWS):
        times = generator.exponential(size=p.shape)
        for races in (False, True):
            drawn = drawn_rates(p, q, times, max(COUNTS), races)
            rates[int(races), : len(drawn)] += drawn / (len(p) * DRAWS)
    rows = []
    for count in COUNTS:
        best = float(best_of_drafts(p, q, count).mean())
        for law, rate in zip(("GSS", "ERSS"), rates, strict=True):
            kept = float(rate[:count].sum())
            values = {"acceptance": kept, "best": best, "share": kept / best}
            rows += [(f"{law}, {count} drafts", DRAFTS, 0.0, *item) for item in values.items()]
    return pd.DataFrame(rows, columns=["rule", "kind", "eps", "statistic", "value"])

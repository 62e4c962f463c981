"""How well what is known of a step ranks its acceptance, where nothing is certified.

A certified step is accepted, whatever else it is. So over all steps a certificate's slack ranks
well by proof alone, and a correlation over all of them flatters it. Here only the steps count that
no certificate covers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..certificates.kernel_types import Ints, apart
from ..statistics.bootstrap import Flags, Floats, PromptBootstrap
from .realised import Steps, Verdict

SCORES = ("slack", "tv_slack", "margin", "kl", "tv")


def scores(steps: Steps, kl: Verdict, tv: Verdict, distance: Floats) -> dict[str, Floats]:
    """Return what may rank acceptance, (N,) each; larger promises more.

    Args:
        steps: a drafter beside its target.
        kl: the rule's verdict by KL.
        tv: the same by total variation.
        distance: (N,) total variation.

    Returns:
        slack, R - KL; tv_slack, the certificate of total variation less it (of strict greedy half
        the margin less it); margin p0 - p1 of the target; kl and tv, negated.
    """
    endless = np.isinf(tv.lower)
    tv_slack = np.where(endless, np.inf, np.where(endless, 0.0, tv.lower) - distance)
    values = (steps.slack(kl.lower), tv_slack, steps.margin, -steps.kl, -distance)
    return dict(zip(SCORES, values, strict=True))


def ranking(
    found: Mapping[str, Verdict], ranked: Mapping[str, Floats], bootstrap: PromptBootstrap
) -> pd.DataFrame:
    """Measure how well scores rank the acceptance of uncertified steps, and of all.

    Args:
        found: one rule's verdicts by divergence. A step is uncertified if none certifies it, by
            the lower ends of the certificates.
        ranked: (N,) scores, by name.
        bootstrap: over prompts.

    Returns:
        Rows with rule, over (uncertified, all), score, steps, accepted (share of them), value
        (AUC: how often an accepted step has the larger score than a rejected one, ties half), and
        for the uncertified ci_low and ci_high. NaN where all are accepted, or none is.
    """
    verdicts = list(found.values())
    accepted = verdicts[0].accepted
    certified = np.any([one.certified for one in verdicts], axis=0)
    rows = []
    for over, chosen in (("uncertified", ~certified), ("all", np.ones_like(certified))):
        share = float(accepted[chosen].mean()) if chosen.any() else np.nan
        for name, score in ranked.items():
            row = {"over": over, "score": name, "steps": int(chosen.sum()), "accepted": share}
            draws = areas(score, accepted, chosen, bootstrap, over == "uncertified")
            low, high = bootstrap.interval(draws[1:]) if len(draws) > 1 else (np.nan, np.nan)
            row |= {"value": float(draws[0]), "ci_low": float(low), "ci_high": float(high)}
            rows.append(row)
    return pd.DataFrame(rows).assign(rule=verdicts[0].rule.label)


def areas(
    score: Floats,
    accepted: Flags,
    chosen: Flags,
    bootstrap: PromptBootstrap,
    resampled: bool = True,
) -> Floats:
    """Return how often an accepted step has the larger score than a rejected one, ties half.

    Args:
        score: (N,).
        accepted: (N,).
        chosen: (N,) the steps at hand.
        bootstrap: over prompts.
        resampled: whether the areas of the resamples are wanted as well.

    Returns:
        (1,), or (1 + B,): first the area over the steps at hand. NaN where all of them are
        accepted, or none is.
    """
    prompts = bootstrap.prompts
    up, down = np.flatnonzero(accepted & chosen), np.flatnonzero(~accepted & chosen)
    weights = np.ones((1, bootstrap.count))
    if resampled:
        weights = np.concatenate([weights, bootstrap.weights])
    if len(up) == 0 or len(down) == 0:
        return np.full(len(weights), np.nan)
    pairs = np.outer(
        *(
            np.bincount(prompts[steps], minlength=bootstrap.count).astype(np.float64)
            for steps in (up, down)
        )
    )
    wins = pair_wins(score[up], prompts[up], score[down], prompts[down], bootstrap.count)
    # half-integers: these sums are exact in any order
    above, below = (np.sum((weights @ m) * weights, axis=1) for m in (wins, pairs))
    with np.errstate(invalid="ignore"):
        return np.asarray(above / below)


@apart
def count_wins(places: Ints, of: Ints, low_of: Ints, passed: Floats, wins: Floats) -> None:
    """Add, to the row of each value's prompt, how many lower ones of each prompt it exceeds.

    Args:
        places: (A,) how many of the lower values, in order, each exceeds; increasing.
        of: (A,) prompt of each.
        low_of: (B,) prompts of the lower values, in order.
        passed: (P,) zeros.
        wins: (P, P).
    """
    done = 0
    for i in range(len(places)):
        while done < places[i]:
            passed[low_of[done]] += 0.5
            done += 1
        row = wins[of[i]]
        for prompt in range(len(passed)):
            row[prompt] += passed[prompt]


def pair_wins(
    high: Floats, high_of: np.ndarray, low: Floats, low_of: np.ndarray, count: int
) -> Floats:
    """Count, for each pair of prompts, how often a value of one exceeds a value of the other.

    Args:
        high: (A,) values.
        high_of: (A,) prompt of each.
        low: (B,) values.
        low_of: (B,) prompt of each.
        count: P, of the prompts.

    Returns:
        (P, P): pairs of a value of `high`, its prompt the row, and a smaller one of `low`; ties
        count half.

    Example:
        >>> values = np.array([2.0, 1.0])
        >>> pair_wins(values, np.array([0, 1]), np.array([1.0, 3.0]), np.array([0, 0]), 2).tolist()
        [[1.0, 0.0], [0.5, 0.0]]
    """
    low_order, high_order = np.argsort(low, kind="stable"), np.argsort(high, kind="stable")
    low, low_of = low[low_order], low_of[low_order].astype(np.int64)
    high, high_of = high[high_order], high_of[high_order].astype(np.int64)
    wins = np.zeros((count, count))
    for side in ("left", "right"):  # ties: halves of both
        places = np.searchsorted(low, high, side=side)
        count_wins(places, high_of, low_of, np.zeros(count), wins)
    return wins

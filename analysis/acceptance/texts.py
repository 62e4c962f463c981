"""Certificates along the text that a rule writes, beside those along the target's own."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..statistics.bootstrap import Floats, PromptBootstrap, Resampling
from .judgement import CERTIFICATE_ROUNDING, rounding

TARGET, OWN, REJECTED = "target", "own", "rejected"  # values of the column text
POSITION = ["prompt_id", "position"]
STATISTICS = {  # column: printed name
    "certified": "certified at ε = {eps:g}",
    "by_drafter": "certified for this drafter",
    "certificate": "certificate R, median (nats)",
    "entropy": "entropy, mean (nats)",
    "top_probability": "p₀, mean",
}


def text_statistics(steps: pd.DataFrame, eps: float, statistics: Resampling) -> pd.DataFrame:
    """Return statistics of the target's distributions by text, for every run that a rule judges.

    Args:
        steps: texts of `analysis.decoding.metrics.Decoded`.
        eps: KL in nats; a step is certified if R exceeds it.
        statistics: of the bootstrap over prompts, which pairs two texts.

    Returns:
        One row for each run and statistic: `alone`, along the target's answers, `own`, along the
        run's, and `own_difference` with `own_ci_low` and `own_ci_high`; `rejected`, behind rejected
        tokens of drafts, `emitted`, along the run's answers at the same positions, as rejections
        come where the target is unsure, and `rejected_difference` (no KL is known there); and
        `place_2`, ..., the rejected ones by place in the draft.
    """
    kl, r = (steps[name].to_numpy(np.float64) for name in ("kl", "certificate"))
    below = np.isposinf(r) | (kl + rounding(kl) < (1 - CERTIFICATE_ROUNDING) * r)
    values = steps.assign(certified=r > eps, by_drafter=np.where(np.isnan(kl), np.nan, below))
    rows = []
    for run, part in values.groupby("run"):
        alone, own, rejected = (part[part["text"] == text] for text in (TARGET, OWN, REJECTED))
        rejected = rejected.merge(own[POSITION], on=POSITION)
        emitted = rejected[POSITION].merge(own, on=POSITION)
        for name in STATISTICS:
            row = {"run": run, "statistic": name}
            row |= _compared({"own": own, "alone": alone}, name, statistics)
            row |= _compared({"rejected": rejected, "emitted": emitted}, name, statistics)
            for place, at_place in rejected.groupby("place"):
                row[f"place_{place}"] = _draws(at_place, name, statistics)[0]
            rows.append(row)
    return pd.DataFrame(rows)


def _compared(
    texts: dict[str, pd.DataFrame], name: str, statistics: Resampling
) -> dict[str, float]:
    """Return a statistic of two texts of the same prompts, and its difference with an interval."""
    first, second = texts
    if texts[first].empty:
        return {}
    (value, draws, bootstrap), (other, others, _) = (
        _draws(steps, name, statistics) for steps in texts.values()
    )
    with np.errstate(invalid="ignore"):  # infinite medians
        low, high = bootstrap.interval(draws - others)
        difference = float(np.subtract(value, other))
    ends = {f"{first}_ci_low": float(low), f"{first}_ci_high": float(high)}
    return {first: value, second: other, f"{first}_difference": difference, **ends}


def _draws(
    steps: pd.DataFrame, name: str, statistics: Resampling
) -> tuple[float, Floats, PromptBootstrap]:
    """Return the median certificate, or the mean of another column, with its draws."""
    bootstrap = PromptBootstrap(pd.factorize(steps["prompt_id"], sort=True)[0], *statistics)
    values = steps[name].to_numpy(np.float64)
    if name != "certificate":
        return *bootstrap.mean(values), bootstrap
    (median,), draws = bootstrap.quantiles(values, [0.5])
    return float(median), draws[:, 0], bootstrap

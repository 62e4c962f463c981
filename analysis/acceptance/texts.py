"""Certificates along a rule's own text beside those along the target's own.

Under strict greedy the emitted text is the target's own. A relaxed rule emits other tokens, and the
target's distributions behind them differ. Here they are compared, paired by prompt.
"""

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
        statistics: resamples, confidence and seed of the bootstrap over prompts.

    Returns:
        One row for each run and statistic: `alone`, along the target's own answers; `own`, along
        the run's, and its difference from `alone` with an interval (own_difference, own_ci_low,
        own_ci_high), over the prompts of both; `rejected`, behind rejected tokens of drafts;
        `emitted`, along the run's answer at the same positions, and the difference of the two
        (rejected_difference, ...); `place_2`, ..., the rejected ones by place in the draft; the
        number of steps of each text. Rejected ones have no KL: their share certified for this
        drafter is NaN.
    """
    kl, r = (steps[name].to_numpy(np.float64) for name in ("kl", "certificate"))
    below = np.isposinf(r) | (kl + rounding("kl", kl) < (1 - CERTIFICATE_ROUNDING) * r)
    values = steps.assign(certified=r > eps, by_drafter=np.where(np.isnan(kl), np.nan, below))
    rows = []
    for run, own in values.groupby("run"):
        texts = {text: own[own["text"] == text] for text in (TARGET, OWN, REJECTED)}
        # rejections come where the target is unsure, so each is compared with its own position
        texts[REJECTED] = texts[REJECTED].merge(texts[OWN][POSITION], on=POSITION)
        emitted = texts[REJECTED][POSITION].merge(texts[OWN], on=POSITION)
        places = dict([*texts[REJECTED].groupby("place")])
        for name in STATISTICS:
            row = {"run": run, "statistic": name, "alone": _statistic(texts[TARGET], name)}
            row["emitted"] = _statistic(emitted, name)
            for text, others in ((OWN, texts[TARGET]), (REJECTED, emitted)):
                row |= _compared(texts[text], others, name, text, statistics)
            row |= {f"steps_{text}": len(part) for text, part in texts.items()}
            rows.append(row | {f"place_{at}": _statistic(of, name) for at, of in places.items()})
    return pd.DataFrame(rows)


def _statistic(steps: pd.DataFrame, name: str) -> float:
    """Return the median certificate, or the mean of another column."""
    values = steps[name].to_numpy(np.float64)
    if not len(values):
        return np.nan
    if name == "certificate":
        return float(np.quantile(values, 0.5, method="inverted_cdf"))
    return float(values.mean())


def _compared(
    steps: pd.DataFrame, others: pd.DataFrame, name: str, text: str, statistics: Resampling
) -> dict[str, float]:
    """Return a statistic of a text and its difference from another one, paired by prompt."""
    both = set(steps["prompt_id"]) & set(others["prompt_id"])
    names = (text, f"{text}_difference", f"{text}_ci_low", f"{text}_ci_high")
    value = _statistic(steps, name)
    if not both or np.isnan(value):
        return dict.fromkeys(names, np.nan) | {text: value}
    points, draws = list[float](), list[Floats]()
    for part in (steps, others):
        part = part[part["prompt_id"].isin(both)]
        # sorted, so that both texts share the resamples
        bootstrap = PromptBootstrap(pd.factorize(part["prompt_id"], sort=True)[0], *statistics)
        values = part[name].to_numpy(np.float64)
        if name == "certificate":
            point, drawn = bootstrap.quantiles(values, [0.5])
            points.append(float(point[0]))
            draws.append(drawn[:, 0])
        else:
            mean, drawn = bootstrap.mean(values)
            points.append(mean)
            draws.append(drawn)
    with np.errstate(invalid="ignore"):  # infinite medians
        low, high = bootstrap.interval(draws[0] - draws[1])
        difference = float(np.subtract(points[0], points[1]))
    return dict(zip(names, (value, difference, float(low), float(high)), strict=True))

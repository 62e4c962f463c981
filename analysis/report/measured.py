"""Certificates of steps, and the frames `top` and `certificates` of `records.Results`.

Frame `runs` has `analysis.statistics.run_lengths.run_lengths` of every target and rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..rules import Rule
from ..statistics.bootstrap import Floats, PromptBootstrap, summarise


@dataclass(frozen=True)
class Certified:
    """Certificates of one rule over the steps of one target, in nats.

    Attributes:
        rule: the rule.
        lower: (N,) lower ends, +inf where the rejection region is empty.
        upper: (N,) upper ends.
    """

    rule: Rule
    lower: Floats
    upper: Floats


Panels = Mapping[str, Sequence[Certified]]  # by target


def certificate_statistics(
    target: str,
    rule: Rule,
    lower: Floats,
    upper: Floats,
    bootstrap: PromptBootstrap,
    undefined: float = math.nan,
) -> pd.DataFrame:
    """Return the rows of frame `certificates` for (N,) certificates of one rule in nats.

    Columns: target, rule (label), statistic, value, optimistic, ci_low, ci_high, prompts,
    few_prompts, empty, inexact, undefined, steps.

    `undefined` counts the steps at which the rule's test means nothing (MARS: z1 <= 0); NaN for
    rules whose test always does.
    """
    frame = _tidy(summarise(lower, upper, rule.ceiling, bootstrap), bootstrap)
    frame.insert(0, "target", target)
    frame.insert(1, "rule", rule.label)
    return frame.assign(
        empty=float(np.mean(np.isinf(lower))),
        inexact=float(np.mean(lower < upper)),
        undefined=undefined,
        steps=len(lower),
    )


def top_statistics(
    target: str, probabilities: Floats, ranks: Sequence[int], bootstrap: PromptBootstrap
) -> pd.DataFrame:
    """Return the rows of frame `top` (by k) for (N, R) probabilities of the top `ranks` tokens."""
    frames = []
    for at, k in enumerate(ranks):
        values = np.ascontiguousarray(probabilities[:, at])
        frame = _tidy(summarise(values, values, math.inf, bootstrap), bootstrap)
        frame.insert(0, "target", target)
        frame.insert(1, "k", k)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _tidy(found: dict[str, dict[str, float]], bootstrap: PromptBootstrap) -> pd.DataFrame:
    return pd.DataFrame(
        [{"statistic": name, **values, **bootstrap.counted} for name, values in found.items()]
    )


def survival_band(
    values: Floats, grid: Floats, bootstrap: PromptBootstrap
) -> tuple[Floats, Floats]:
    """Return the pointwise interval of the share of (N,) values above each of (G,) levels."""
    cell = np.searchsorted(grid, values, side="left")  # number of levels below the value
    width = len(grid) + 1
    counts = np.bincount(bootstrap.prompts * width + cell, minlength=bootstrap.count * width)
    above = np.cumsum(counts.reshape(-1, width)[:, ::-1], axis=1)[:, ::-1][:, 1:]
    draws = bootstrap.sums(above) / bootstrap.sums(bootstrap.steps[:, None])
    return bootstrap.interval(draws)

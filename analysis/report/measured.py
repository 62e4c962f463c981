"""What a study measured: its certificates, and tidy frames of one statistic a row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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


@dataclass(frozen=True)
class Measured:
    """The tidy frames of a study's certificates.

    Attributes:
        targets: printed names, in order.
        rules: all rules, in order.
        top: target, k, statistic, value, optimistic, ci_low, ci_high, prompts, few_prompts.
        certificates: target, rule (label), statistic, value, optimistic, ci_low, ci_high, empty,
            inexact, undefined, steps, prompts, few_prompts.
        runs: target, rule and the columns of `analysis.statistics.run_lengths.run_lengths`.
    """

    targets: Sequence[str]
    rules: Sequence[Rule]
    top: pd.DataFrame
    certificates: pd.DataFrame
    runs: pd.DataFrame

    @cached_property
    def _rows(self) -> dict[tuple[Any, ...], dict[Any, Any]]:
        return {
            (row["target"], row["rule"], row["statistic"]): row
            for row in self.certificates.to_dict("records")
        }

    def row(self, target: str, rule: str, statistic: str) -> dict[Any, Any]:
        """Return the row of `certificates` of one statistic; `rule` is a label."""
        return self._rows[target, rule, statistic]


def certificate_statistics(
    target: str,
    rule: Rule,
    lower: Floats,
    upper: Floats,
    bootstrap: PromptBootstrap,
    undefined: float = math.nan,
) -> pd.DataFrame:
    """Return the rows of `Measured.certificates` for (N,) certificates of one rule in nats.

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
    """Return the rows of `Measured.top` for (N, R) probabilities of the top `ranks` tokens."""
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

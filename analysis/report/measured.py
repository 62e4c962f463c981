"""The steps of a target, and the frames `top` and `certificates` of `records.Results`.

Frame `runs` has `analysis.statistics.run_lengths.run_lengths` of every target and rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..rules import Rule
from ..statistics.bootstrap import Flags, Floats, PromptBootstrap, summarise


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


@dataclass(frozen=True, eq=False)
class Target:
    """The N steps of a target, along P answers, as the report and its page read them.

    Attributes:
        label: printed name of the target.
        certificates: of every rule of the study.
        bootstrap: over the prompts of the steps.
        tokens: (N,) the token emitted.
        candidates: (N, C) the target's most probable tokens.
        probabilities: (N, C) theirs.
        prompts: (P,) the id, the text and the category (else the source) of each.
        top: by k, the (N,) probability of the k most probable tokens.
        repeated: (N,) whether each step lies inside a repeated passage of its answer.
        undefined: steps at which the test of a rule, by its label, means nothing.
        words: text of the tokens that are known, by id.
        draft: the drafter's side, a row a step: its divergences by name, token, its most probable
            one, the rank of it under the target, and its probabilities, q under the drafter and
            p_draft under the target; None without a drafter.
        judged: by a rule's label, the (N,) steps that accept the draft, and those certified at the
            drafter's own distance.
        divergence: name of that of this distance: the one that certifies most of strict greedy.
    """

    label: str
    certificates: Sequence[Certified]
    bootstrap: PromptBootstrap
    tokens: NDArray[np.int32]
    candidates: NDArray[np.int32]
    probabilities: Floats
    prompts: Sequence[tuple[str, str, str]]
    top: Mapping[int, Floats] = field(default_factory=dict)
    repeated: Flags = field(default_factory=lambda: np.zeros(0, dtype=bool))
    undefined: Mapping[str, int] = field(default_factory=dict)
    words: Mapping[int, str] = field(default_factory=dict)
    draft: pd.DataFrame | None = None
    judged: Mapping[str, tuple[Flags, Flags]] = field(default_factory=dict)
    divergence: str = "kl"

    @cached_property
    def lower(self) -> dict[Rule, Floats]:
        """By rule, the (N,) lower ends of its certificates, nats."""
        return {item.rule: item.lower for item in self.certificates}


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
    target: str, top: Mapping[int, Floats], bootstrap: PromptBootstrap
) -> pd.DataFrame:
    """Return the rows of frame `top` from the (N,) probabilities of the k most probable tokens."""
    frames = []
    for k, values in top.items():
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

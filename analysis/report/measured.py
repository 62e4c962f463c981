"""Results of a study: frames of statistics, and the steps of each target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..acceptance.judgement import Judgement
from ..rules import Rule
from ..statistics.bootstrap import Floats, PromptBootstrap, summarise
from ..statistics.trajectories import Trajectories


@dataclass(frozen=True, eq=False)
class Results:
    """The results of a study: named tidy frames that share their key columns.

    Key columns are `target` (printed name) and `rule` (label); a long frame also has `statistic`
    and `value`. Intervals over prompts are `ci_low` and `ci_high`, with `prompts`. Statistics of
    certificates that are intervals count the lower ends.

    Attributes:
        targets: printed names, in order.
        rules: every rule in a frame, by label; those of the study first, in order.
        frames: by name. Every study has `top`, `certificates`, `runs` (run lengths) and `parts`;
            with a drafter there are `acceptance` and `breakdown`, of stage acceptance.
        drafter: its printed name; empty without a drafter.
        sampled: temperature of the answers if they were sampled.
    """

    targets: Sequence[str]
    rules: Mapping[str, Rule]
    frames: Mapping[str, pd.DataFrame]
    drafter: str = ""
    sampled: float | None = None

    def __getitem__(self, name: str) -> pd.DataFrame:
        """Return a frame, empty if the study has none of this name."""
        return self.frames.get(name, pd.DataFrame())

    def select(self, name: str, **conditions: Any) -> pd.DataFrame:
        """Return the rows of a frame whose columns equal a value, or one of a list of values."""
        frame = self[name]
        for column, values in conditions.items() if len(frame) else ():
            several = values if isinstance(values, list) else [values]
            frame = frame[frame[column].isin(several)]
        return frame

    @cached_property
    def certified(self) -> list[Rule]:
        """The rules whose certificates were computed."""
        return [self.rules[label] for label in self["certificates"]["rule"].unique()]

    @cached_property
    def names(self) -> dict[str, str]:
        """Printed name of every rule, by label."""
        return {label: rule.title for label, rule in self.rules.items()}


# (N,) lower and upper ends of the certificates of a rule over the N steps of a target, in nats;
# lower ends are +inf where the rejection region is empty
Ends = tuple[Floats, Floats]
Certified = Mapping[Rule, Ends]


@dataclass(frozen=True, eq=False)
class Target:
    """The N steps of a target in P answers, as the report and its page read them.

    Attributes:
        label: printed name of the target.
        certificates: by rule of the study.
        bootstrap: over the prompts of the steps.
        tokens: (N,) the token emitted.
        prompts: (P,) id and text of each prompt.
        top: by k, the (N,) probability of the k most probable tokens.
        margin: (N,) log p0 - log p1.
        undefined: by rule label, the number of steps at which the rule's test is undefined.
        words: text of tokens, by id.
        kl: (N,) KL(p||q), of a head with a reduced vocabulary that of its completed q'; None
            without a drafter.
        judged: by rule label, the drafter's steps as stage acceptance judged them.
    """

    label: str
    certificates: Certified
    bootstrap: PromptBootstrap
    tokens: NDArray[np.int32]
    prompts: Sequence[tuple[str, str]]
    top: Mapping[int, Floats] = field(default_factory=dict)
    margin: Floats = field(default_factory=lambda: np.zeros(0))
    undefined: Mapping[str, int] = field(default_factory=dict)
    words: Mapping[int, str] = field(default_factory=dict)
    kl: Floats | None = None
    judged: Mapping[str, Judgement] = field(default_factory=dict)

    @property
    def trajectories(self) -> Trajectories:
        """The steps of each answer."""
        steps = self.bootstrap.steps
        return Trajectories(np.cumsum(steps) - steps, self.bootstrap.prompts)


def certificate_statistics(
    target: str,
    rule: Rule,
    lower: Floats,
    upper: Floats,
    bootstrap: PromptBootstrap,
    undefined: float = math.nan,
) -> pd.DataFrame:
    """Return the rows of frame `certificates` for (N,) certificates of one rule in nats.

    Columns: target, rule (label), statistic, value, ci_low, ci_high, prompts, empty, inexact,
    undefined, steps.

    `undefined` is the number of steps at which the rule's test is undefined (MARS: z1 <= 0); NaN
    for rules whose test is always defined.
    """
    keys = {"target": target, "rule": rule.label}
    return _tidy(keys, lower, rule.ceiling, bootstrap).assign(
        empty=float(np.mean(np.isinf(lower))),
        inexact=float(np.mean(lower < upper)),
        undefined=undefined,
        steps=len(lower),
    )


def top_statistics(
    target: str, top: Mapping[int, Floats], bootstrap: PromptBootstrap
) -> pd.DataFrame:
    """Return the rows of frame `top` from the (N,) probabilities of the k most probable tokens."""
    frames = [
        _tidy({"target": target, "k": k}, values, math.inf, bootstrap) for k, values in top.items()
    ]
    return pd.concat(frames, ignore_index=True)


def _tidy(
    keys: Mapping[str, Any], values: Floats, ceiling: float, bootstrap: PromptBootstrap
) -> pd.DataFrame:
    statistics = summarise(values, ceiling, bootstrap)
    return pd.DataFrame(
        [
            {**keys, "statistic": x, **ends, "prompts": bootstrap.count}
            for x, ends in statistics.items()
        ]
    )

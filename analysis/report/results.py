"""Results of a study: frames of statistics, the steps of each target, and one of its answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..acceptance.judgement import Judgement
from ..rules import Rule
from ..statistics.bootstrap import PromptBootstrap, summarise
from ..statistics.trajectories import Trajectories
from ..topk import Floats, TopK
from .text import percent_text

EPS = 0.1  # nats: the KL of the drafters that steps are certified for in a study without one
FATES = ("open", "rejected", "accepted", "certified")  # of a step, by the digit that stands for it
PROMPT = 100  # characters of a prompt


@dataclass(frozen=True, eq=False)
class Results:
    """The results of a study: named tidy frames that share their key columns.

    Key columns are `target` (printed name) and `rule` (label); a long frame also has `statistic`
    and `value`. Intervals over prompts are `ci_low` and `ci_high`, with `prompts`. Statistics of
    certificates that are intervals count the lower ends.
    """

    targets: Sequence[str]  # printed names, in order
    rules: Mapping[str, Rule]  # every rule in a frame, by label; those of the study first, in order
    # by name. Every study has `top`, `certificates`, `runs` (run lengths) and `parts`; with a
    # drafter there are `acceptance` and `breakdown`, of stage acceptance
    frames: Mapping[str, pd.DataFrame]
    drafter: str = ""  # its printed name; empty without a drafter

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
    def certified_rules(self) -> list[Rule]:
        """The rules whose certificates were computed."""
        return [self.rules[label] for label in self["certificates"]["rule"].unique()]

    @cached_property
    def names(self) -> dict[str, str]:
        """Printed name of every rule, by label."""
        return {label: rule.title for label, rule in self.rules.items()}


@dataclass(frozen=True, eq=False)
class Target:
    """The N steps of a target in P answers."""

    label: str  # printed name of the target
    # by rule of the study (N,) lower and upper ends in nats; +inf where nothing can be rejected
    certificates: Mapping[Rule, tuple[Floats, Floats]]
    bootstrap: PromptBootstrap  # over the prompts of the steps
    tokens: NDArray[np.int32]  # (N,) the token emitted
    prompts: Sequence[str]  # (P,) the text of each answer's prompt
    dist: TopK | None = None  # their distributions
    # by k, the (N,) probability of the k most probable tokens
    top: Mapping[int, Floats] = field(default_factory=dict)
    margin: Floats = field(default_factory=lambda: np.zeros(0))  # (N,) log p0 - log p1
    # by rule label, the number of steps at which the rule's test is undefined
    undefined: Mapping[str, int] = field(default_factory=dict)
    words: Mapping[int, str] = field(default_factory=dict)  # text of tokens, by id
    # (N,) KL(p||q), of a head with a reduced vocabulary that of its completed q'; None without a
    # drafter
    kl: Floats | None = None
    # by rule label, the drafter's steps as stage acceptance judged them
    judged: Mapping[str, Judgement] = field(default_factory=dict)

    @property
    def trajectories(self) -> Trajectories:
        """The steps of each answer."""
        steps = self.bootstrap.steps
        return Trajectories(np.cumsum(steps) - steps, self.bootstrap.prompts)


def certificate_statistics(target: Target) -> pd.DataFrame:
    """Return frame `certificates`: mean, median, p5 and p25 of the certificates of every rule.

    Columns: target, rule (label), statistic, value, ci_low, ci_high (nats), prompts; the shares of
    steps whose certificate is `empty` (nothing can be rejected) and `inexact` (an interval);
    `undefined`, the number of steps at which the rule's test is undefined (MARS: z1 <= 0), NaN for
    rules whose test is always defined; steps.
    """
    frames = [
        _statistics(target, {"rule": rule.label}, lower, rule.ceiling).assign(
            empty=float(np.mean(np.isinf(lower))),
            inexact=float(np.mean(lower < upper)),
            undefined=target.undefined.get(rule.label, math.nan),
            steps=len(lower),
        )
        for rule, (lower, upper) in target.certificates.items()
    ]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def top_statistics(target: Target) -> pd.DataFrame:
    """Return frame `top`: the same statistics of the probability of the k most probable tokens."""
    frames = [_statistics(target, {"k": k}, top, math.inf) for k, top in target.top.items()]
    return pd.concat(frames, ignore_index=True)


def _statistics(
    target: Target, key: Mapping[str, Any], values: Floats, ceiling: float
) -> pd.DataFrame:
    bootstrap = target.bootstrap
    rows = [{"statistic": x, **ends} for x, ends in summarise(values, ceiling, bootstrap).items()]
    frame = pd.DataFrame(rows).assign(prompts=bootstrap.count, **key, target=target.label)
    return frame[["target", *key, "statistic", "value", "ci_low", "ci_high", "prompts"]]


class ShownAnswer(NamedTuple):
    """One answer of a target, token by token, and what becomes of each step under every rule."""

    prompt: str  # the beginning of its prompt
    words: list[str]  # the text of each token
    # title of a rule, its shares of the answer in words and, a digit a token, the place in `FATES`
    rules: list[tuple[str, str, str]]


def median_answer(target: Target) -> ShownAnswer:
    """Return the answer with the median share of tokens that the study's first rule accepts.

    Without a drafter it is that of the median mean certificate.
    """
    first, *_ = target.certificates
    steps = target.bootstrap.steps
    values = np.minimum(target.certificates[first][0], first.ceiling)
    if target.judged:
        values = target.judged[first.label].accepted.astype(float)
    shares = np.bincount(target.bootstrap.prompts, weights=values) / steps
    answer = int(np.argsort(shares, kind="stable")[round((len(shares) - 1) / 2)])
    begin, text = int(steps[:answer].sum()), target.prompts[answer]
    chosen, begun = slice(begin, begin + int(steps[answer])), text[:PROMPT]
    return ShownAnswer(
        text if len(text) <= PROMPT else f"{begun.rpartition(' ')[0] or begun} …",
        [target.words.get(token, f"#{token}") for token in target.tokens[chosen].tolist()],
        [(rule.title, *_fates(target, rule, chosen)) for rule in target.certificates],
    )


def _fates(target: Target, rule: Rule, chosen: slice) -> tuple[str, str]:
    """Return the shares of the chosen steps, and what becomes of each (`ShownAnswer`)."""
    judged = target.judged.get(rule.label)
    if judged is None:
        certified = target.certificates[rule][0][chosen] > EPS
        places = certified * FATES.index("certified")
        shares = f"{percent_text(certified.mean())} certified"
    else:
        accepted, certified = judged.accepted[chosen], judged.certified[chosen]
        places = 1 + accepted + certified
        shares = (
            f"{percent_text(accepted.mean())} accepted, {percent_text(certified.mean())} certified"
        )
    return shares, "".join(map(str, places.tolist()))

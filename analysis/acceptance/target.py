"""The steps of one target: its answers, their certificates, and a drafter's acceptance there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..rules import Rule
from ..statistics.bootstrap import PromptBootstrap
from ..statistics.trajectories import Trajectories
from ..topk import Distributions, Floats
from .judgement import Judgement


@dataclass(frozen=True, eq=False)
class Target:
    """The N steps of a target in P answers."""

    label: str  # printed name of the target
    # (N,) lower and upper ends of certificates by rule, nats; +inf where nothing can be rejected
    certificates: Mapping[Rule, tuple[Floats, Floats]]
    bootstrap: PromptBootstrap  # over the prompts of the steps
    tokens: NDArray[np.int32]  # (N,) id of the token emitted
    prompt_texts: Sequence[str]  # (A,) the prompt of each answer
    dist: Distributions | None = None  # of the steps, if they are stored
    # (N,) total probability of the k most probable tokens, by k
    top: Mapping[int, Floats] = field(default_factory=dict)
    logit_gap: Floats = field(default_factory=lambda: np.zeros(0))  # (N,) log p0 - log p1
    # number of steps at which a rule's test is undefined, by rule label
    undefined: Mapping[str, int] = field(default_factory=dict)
    words: Mapping[int, str] = field(default_factory=dict)  # text of tokens, by id
    # (N,) KL(p||q); for a head with a reduced vocabulary KL(p||q'), see `Steps`; None without a
    # drafter
    kl: Floats | None = None
    # what each rule accepts and certifies of the drafter, by rule label
    judged: Mapping[str, Judgement] = field(default_factory=dict)

    @property
    def trajectories(self) -> Trajectories:
        """The steps of each answer."""
        steps = self.bootstrap.answer_steps
        return Trajectories(np.cumsum(steps) - steps, self.bootstrap.answer_index)

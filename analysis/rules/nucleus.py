"""The rule of top-p verification: accept a set of tokens of a given mass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from .builtin import PROBABILITIES, M
from .rule import Counts, Rule, parameter, register

if TYPE_CHECKING:
    from ..topk import TopK


@register("nucleus")
class Nucleus(Rule):
    """Accept the fewest most probable tokens that hold a share of the mass, at most m.

    n = min(m, min{j : p_1 + ... + p_j >= share}), p by decreasing probability; with a share of 1
    the m most probable tokens. FastDeploy's verify_strategy topp, its window aside.
    """

    shown: ClassVar[str] = "Nucleus ({share:g}, m = {m})"
    relaxes: ClassVar[Mapping[str, int]] = {"share": 1, "m": 1}
    decided_by: ClassVar[tuple[str, ...]] = PROBABILITIES

    share: float = parameter("a number in (0, 1]", lambda share: 0 < share <= 1)
    m: int = parameter(*M)

    @property
    def minimum_k(self) -> int:
        """M + 1: the first rejected token has rank at most m + 1."""
        return self.m + 1

    def accepted_count(self, dist: TopK, /) -> Counts:
        """Return 1 plus the number of ranks below m whose cumulative mass is below the share."""
        mass = np.cumsum(dist.probs[:, : self.m - 1], axis=1)
        below = (mass < self.share) | (self.share == 1)
        count: Counts = np.minimum(1 + below.sum(axis=1), dist.vocab_size).astype(np.int32)
        return count

"""The rule of draft trees: a level is judged as a whole, not token by token."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from .builtin import _m
from .rule import NO_COUNT, Counts, Coverage, Drafted, Rule, register

if TYPE_CHECKING:
    from ..topk import TopK


@register("tree")
@dataclass(frozen=True)
class Tree(Rule):
    """Accept a level of a tree iff x0 is among the drafter's top m tokens (Theorem 5.1)."""

    shown: ClassVar[str] = "Tree (m = {m})"
    relaxes: ClassVar[Mapping[str, int]] = {"m": 1}
    judges_tokens: ClassVar[bool] = False

    m: int = _m()

    @property
    def ceiling(self) -> float:
        """log(m + 1), Theorem 5.3."""
        return math.log(self.m + 1)

    @property
    def ceiling_shown(self) -> str:
        """The ceiling as printed."""
        return f"log {self.m + 1}"

    @property
    def minimum_k(self) -> int:
        """M + 1: x0 and the m tokens that can push it out."""
        return self.m + 1

    def form(self, _dist: TopK, /) -> Coverage:
        """Return the coverage of x0 by m tokens."""
        return Coverage(self.m)

    def accepted_count(self, dist: TopK, /) -> Counts:
        """Return NO_COUNT throughout: what is accepted does not go by target ranks."""
        return np.full(len(dist), NO_COUNT, dtype=np.int32)

    def accepts(
        self, _dist: TopK, drafted: Drafted, _count: Counts | None = None
    ) -> NDArray[np.bool_]:
        """Say whether x0 is covered, (N,).

        Raises:
            ValueError: the rank of x0 under the drafter is not known.
        """
        if drafted.argmax_rank is None:
            raise ValueError(
                f"rule {self.label!r} judges a level of a tree: the rank of the target's argmax "
                "under the drafter is needed (argmax_rank)"
            )
        return np.asarray(drafted.argmax_rank <= self.m)

"""The built-in acceptance rules, defined in docs/method.md, and what your own are made of."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from . import RuleError
from .rule_base import NO_COUNT, Columns, Counts, Cut, Range, Rule, Threshold

if TYPE_CHECKING:
    from .topk import TopK

__all__ = [
    "BUILT_IN",
    "AbsoluteThreshold",
    "Additive",
    "Cut",
    "Mars",
    "Multiplicative",
    "Rule",
    "StrictGreedy",
    "Threshold",
    "TopMAdditive",
    "TopMMultiplicative",
    "Tree",
    "Typical",
]  # fmt: skip

PROBABILITY_COLUMNS = ("top_surprisal",)  # the column that turns raw logits into probabilities
NEAR_0 = 1e-4  # the end of a range that excludes 0
T = Annotated[float, Field(ge=0, le=1)]
Alpha = Annotated[float, Field(gt=0, le=1)]
M = Annotated[int, Field(ge=1, lt=1 << 31)]
Positive = Annotated[float, Field(gt=0)]


class StrictGreedy(Rule):
    """Accept x0 only (Corollary 4.7)."""

    name: ClassVar[str] = "greedy"
    title_format: ClassVar[str] = "Strict greedy"
    minimum_k: ClassVar[int] = 2  # x0 and the first rejected token

    def cut(self, _dist: TopK, /) -> Threshold:
        return Threshold(max_rank=1)


class Additive(Rule):
    """Accept p > p0 - t (Corollary 4.10)."""

    name: ClassVar[str] = "additive"
    title_format: ClassVar[str] = "Additive (t = {t:g})"
    search_range: ClassVar[Range] = {"t": (0.0, 1.0)}
    columns_read: ClassVar[Columns] = PROBABILITY_COLUMNS

    t: T

    def cut(self, _dist: TopK, /) -> Threshold:
        return Threshold(offset=-self.t, slope=1.0)


class Multiplicative(Rule):
    """Accept p > alpha p0 (Corollary 4.12)."""

    name: ClassVar[str] = "multiplicative"
    title_format: ClassVar[str] = "Mult. (α = {alpha:g})"
    search_range: ClassVar[Range] = {"alpha": (1.0, NEAR_0)}
    columns_read: ClassVar[Columns] = PROBABILITY_COLUMNS

    alpha: Alpha

    def cut(self, _dist: TopK, /) -> Threshold:
        return Threshold(offset=0.0, slope=self.alpha)


class TopMAdditive(Rule):
    """Accept the top m tokens with p > p0 - t (Corollary 4.14)."""

    name: ClassVar[str] = "topm_additive"
    title_format: ClassVar[str] = "Top-{m} + additive (t = {t:g})"
    search_range: ClassVar[Range] = {"t": (0.0, 1.0), "m": (10, 32)}
    columns_read: ClassVar[Columns] = PROBABILITY_COLUMNS

    m: M
    t: T

    @property
    def minimum_k(self) -> int:
        return self.m + 1  # the first rejected token included

    def cut(self, _dist: TopK, /) -> Threshold:
        return Threshold(max_rank=self.m, offset=-self.t, slope=1.0)


class TopMMultiplicative(Rule):
    """Accept the top m tokens with p > alpha p0 (Corollary 4.14)."""

    name: ClassVar[str] = "topm_multiplicative"
    title_format: ClassVar[str] = "Top-{m} + mult. (α = {alpha:g})"
    search_range: ClassVar[Range] = {"alpha": (1.0, NEAR_0), "m": (10, 32)}
    columns_read: ClassVar[Columns] = PROBABILITY_COLUMNS

    m: M
    alpha: Alpha

    @property
    def minimum_k(self) -> int:
        return self.m + 1  # the first rejected token included

    def cut(self, _dist: TopK, /) -> Threshold:
        return Threshold(max_rank=self.m, offset=0.0, slope=self.alpha)


class Typical(Rule):
    """Accept p > min(eps0, delta0 exp(-H)), H the target's entropy (Corollary 4.15)."""

    name: ClassVar[str] = "typical"
    title_format: ClassVar[str] = "Medusa (ε₀ = {eps0:g}, δ₀ = {delta0:g})"
    search_range: ClassVar[Range] = {"eps0": (1 - NEAR_0, NEAR_0), "delta0": (0.3, NEAR_0)}
    columns_read: ClassVar[Columns] = (*PROBABILITY_COLUMNS, "entropy")

    eps0: Positive
    delta0: Positive

    def cut(self, dist: TopK, /) -> Threshold:
        return Threshold(offset=np.minimum(self.eps0, self.delta0 * np.exp(-dist.entropy)))


class AbsoluteThreshold(Rule):
    """Accept p > theta."""

    name: ClassVar[str] = "absolute"
    title_format: ClassVar[str] = "Absolute (θ = {theta:g})"
    search_range: ClassVar[Range] = {"theta": (1 - NEAR_0, 0.0)}
    columns_read: ClassVar[Columns] = PROBABILITY_COLUMNS

    theta: Annotated[float, Field(ge=0, lt=1)]

    def cut(self, _dist: TopK, /) -> Threshold:
        return Threshold(offset=self.theta)


class Mars(Rule):
    """Accept x0, and rank 2 where z2 / z1 > theta on raw logits (MARS, arXiv 2601.15498).

    The ratio is undefined at z1 <= 0: only x0 is accepted there, see `undefined`.
    """

    name: ClassVar[str] = "mars"
    title_format: ClassVar[str] = "MARS (θ = {theta:g})"
    search_range: ClassVar[Range] = {"theta": (1 - NEAR_0, NEAR_0)}
    samples: ClassVar[bool] = True
    columns_read: ClassVar[Columns] = ()
    minimum_k: ClassVar[int] = 3  # rank 3 is the first rejected token where rank 2 is accepted
    undefined_means: ClassVar[str] = (
        "Steps whose largest raw logit is not positive, where MARS accepts the argmax only"
    )

    theta: Annotated[float, Field(gt=0, lt=1)]

    def accepted_count(self, dist: TopK, /) -> Counts:
        z = self._raw_logits(dist)[:, :2].astype(np.float64)
        if z.shape[1] < 2:
            return np.ones(len(dist), dtype=np.int32)
        ratio = np.divide(z[:, 1], z[:, 0], out=np.zeros(len(z)), where=z[:, 0] > 0)
        return np.where(ratio > self.theta, 2, 1).astype(np.int32)

    def undefined(self, dist: TopK, /) -> NDArray[np.bool_]:
        return np.asarray(self._raw_logits(dist)[:, 0] <= 0)

    def _raw_logits(self, dist: TopK) -> NDArray[np.floating[Any]]:
        if dist.logits is None:
            raise RuleError(
                f"rule {self.label!r} compares raw logits, and this distribution has "
                "only probabilities: build it with TopK.from_logits"
            )
        return dist.logits


class Tree(Rule):
    """Accept a level of a tree iff x0 is among the drafter's top m tokens (Theorem 5.1)."""

    name: ClassVar[str] = "tree"
    title_format: ClassVar[str] = "Tree (m = {m})"
    search_range: ClassVar[Range] = {"m": (1, 32)}
    judges_tokens: ClassVar[bool] = False

    m: M

    @property
    def ceiling(self) -> float:
        return math.log(self.m + 1)  # Theorem 5.3

    @property
    def minimum_k(self) -> int:
        return self.m + 1  # x0 and the m tokens that can displace it

    def accepted_count(self, dist: TopK, /) -> Counts:
        return np.full(len(dist), NO_COUNT, dtype=np.int32)

    def accepts(self, dist, rank, log_prob, argmax_rank=None, count=None):  # type: ignore[no-untyped-def]
        """Return (N,) whether x0 is among the drafter's top m tokens."""
        if argmax_rank is None:
            raise RuleError(
                f"rule {self.label!r} judges a level of a tree: the rank of the target's argmax "
                "under the drafter is needed (argmax_rank)"
            )
        return np.asarray(argmax_rank <= self.m)


BUILT_IN: dict[str, type[Rule]] = {kind.name: kind for kind in Rule.__subclasses__()}

"""The acceptance rules for single tokens, and the rule for a level of a draft tree.

Definitions: docs/method.md. x0 is the target's argmax (rank 1), p0 its probability; x0 is always
accepted. Comparisons are strict, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from .rule import NO_COUNT, Counts, Cut, Rule

if TYPE_CHECKING:
    from ..topk import Floats, TopK


PROBABILITIES = ("top_surprisal",)  # the column that turns raw logits into probabilities
LEAST = 1e-4  # the end of a range that excludes 0
T = Annotated[float, Field(ge=0, le=1)]
Alpha = Annotated[float, Field(gt=0, le=1)]
M = Annotated[int, Field(ge=1, lt=1 << 31)]
Positive = Annotated[float, Field(gt=0)]
Convention = Literal["rank", "paper"]


class StrictGreedy(Rule):
    """Accept x0 only (Corollary 4.7)."""

    name: ClassVar[str] = "greedy"
    shown: ClassVar[str] = "Strict greedy"

    @property
    def minimum_k(self) -> int:
        """2: x0 and the first rejected token."""
        return 2

    def cut(self, _dist: TopK, /) -> Cut:
        """Return the limit to rank 1."""
        return Cut(max_rank=1)


class Additive(Rule):
    """Accept p > p0 - t (Corollary 4.10)."""

    name: ClassVar[str] = "additive"
    shown: ClassVar[str] = "Additive (t = {t:g})"
    relaxes: ClassVar[Mapping[str, int]] = {"t": 1}
    strict: ClassVar[Mapping[str, Any]] = {"t": 0.0}
    relaxed: ClassVar[Mapping[str, float]] = {"t": 1.0}
    decided_by: ClassVar[tuple[str, ...]] = PROBABILITIES

    t: T

    def cut(self, _dist: TopK, /) -> Cut:
        """Return p > p0 - t."""
        return Cut(offset=-self.t, slope=1.0)


class Multiplicative(Rule):
    """Accept p > alpha p0 (Corollary 4.12)."""

    name: ClassVar[str] = "multiplicative"
    shown: ClassVar[str] = "Mult. (α = {alpha:g})"
    relaxes: ClassVar[Mapping[str, int]] = {"alpha": -1}
    strict: ClassVar[Mapping[str, Any]] = {"alpha": 1.0}
    relaxed: ClassVar[Mapping[str, float]] = {"alpha": LEAST}
    decided_by: ClassVar[tuple[str, ...]] = PROBABILITIES

    alpha: Alpha

    def cut(self, _dist: TopK, /) -> Cut:
        """Return p > alpha p0."""
        return Cut(offset=0.0, slope=self.alpha)


class _TopM:
    """A further test among the top m tokens.

    `convention: rank` accepts ranks up to m. `convention: paper` reads Corollary 4.14 literally:
    p must exceed the p of rank m, which accepts at most m - 1 tokens.
    """

    m: int
    convention: str

    @property
    def title(self) -> str:
        """The printed name, which marks the literal gate."""
        title: str = super().title  # type: ignore[misc]
        return f"{title}, literal gate" if self.convention == "paper" else title

    @property
    def minimum_k(self) -> int:
        """The first rejected token has rank at most m + 1, or max(m, 2) by the paper's gate."""
        return self.m + 1 if self.convention == "rank" else max(2, self.m)

    def _cut(self, offset: float, slope: float) -> Cut:
        if self.convention == "paper":
            return Cut(offset=offset, slope=slope, strictly_above_rank=self.m)
        return Cut(max_rank=self.m, offset=offset, slope=slope)


class TopMAdditive(_TopM, Rule):
    """Accept the top m tokens with p > p0 - t (Corollary 4.14)."""

    name: ClassVar[str] = "topm_additive"
    shown: ClassVar[str] = "Top-{m} + additive (t = {t:g})"
    relaxes: ClassVar[Mapping[str, int]] = {"m": 1, "t": 1}
    strict: ClassVar[Mapping[str, Any]] = {"m": 10, "t": 0.0}
    relaxed: ClassVar[Mapping[str, float]] = {"t": 1.0}
    decided_by: ClassVar[tuple[str, ...]] = PROBABILITIES

    m: M
    t: T
    convention: Convention = "rank"

    def cut(self, _dist: TopK, /) -> Cut:
        """Return p > p0 - t, up to rank m."""
        return self._cut(-self.t, 1.0)


class TopMMultiplicative(_TopM, Rule):
    """Accept the top m tokens with p > alpha p0 (Corollary 4.14)."""

    name: ClassVar[str] = "topm_multiplicative"
    shown: ClassVar[str] = "Top-{m} + mult. (α = {alpha:g})"
    relaxes: ClassVar[Mapping[str, int]] = {"m": 1, "alpha": -1}
    strict: ClassVar[Mapping[str, Any]] = {"m": 10, "alpha": 1.0}
    relaxed: ClassVar[Mapping[str, float]] = {"alpha": LEAST}
    decided_by: ClassVar[tuple[str, ...]] = PROBABILITIES

    m: M
    alpha: Alpha
    convention: Convention = "rank"

    def cut(self, _dist: TopK, /) -> Cut:
        """Return p > alpha p0, up to rank m."""
        return self._cut(0.0, self.alpha)


class Typical(Rule):
    """Accept p > min(eps0, delta0 exp(-H)), H the target's entropy (Corollary 4.15)."""

    name: ClassVar[str] = "typical"
    shown: ClassVar[str] = "Medusa (ε₀ = {eps0:g}, δ₀ = {delta0:g})"
    relaxes: ClassVar[Mapping[str, int]] = {"eps0": -1, "delta0": -1}
    strict: ClassVar[Mapping[str, Any]] = {"eps0": 1 - LEAST, "delta0": 0.3}
    relaxed: ClassVar[Mapping[str, float]] = {"eps0": LEAST}
    decided_by: ClassVar[tuple[str, ...]] = (*PROBABILITIES, "entropy")

    eps0: Positive
    delta0: Positive

    def cut(self, dist: TopK, /) -> Cut:
        """Return p > min(eps0, delta0 exp(-H))."""
        return Cut(offset=np.minimum(self.eps0, self.delta0 * np.exp(-dist.entropy)))


class AbsoluteThreshold(Rule):
    """Accept p > theta."""

    name: ClassVar[str] = "absolute"
    shown: ClassVar[str] = "Absolute (θ = {theta:g})"
    relaxes: ClassVar[Mapping[str, int]] = {"theta": -1}
    strict: ClassVar[Mapping[str, Any]] = {"theta": 1 - LEAST}
    relaxed: ClassVar[Mapping[str, float]] = {"theta": 0.0}
    decided_by: ClassVar[tuple[str, ...]] = PROBABILITIES

    theta: Annotated[float, Field(ge=0, lt=1)]

    def cut(self, _dist: TopK, /) -> Cut:
        """Return p > theta."""
        return Cut(offset=self.theta)


class Mars(Rule):
    """Accept x0, and rank 2 where z2 / z1 > theta on raw logits (MARS, arXiv 2601.15498).

    The ratio is undefined at z1 <= 0: only x0 is accepted there, see `undefined`.
    """

    name: ClassVar[str] = "mars"
    shown: ClassVar[str] = "MARS (θ = {theta:g})"
    relaxes: ClassVar[Mapping[str, int]] = {"theta": -1}
    strict: ClassVar[Mapping[str, Any]] = {"theta": 1 - LEAST}
    relaxed: ClassVar[Mapping[str, float]] = {"theta": LEAST}
    samples: ClassVar[bool] = True
    decided_by: ClassVar[tuple[str, ...]] = ()
    undefined_means: ClassVar[str] = (
        "Steps whose largest raw logit is not positive, where MARS accepts the argmax only"
    )

    theta: Annotated[float, Field(gt=0, lt=1)]

    @property
    def minimum_k(self) -> int:
        """3: rank 3 is the first rejected token where rank 2 is accepted."""
        return 3

    def accepted_count(self, dist: TopK, /) -> Counts:
        """Return 2 where z1 > 0 and z2 / z1 > theta, else 1.

        Raises:
            ValueError: the raw logits are not known.
        """
        z = self._raw_logits(dist)[:, :2].astype(np.float64)
        if z.shape[1] < 2:
            return np.ones(len(dist), dtype=np.int32)
        ratio = np.divide(z[:, 1], z[:, 0], out=np.zeros(len(z)), where=z[:, 0] > 0)
        return np.where(ratio > self.theta, 2, 1).astype(np.int32)

    def undefined(self, dist: TopK, /) -> NDArray[np.bool_]:
        """Return (N,) whether z1 <= 0; raises as `accepted_count` does."""
        return np.asarray(self._raw_logits(dist)[:, 0] <= 0)

    def _raw_logits(self, dist: TopK) -> NDArray[np.floating[Any]]:
        if dist.logits is None:
            raise ValueError(
                f"rule {self.label!r} compares raw logits, and this distribution has "
                "only probabilities: build it with TopK.from_logits"
            )
        return dist.logits


class Tree(Rule):
    """Accept a level of a tree iff x0 is among the drafter's top m tokens (Theorem 5.1)."""

    name: ClassVar[str] = "tree"
    shown: ClassVar[str] = "Tree (m = {m})"
    relaxes: ClassVar[Mapping[str, int]] = {"m": 1}
    strict: ClassVar[Mapping[str, Any]] = {"m": 1}
    relaxed: ClassVar[Mapping[str, float]] = {"m": 32}
    judges_tokens: ClassVar[bool] = False

    m: M

    @property
    def ceiling(self) -> float:
        """log(m + 1), Theorem 5.3."""
        return math.log(self.m + 1)

    @property
    def minimum_k(self) -> int:
        """M + 1: x0 and the m tokens that can displace it."""
        return self.m + 1

    def accepted_count(self, dist: TopK, /) -> Counts:
        """Return NO_COUNT at every step: acceptance does not depend on target ranks."""
        return np.full(len(dist), NO_COUNT, dtype=np.int32)

    def accepts(
        self,
        dist: TopK,
        rank: NDArray[np.integer[Any]],
        log_prob: Floats,
        argmax_rank: NDArray[np.integer[Any]] | None = None,
        count: Counts | None = None,
    ) -> NDArray[np.bool_]:
        """Return (N,) whether x0 is among the drafter's top m tokens.

        Raises:
            ValueError: the rank of x0 under the drafter is not known.
        """
        if argmax_rank is None:
            raise ValueError(
                f"rule {self.label!r} judges a level of a tree: the rank of the target's argmax "
                "under the drafter is needed (argmax_rank)"
            )
        return np.asarray(argmax_rank <= self.m)


class FirstRanks(Rule):
    """Accept the n most probable tokens, whatever their probabilities; the certificate is M(n + 1).

    Not available in the configuration. `topm_additive` with t = 1 differs at tokens of
    probability 0.
    """

    n: M

    def cut(self, _dist: TopK, /) -> Cut:
        """Return the limit on ranks."""
        return Cut(max_rank=self.n)


BUILT_IN: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        StrictGreedy,
        Additive,
        Multiplicative,
        TopMAdditive,
        TopMMultiplicative,
        Typical,
        AbsoluteThreshold,
        Mars,
        Tree,
    )
}

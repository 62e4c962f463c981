"""The divergences in which certificates are computed; docs/method.md has the proofs.

Each is least at a draft that is constant on the active tokens A and proportional to p elsewhere.
They differ in the mean M of A, a power mean of some order a, which decides the members of A. With
Z = 1 - p(A) + |A| M,

| name | distance of target p and draft q | certificate | M |
|---|---|---|---|
| kl | KL(p || q) | sum over A of p log(p / M) | arithmetic |
| renyi:a | log(sum p^a q^(1-a)) / (a - 1), a > 0 | -log(Z) a / (1 - a) | of order a |
| reverse_kl | KL(q || p) | -log Z | geometric (order 0) |
| hellinger | 1 - sum sqrt(p q), the squared distance | 1 - sqrt Z | of order 1/2 |
| tv | total variation | abs(M - p(x)), x the token made a mode; of a tree x0 | arithmetic |

Jensen-Shannon has no closed form of this kind and is not available.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..rules.rule import Rule
from ..topk import Floats
from .bounds import phi
from .kernel import gap
from .kernel_types import HELLINGER, KL, RENYI, TV, elementwise

LARGEST = 1e6  # order; beyond it only the rounding changes
# p / p0 - 1 and log(p / p0) of tokens: near-ties need the first, small p the second
Ratios = tuple[Floats, Floats]
NAMED = {
    "kl": (KL, 1.0),
    "tv": (TV, 1.0),
    "hellinger": (HELLINGER, 0.5),
    "reverse_kl": (RENYI, 0.0),
}

gaps = elementwise(gap)


def ratios(p: Floats, p0: Floats) -> Ratios:
    """Return p / p0 - 1 and log(p / p0), both to full accuracy."""
    e = (p - p0) / p0
    with np.errstate(divide="ignore"):
        return e, np.where(e > -0.5, np.log1p(np.maximum(e, -0.5)), np.log(p / p0))


@dataclass(frozen=True)
class Divergence:
    """A divergence: its kind in the kernel, and the order a of its power mean."""

    kind: int
    order: float

    ALLOWED: ClassVar[str] = f"{', '.join(NAMED)} or renyi:a with a number a in (0, {LARGEST:g}]"

    @classmethod
    def named(cls, name: str) -> Divergence:
        """Return the divergence of a name: kl, tv, hellinger, reverse_kl, or renyi:0.5.

        Raises:
            ValueError: the name is unknown, or its order is out of range.
        """
        if isinstance(name, str) and name in NAMED:
            return cls(*NAMED[name])
        head, _, text = name.partition(":") if isinstance(name, str) else ("", "", "")
        try:
            order = float(text) if head == "renyi" else math.nan
        except ValueError:
            order = math.nan
        if not 0.0 < order <= LARGEST:
            raise ValueError(f"divergence={name!r} is not allowed: give {cls.ALLOWED}")
        return cls(KL, 1.0) if order == 1.0 else cls(RENYI, order)

    @property
    def label(self) -> str:
        """The shortest name from which `named` builds this divergence.

        Examples:
            >>> Divergence.named("renyi:0.50").label, Divergence.named("renyi:1").label
            ('renyi:0.5', 'kl')
        """
        names = {kind: name for name, kind in NAMED.items()}
        short = f"{self.order:g}"
        order = short if float(short) == self.order else repr(self.order)
        return names.get((self.kind, self.order), f"renyi:{order}")

    def ceiling_of(self, rule: Rule) -> float:
        """Return the ceiling of a rule, whose own `ceiling` is that of KL, log(width + 1)."""
        if self.kind == KL:
            return rule.ceiling
        return self.ceiling(round(math.expm1(rule.ceiling)))

    def ceiling(self, width: int = 1) -> float:
        """Return the largest finite certificate; `width` is m of a tree.

        Examples:
            >>> Divergence.named("tv").ceiling(), Divergence.named("renyi:2").ceiling(3)
            (0.5, 1.3862943611198906)
        """
        if self.kind == TV:
            return width / (width + 1)
        if self.kind == HELLINGER:
            return 1.0 - 1.0 / math.sqrt(width + 1)
        return math.log(width + 1) if self.order > 0 else math.inf

    def least(
        self,
        p0: Floats,
        others: Ratios,
        token: Ratios,
        times: Floats | None = None,
        widen: float = 0.0,
        excess: float = 0.0,
    ) -> tuple[Floats, NDArray[np.int32]]:
        """Return the least divergence that makes a token a mode of q, and |A|, each (N,).

        Args:
            p0: (N,), probability of rank 1.
            others: ratios of the J other tokens, by decreasing p, (N, J).
            token: ratios of the token, (N,); at most those of every other active token.
            times: (N, J), multiplicity of each other token; 1 if not given.
            widen: relative amount by which the mass that A gives up, and so the divergence, is
                increased.
            excess: relative amount by which the probabilities, and so the level, may be too large.
        """
        times = np.ones_like(others[0]) if times is None else times
        x, x_token = self._level_in(others), self._level_in(token)
        with np.errstate(invalid="ignore"):
            sums = np.cumsum(np.where(times > 0, times * x, 0.0), axis=1)
            means = (x_token[:, None] + sums) / (1.0 + np.cumsum(times, axis=1))
            # p falls and the level with it: once p is not above, it stays so
            above = np.column_stack([np.ones(len(x), dtype=bool), x[:, 1:] > means[:, :-1]])
        above = np.logical_and.accumulate(above, axis=1)
        last = above.sum(axis=1) - 1
        mean = np.take_along_axis(means, last[:, None], axis=1)[:, 0]
        width = int(last.max(initial=0)) + 1
        weight = np.where(above, times, 0.0)[:, :width]
        active = others[0][:, :width], others[1][:, :width]
        value = p0 * self._given_up(active, weight, token, mean) * (1.0 + widen)
        size = weight.sum(axis=1) + 1.0
        least = p0 * size * self._level(mean) * (1.0 - widen - excess)
        return self._distance(value, least), size.astype(np.int32)

    def _level_in(self, tokens: Ratios) -> Floats:
        """Return x, whose arithmetic mean over A gives the level: e, w^a - 1 or log w."""
        e, log_w = tokens
        if self.kind in (KL, TV):
            return e
        return np.expm1(self.order * log_w) if self.order > 0 else log_w

    def _level(self, mean: Floats) -> Floats:
        """Return the power mean of w from the mean of x."""
        return np.exp(np.log1p(mean) / self.order) if self.order > 0 else np.exp(mean)

    def _given_up(self, others: Ratios, weight: Floats, token: Ratios, mean: Floats) -> Floats:
        """Return the divergence for KL and TV, else (p(A) - |A| M) sign(1 - a), in units of p0."""
        if self.kind == TV:
            return mean - token[0]
        if self.kind == KL:
            terms = weight * phi((others[0] - mean[:, None]) / (1.0 + mean[:, None]))
            own = phi((token[0] - mean) / (1.0 + mean))
            return np.asarray((1.0 + mean) * (terms.sum(axis=1) + own))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            level = np.log1p(mean) / self.order if self.order > 0 else mean
            terms = weight * gaps(self.order, others[1] - level[:, None])
            total = np.where(weight > 0, terms, 0.0).sum(axis=1)
            total += gaps(self.order, token[1] - level)
            return np.where(np.isneginf(level), np.inf, np.exp(level) * total)

    def _distance(self, value: Floats, least: Floats) -> Floats:
        """Return the divergence from `_given_up`; Z is at least |A| M."""
        if self.kind in (KL, TV):
            return value
        with np.errstate(divide="ignore"):
            lost = (1.0 - self.order) * value  # 1 - Z
            log_z = np.where(
                lost < 0.5, np.log1p(-np.minimum(lost, 0.5)), np.log(np.maximum(1.0 - lost, least))
            )
        distance = -log_z / (1.0 - self.order) * (self.order if self.order > 0 else 1.0)
        return -np.expm1(-0.5 * distance) if self.kind == HELLINGER else distance

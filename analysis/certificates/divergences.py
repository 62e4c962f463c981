"""The divergences that certificates are computed in; docs/method.md has the proofs.

All are least at a draft that levels the active tokens A and keeps the others in proportion. They
differ in the mean M of A that decides who is in A, the power mean of some order a. With
Z = 1 - p(A) + |A| M,

| name | distance of target p and draft q | certificate | M |
|---|---|---|---|
| kl | KL(p || q) | sum over A of p log(p / M) | arithmetic |
| renyi:a | log(sum p^a q^(1-a)) / (a - 1), a > 0 | -log(Z) a / (1 - a) | of order a |
| reverse_kl | KL(q || p) | -log Z | geometric (order 0) |
| hellinger | 1 - sum sqrt(p q), the squared distance | 1 - sqrt Z | of order 1/2 |
| tv | total variation | abs(M - p(x)), x the token made a mode; of a tree x0 | arithmetic |

Jensen-Shannon has no closed form of this kind, and is left out.
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

LARGEST = 1e6  # order; beyond it nothing changes but the rounding
# Of tokens p / p0 - 1 and log(p / p0): near-ties need the first, small p the second
Ratios = tuple[Floats, Floats]
NAMED = {
    "kl": (KL, 1.0),
    "tv": (TV, 1.0),
    "hellinger": (HELLINGER, 0.5),
    "reverse_kl": (RENYI, 0.0),
}

gaps = elementwise(gap)


def ratios(p: Floats, p0: Floats) -> Ratios:
    """Return p / p0 - 1 and log(p / p0), neither of which loses digits of the quotient."""
    e = (p - p0) / p0
    with np.errstate(divide="ignore"):
        return e, np.where(e > -0.5, np.log1p(np.maximum(e, -0.5)), np.log(p / p0))


@dataclass(frozen=True)
class Divergence:
    """A divergence: its kind, as the kernel knows it, and the order a of its power mean."""

    kind: int
    order: float

    ALLOWED: ClassVar[str] = f"{', '.join(NAMED)} or renyi:a with a number a in (0, {LARGEST:g}]"

    @classmethod
    def named(cls, name: str) -> Divergence:
        """Find a divergence by its name: kl, tv, hellinger, reverse_kl, or renyi:0.5.

        Raises:
            ValueError: there is none of that name.
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
        """The name by which `named` finds it, the shortest of several.

        Examples:
            >>> Divergence.named("renyi:0.50").label, Divergence.named("renyi:1").label
            ('renyi:0.5', 'kl')
        """
        names = {kind: name for name, kind in NAMED.items()}
        short = f"{self.order:g}"
        order = short if float(short) == self.order else repr(self.order)
        return names.get((self.kind, self.order), f"renyi:{order}")

    def ceiling_of(self, rule: Rule) -> float:
        """Return the same for a rule, whose ceiling in nats is that of KL, log(width + 1)."""
        if self.kind == KL:
            return rule.ceiling
        return self.ceiling(round(math.expm1(rule.ceiling)))

    def ceiling(self, width: int = 1) -> float:
        """Return the largest certificate with something to reject; `width` is m of a tree.

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
            p0: (N,), of rank 1.
            others: of the J other tokens, by decreasing p, (N, J).
            token: of the token, (N,); it is at most every other that counts.
            times: (N, J), how many tokens there are of each other; one if not given.
            widen: the share by which what A gives up, and so the divergence, is taken larger.
            excess: the share by which the probabilities, and so the level, may be too large.
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
        """Return the x whose arithmetic mean over A is the level's: e, w^a - 1 or log w."""
        e, log_w = tokens
        if self.kind in (KL, TV):
            return e
        return np.expm1(self.order * log_w) if self.order > 0 else log_w

    def _level(self, mean: Floats) -> Floats:
        """Return the power mean of w from the mean of x."""
        return np.exp(np.log1p(mean) / self.order) if self.order > 0 else np.exp(mean)

    def _given_up(self, others: Ratios, weight: Floats, token: Ratios, mean: Floats) -> Floats:
        """Return the distance for KL and TV, else (p(A) - |A| M) sign(1 - a), in units of p0."""
        if self.kind == TV:
            return mean - token[0]
        if self.kind == KL:
            terms = weight * phi((others[0] - mean[:, None]) / (1.0 + mean[:, None]))
            one = phi((token[0] - mean) / (1.0 + mean))
            return np.asarray((1.0 + mean) * (terms.sum(axis=1) + one))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            level = np.log1p(mean) / self.order if self.order > 0 else mean
            terms = weight * gaps(self.order, others[1] - level[:, None])
            total = np.where(weight > 0, terms, 0.0).sum(axis=1)
            total += gaps(self.order, token[1] - level)
            return np.where(np.isneginf(level), np.inf, np.exp(level) * total)

    def _distance(self, value: Floats, least: Floats) -> Floats:
        """Return the distance, Z being at least |A| M."""
        if self.kind in (KL, TV):
            return value
        with np.errstate(divide="ignore"):
            lost = (1.0 - self.order) * value  # 1 - Z
            log_z = np.where(
                lost < 0.5, np.log1p(-np.minimum(lost, 0.5)), np.log(np.maximum(1.0 - lost, least))
            )
        distance = -log_z / (1.0 - self.order) * (self.order if self.order > 0 else 1.0)
        return -np.expm1(-0.5 * distance) if self.kind == HELLINGER else distance

"""Base class of the acceptance rules.

A token rule accepts, at each step, the n most probable target tokens, n >= 1. A subclass defines n
by one of two methods:

- `cut(dist)`: a probability threshold and a largest rank. The count, the certificate and its
  interval under truncation follow from them;
- `accepted_count(dist)`: the count itself, for a rule that is not a threshold.

Its printed name, the direction in which each parameter relaxes it and its test of a draft have
defaults, so a user's own rule is shown, swept and decoded like the built-in ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

import numpy as np
import pydantic
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ..topk import Floats, TopK

Counts = NDArray[np.int32]
CHECKED = pydantic.ConfigDict(
    strict=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True
)
UNKNOWN = -1  # accepted count: more than the stored tokens, the number is unknown
NO_COUNT = 0  # accepted count: the rule does not depend on ranks (a tree)


@dataclass(frozen=True, eq=False)
class Cut:
    """A token is accepted iff it is x0, or its rank is <= max_rank and p > offset + slope p0.

    Attributes:
        max_rank: an integer or (N,) integers; None means every rank.
        offset: a number or (N,) numbers.
        slope: a finite number.
        strictly_above_rank: when positive, p must also exceed the p of this rank.
    """

    max_rank: int | NDArray[np.integer[Any]] | None = None
    offset: float | Floats = -math.inf
    slope: float = 0.0
    strictly_above_rank: int = 0

    def fault(self, steps: int) -> str:
        """Return the first invalid attribute for this number of steps as an error; "" if none."""
        ranks = np.asarray(1 if self.max_rank is None else self.max_rank)
        gate, offset, slope = map(np.asarray, (self.strictly_above_rank, self.offset, self.slope))
        one_each = "an integer of at least 1, or one a step"
        if ranks.dtype.kind not in "iu" or ranks.shape not in ((), (steps,)) or np.any(ranks < 1):
            return f"max_rank={self.max_rank!r}: give None (every rank), {one_each}"
        if offset.dtype.kind not in "fiu" or offset.shape not in ((), (steps,)):
            return f"offset={self.offset!r}: give a number, or one a step"
        if np.isnan(offset).any():
            return "offset is not a number (nan): give numbers, -inf to accept every token"
        if slope.dtype.kind not in "fiu" or slope.shape or not np.isfinite(slope):
            return f"slope={self.slope!r}: give a finite number"
        if gate.dtype.kind not in "iu" or gate.shape or gate < 0:
            return f"strictly_above_rank={self.strictly_above_rank!r}: give a rank, or 0 for none"
        return ""

    def threshold(self, dist: TopK) -> Floats:
        """Return the (N,) probability that a token must exceed, the limit on ranks aside."""
        theta = np.asarray(self.offset + self.slope * dist.top_probability, dtype=np.float64)
        if 0 < self.strictly_above_rank <= dist.vocab_size:
            theta = np.maximum(theta, dist.probs[:, self.strictly_above_rank - 1])
        return np.broadcast_to(theta, len(dist))

    def count(self, dist: TopK) -> Counts:
        """Return the (N,) accepted counts; UNKNOWN where all stored tokens pass and more might."""
        most = dist.vocab_size if self.max_rank is None else self.max_rank
        passing = dist.probs > self.threshold(dist)[:, None]
        passing[:, 0] = True
        passed = np.logical_and.accumulate(passing, axis=1).sum(axis=1)
        open_ = (passed == dist.k) & (dist.k < np.minimum(most, dist.vocab_size))
        return np.where(open_, UNKNOWN, np.minimum(passed, most)).astype(np.int32)


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Rule:
    """An acceptance rule. Every subclass is a frozen dataclass; its fields are its parameters.

    Types are checked strictly, and ranges where the type has one:
    ``t: Annotated[float, pydantic.Field(ge=0, le=1)]``.

    Attributes:
        name: of a built-in rule, its key in configuration; of any other, its class.
        shown: the printed name, a format string of the parameters; empty prints the label.
        relaxes: the direction, 1 or -1, in which each parameter relaxes the rule. The values of
            other parameters may be swept in any order.
        strict: the parameters from which `solve` begins to look for a setting.
        relaxed: the parameter that it looks for, with its most relaxed value.
        judges_tokens: whether each drafted token is judged by itself; a tree's level is not.
        samples: whether decoding with it is defined above temperature 0.
        decided_by: the columns of a distribution that the rule reads besides its `minimum_k` most
            probable tokens. Decoding computes only these and fills the others with NaN. A rule
            that declares fewer than all must count every token that it reads in `minimum_k`.
        undefined_means: the description of the steps of `undefined`, for print.
    """

    name: ClassVar[str] = ""
    shown: ClassVar[str] = ""
    relaxes: ClassVar[Mapping[str, int]] = {}
    strict: ClassVar[Mapping[str, Any]] = {}
    relaxed: ClassVar[Mapping[str, float]] = {}
    judges_tokens: ClassVar[bool] = True
    samples: ClassVar[bool] = False
    decided_by: ClassVar[tuple[str, ...]] = ("top_surprisal", "log_tail", "entropy")
    undefined_means: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        """Make a subclass a dataclass with checked fields.

        One that overrides its test without declaring `decided_by` sees all columns.
        """
        super().__init_subclass__(**options)
        if {"cut", "accepted_count"} & vars(cls).keys() and "decided_by" not in vars(cls):
            cls.decided_by = Rule.decided_by
        if "name" not in vars(cls):
            cls.name = cls.__name__
        pydantic.dataclasses.dataclass(frozen=True, config=CHECKED)(cls)

    @property
    def own(self) -> bool:
        """Whether a user's module defines the rule; such a rule is shown in every table."""
        return not type(self).__module__.startswith(f"{__name__.rpartition('.')[0]}.")

    @property
    def parameters(self) -> dict[str, Any]:
        """The rule's parameters, by name."""
        return {spec.name: getattr(self, spec.name) for spec in fields(self)}

    @property
    def label(self) -> str:
        """The identifier of the rule in artifacts and data files, e.g. "additive t=0.1"."""
        shown = [(spec.name, getattr(self, spec.name), spec.default) for spec in fields(self)]
        settings = [
            f"{key}={_short(value)}"
            for key, value, default in shown
            if not isinstance(value, str) or value != default
        ]
        return " ".join([self.name, *settings])

    @property
    def title(self) -> str:
        """The printed name in tables and figures, e.g. "Additive (t = 0.1)"."""
        return self.shown.format(**self.parameters) if self.shown else self.label

    @property
    def ceiling(self) -> float:
        """The largest value a finite certificate can have, in nats: log 2 (Theorem 4.6)."""
        return math.log(2.0)

    @property
    def minimum_k(self) -> int:
        """The least number of stored tokens with which the rule can be applied."""
        return 1

    def cut(self, _dist: TopK, /) -> Cut | None:
        """Return the rule as a threshold, or None if it is not one."""
        return None

    def accepted_count(self, dist: TopK, /) -> Counts:
        """Return the accepted count, n, of each step.

        Returns:
            (N,) int32, at least 1. UNKNOWN where more than the K stored tokens are accepted, in
            unknown number. NO_COUNT for a rule that does not depend on ranks. For a rule with a
            cut this uses the stored tokens alone; `certify` also bounds the tail.

        Raises:
            ValueError: the class has neither this method nor `cut`.
        """
        return self._given_cut(dist).count(dist)

    def answer(self, method: str, dist: TopK) -> Any:
        """Return what `cut` or `accepted_count` says of steps.

        Raises:
            ValueError: the method of a user's rule failed; names the rule and the method.
        """
        try:
            return getattr(self, method)(dist)
        except Exception as error:
            if not self.own or (isinstance(error, ValueError) and self.label in str(error)):
                raise
            said = " ".join(str(error).split())
            raise ValueError(
                f"rule {self.label!r}: {method}(dist) raised {type(error).__name__}: {said}"
            ) from error

    def form(self, dist: TopK, /) -> Cut | Counts:
        """Return the acceptance test in the form that certificates need: a cut or (N,) counts.

        Raises:
            ValueError: the class defines neither, or its numbers are impossible.
        """
        if type(self).accepted_count is Rule.accepted_count:
            return self._given_cut(dist)
        counts, size = np.asarray(self.answer("accepted_count", dist)), dist.vocab_size
        right = counts.dtype.kind in "iu" and counts.shape == (len(dist),)
        if right and self.judges_tokens:
            unknown = (counts == UNKNOWN) & (dist.k < size)
            right = bool(np.all(((counts >= 1) | unknown) & (counts <= size)))
        if not right:
            raise ValueError(
                f"rule {self.label!r}: accepted_count must give one integer a step, in "
                f"[1, {size}], or {UNKNOWN} where more than the stored tokens are accepted"
            )
        return counts

    def _given_cut(self, dist: TopK) -> Cut:
        cut: Cut | None = self.answer("cut", dist)
        if cut is None:
            raise ValueError(
                f"rule {self.label!r} has no test: give its class a method cut(dist) "
                "or accepted_count(dist)"
            )
        fault = cut.fault(len(dist)) if isinstance(cut, Cut) else f"{cut!r:.80}: give a Cut"
        if fault:
            raise ValueError(f"rule {self.label!r}: cut(dist) returned {fault}")
        return cut

    def undefined(self, dist: TopK, /) -> NDArray[np.bool_]:
        """Return (N,) whether the rule's test is undefined at a step; nowhere by default."""
        return np.zeros(len(dist), dtype=np.bool_)

    def accepts(
        self,
        dist: TopK,
        rank: NDArray[np.integer[Any]],
        log_prob: Floats,
        argmax_rank: NDArray[np.integer[Any]] | None = None,
        count: Counts | None = None,
    ) -> NDArray[np.bool_]:
        """Return (N,) whether the drafted tokens are accepted.

        Args:
            dist: N steps of the target.
            rank: (N,) target rank of the drafted token, from 1.
            log_prob: (N,) its target log-probability.
            argmax_rank: (N,) rank of x0 under the drafter, from 1; trees need it.
            count: the accepted counts, if `certify` has computed them already.

        Raises:
            ValueError: the count is unknown, the token is not among the stored ones, and the
                rule has no threshold for its probability.
        """
        count = self.answer("accepted_count", dist) if count is None else count
        accepted = np.asarray(rank <= np.where(count < 0, dist.k, count))
        open_ = (count < 0) & (rank > dist.k)
        if np.any(open_):
            cut = self.answer("cut", dist)
            if cut is None:
                raise ValueError(
                    f"rule {self.label!r} gave the count {UNKNOWN} for a step whose drafted token "
                    f"has rank {int(np.max(rank[open_]))}, beyond the K={dist.k} stored "
                    "tokens: store more (distributions.k), or give the rule a method cut(dist)"
                )
            accepted[open_] = (np.exp(log_prob) > cut.threshold(dist))[open_]
        return accepted


def _short(value: Any) -> str:
    """Return the shortest text from which a number can be read back exactly."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)

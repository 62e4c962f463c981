"""What an acceptance rule is: the base class of every rule, and the registry of their names.

A rule accepts, at each step, the n most probable target tokens, n >= 1. A subclass says which n
by one of two methods:

- `cut(dist)`: a probability threshold and a largest rank, from which the count, the certificate
  and its interval under truncation all follow;
- `accepted_count(dist)`: the count itself, for a rule that is no threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from analysis.topk import Floats, TopK

Counts = NDArray[np.int32]
REGISTRY: dict[str, type[Rule]] = {}
_SCALARS: dict[Any, type] = {
    "int": int,
    "float": float,
    "str": str,
    int: int,
    float: float,
    str: str,
}


@dataclass(frozen=True, eq=False)
class Cut:
    """A token is accepted iff it is x0, or its rank is <= max_rank and p > offset + slope p0.

    Attributes:
        max_rank: an integer or (N,) integers; None means every rank.
        offset: a number or (N,) numbers.
        slope: a number.
        strictly_above_rank: when positive, p must also exceed the p of this rank.
    """

    max_rank: int | NDArray[np.integer[Any]] | None = None
    offset: float | Floats = -math.inf
    slope: float = 0.0
    strictly_above_rank: int = 0

    def threshold(self, dist: TopK) -> Floats:
        """Return the (N,) probability a token must exceed, without the limit on ranks."""
        theta = np.asarray(self.offset + self.slope * dist.top_probability, dtype=np.float64)
        if 0 < self.strictly_above_rank <= dist.vocab_size:
            theta = np.maximum(theta, dist.probs[:, self.strictly_above_rank - 1])
        return np.broadcast_to(theta, len(dist))


@dataclass(frozen=True)
class Rule:
    """An acceptance rule: a frozen dataclass whose fields are its parameters.

    Attributes:
        name: the key `rule` of its configuration, set by `register`.
    """

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Check types and ranges of the parameters.

        Raises:
            ValueError: names the rule, the key, the value and what is allowed.
        """
        for spec in fields(self):
            value = getattr(self, spec.name)
            object.__setattr__(self, spec.name, _typed(self.name, spec, value))

    @property
    def own(self) -> bool:
        """Whether a user's module defines the rule: it is shown wherever a rule can be."""
        return not type(self).__module__.startswith("analysis.")

    @property
    def parameters(self) -> dict[str, Any]:
        """The rule's parameters, by name."""
        return {spec.name: getattr(self, spec.name) for spec in fields(self)}

    @property
    def label(self) -> str:
        """The rule as printed in tables and in artifact names, e.g. "additive t=0.1"."""
        shown = [(spec.name, getattr(self, spec.name), spec.default) for spec in fields(self)]
        return " ".join(
            [
                self.name,
                *(
                    f"{key}={_short(value)}"
                    for key, value, default in shown
                    if not isinstance(value, str) or value != default
                ),
            ]
        )

    @property
    def ceiling(self) -> float:
        """The largest value a finite certificate can have, in nats: log 2 (Theorem 4.6)."""
        return math.log(2.0)

    @property
    def minimum_k(self) -> int:
        """The number of stored top tokens without which the rule cannot be applied."""
        return 1

    def cut(self, _dist: TopK, /) -> Cut | None:
        """Return the rule as a threshold, or None when it is not one."""
        return None

    def accepted_count(self, dist: TopK, /) -> Counts:
        """Return how many of the most probable tokens are accepted at each step.

        Returns:
            (N,) int32, at least 1; -1 where more than the K stored tokens are accepted and their
            number cannot be told from what is stored.
        """
        from analysis.certificates.certify import (
            accepted_counts,  # numba: only where counts are wanted
        )

        return accepted_counts(dist, self)

    def accepts(
        self, dist: TopK, rank: NDArray[np.integer[Any]], log_prob: Floats
    ) -> NDArray[np.bool_]:
        """Say whether drafted tokens are accepted.

        Args:
            dist: N steps of the target.
            rank: (N,), 1-based target rank of the drafted token.
            log_prob: (N,), its target log-probability.

        Raises:
            ValueError: the count is unknown, the token lies beyond the stored ones, and the rule
                has no threshold to compare its probability with.
        """
        if type(self).accepted_count is Rule.accepted_count:
            from analysis.certificates.certify import stored_counts

            count = stored_counts(dist, self)
        else:
            count = self.accepted_count(dist)
        accepted = np.asarray(rank <= np.where(count < 0, dist.k, count))
        open_ = (count < 0) & (rank > dist.k)
        if np.any(open_):
            cut = self.cut(dist)
            if cut is None:
                raise ValueError(
                    f"rule {self.label!r} gave the count -1 for a step whose drafted token has "
                    f"rank {int(np.max(rank[open_]))}, beyond the K={dist.k} stored tokens: "
                    "store more (distributions.k), or give the rule a method cut(dist)"
                )
            accepted[open_] = (np.exp(log_prob) > cut.threshold(dist))[open_]
        return accepted


R = TypeVar("R", bound=type[Rule])


def register(name: str) -> Callable[[R], R]:
    """Make a rule available as `rule: <name>` in configuration; a class decorator.

    Raises:
        ValueError: another rule has this name, or it can't be printed.
    """

    def enter(cls: R) -> R:
        if not name[:1].isalpha() or not name.isprintable():
            raise ValueError(
                f"the rule name {name!a} is not allowed: give one on one line that begins "
                "with a letter"
            )
        known = REGISTRY.get(name)
        if known is not None and known.__qualname__ != cls.__qualname__:
            raise ValueError(
                f"the rule name {name!r} is taken by {known.__module__}."
                f"{known.__qualname__}: choose another"
            )
        cls.name = name
        REGISTRY[name] = cls
        return cls

    return enter


def parameter(allowed: str, test: Callable[[Any], bool], default: Any = None) -> Any:
    """Declare a field of a rule with the range that is checked, in words and as a test."""
    metadata = {"allowed": allowed, "test": test}
    return (
        field(metadata=metadata) if default is None else field(default=default, metadata=metadata)
    )


def _short(value: Any) -> str:
    """Print a number as short as it can be read back exactly."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _typed(rule: str, spec: Any, value: Any) -> Any:
    kind = _SCALARS.get(spec.type)
    allowed = spec.metadata.get("allowed", f"a value of type {getattr(kind, '__name__', kind)}")
    problem = ValueError(f"rule {rule}: {spec.name}={value!r} is not allowed: give {allowed}")
    if isinstance(value, np.generic):
        value = value.item()
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            raise problem from None
    if kind is not None and (isinstance(value, bool) or not isinstance(value, kind)):
        raise problem
    if isinstance(value, float) and not math.isfinite(value):
        raise problem
    if isinstance(value, str) and not value.isprintable():  # labels stand on one line
        raise problem
    if "test" in spec.metadata and not spec.metadata["test"](value):
        raise problem
    return value

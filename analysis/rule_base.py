"""What an acceptance rule is: the drafted tokens that it accepts, given the target's distribution.

A token rule accepts, at each step, the n most probable target tokens, n >= 1. Its class defines n
by one of two methods:

- `cut(dist)`: a probability threshold and a largest rank;
- `accepted_count(dist)`: n itself, for a rule that is not a threshold.

x0 is the target's argmax (rank 1), p0 its probability; x0 is always accepted. Comparisons are
strict, as in the paper.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

import numpy as np
import pydantic
from numpy.typing import NDArray

from . import RuleError
from .validation import what_is_wrong

if TYPE_CHECKING:
    from .topk import Floats, TopK

Counts = NDArray[np.int32]
Columns = tuple[str, ...]
Range = Mapping[str, tuple[float, float]]
FIELDS_CHECKED = pydantic.ConfigDict(
    strict=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True
)
UNKNOWN = -1  # accepted count: more than the stored tokens, the number is unknown
NO_COUNT = 0  # accepted count: the rule does not depend on ranks (a tree)
MAX_TITLE_LENGTH = 40  # most characters of a docstring in a title
FLAGS = {"accepts", "undefined"}
ASKED = FLAGS | {"cut", "accepted_count"}  # methods of a rule that take a distribution
HOME = f"{__package__}.rules"  # the module of the built-in rules
# attributes of a class as 1.0 named them: a user's class may
FORMER = {"shown": "title_format", "ends": "search_range", "decided_by": "columns_read"}


@dataclass(frozen=True, eq=False)
class Threshold:
    """A token is accepted iff it is x0, or its rank is <= max_rank and p > offset + slope p0."""

    # an integer or (N,) integers; None means every rank
    max_rank: int | NDArray[np.integer[Any]] | None = None
    offset: float | Floats = -math.inf  # a number or (N,) numbers
    slope: float = 0.0  # a finite number

    def fault(self, steps: int) -> str:
        """Return the first invalid attribute for this number of steps as an error; "" if none."""
        ranks = np.asarray(1 if self.max_rank is None else self.max_rank)
        offset = np.asarray(self.offset)
        slope = np.asarray(self.slope)
        shapes = ((), (steps,))
        if ranks.dtype.kind not in "iu" or ranks.shape not in shapes or np.any(ranks < 1):
            return f"max_rank={self.max_rank!r}: give None, or integers of at least 1"
        if offset.dtype.kind not in "fiu" or offset.shape not in shapes or np.isnan(offset).any():
            return (
                f"offset={self.offset!r}: give a number, or one per step; -inf accepts every token"
            )
        if slope.dtype.kind not in "fiu" or slope.shape or not np.isfinite(slope):
            return f"slope={self.slope!r}: give a finite number"
        return ""

    def theta(self, dist: TopK) -> Floats:
        """Return the (N,) probability that a token must exceed, the limit on ranks aside."""
        theta = np.asarray(self.offset + self.slope * dist.top_probability, dtype=np.float64)
        return np.broadcast_to(theta, len(dist))

    def accepts(self, dist: TopK, rank: NDArray[Any], log_prob: Floats) -> NDArray[np.bool_]:
        """Return (N,) whether tokens are accepted; `log_prob` counts for those not stored."""
        column = np.minimum(rank, dist.k)[:, None] - 1
        stored = np.take_along_axis(dist.probs, column, axis=1)[:, 0]
        p = np.where(rank <= dist.k, stored, np.exp(log_prob))
        max_rank = dist.vocab_size if self.max_rank is None else self.max_rank
        return np.asarray((rank == 1) | ((rank <= max_rank) & (p > self.theta(dist))))


Cut = Threshold  # as 1.0 named it


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Rule:
    """An acceptance rule. Every subclass is a frozen dataclass; its fields are its parameters.

    Types are checked strictly, and ranges where the type has one:
    ``t: Annotated[float, pydantic.Field(ge=0, le=1)]``.

    Attributes:
        name: of a built-in rule, its key in configuration; of any other, its class.
        title_format: the printed name, a format string of the parameters. By default a user's rule
            has the first words of its docstring, up to a punctuation mark, and its parameters;
            without a docstring its label.
        search_range: the strict and the relaxed end of each parameter. `solve` looks for the first
            one, with the others at their strict ends. Without it the bounds of a field tell.
        judges_tokens: whether each drafted token is judged by itself; a tree's level is not.
        samples: whether decoding with it is defined above temperature 0.
        columns_read: the columns of a distribution that the rule reads besides its `minimum_k` most
            probable tokens. Decoding computes only these and fills the others with NaN. A rule
            that declares fewer than all must count every token that it reads in `minimum_k`.
        undefined_means: the description of the steps of `undefined`, for print.
        ceiling: the largest value a finite certificate can have, in nats: log 2 (Theorem 4.6).
        minimum_k: the least number of stored tokens with which the rule can be applied.
    """

    name: ClassVar[str] = ""
    title_format: ClassVar[str] = ""
    search_range: ClassVar[Range] = {}
    judges_tokens: ClassVar[bool] = True
    samples: ClassVar[bool] = False
    columns_read: ClassVar[Columns] = ("top_surprisal", "log_tail", "entropy")
    undefined_means: ClassVar[str] = ""
    _first_words: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        """Make a subclass a dataclass with checked fields.

        One that overrides its test without declaring `columns_read` sees all columns. Whatever the
        methods of a user's raise is a ValueError that names the rule.
        """
        super().__init_subclass__(**options)
        if cls.__module__ != HOME:
            for name in ASKED & vars(cls).keys():
                setattr(cls, name, _named(vars(cls)[name]))
        for former, name in FORMER.items():
            if former in vars(cls):
                setattr(cls, name, vars(cls)[former])
        if {"cut", "accepted_count"} & vars(cls).keys() and "columns_read" not in vars(cls):
            cls.columns_read = Rule.columns_read
        if "name" not in vars(cls):
            cls.name = cls.__name__
        words = _first_words(vars(cls).get("__doc__") or "")
        if cls.__module__ != HOME and words and "title_format" not in vars(cls):
            cls._first_words = words
            cls.title_format = ""  # not that of the class above
        pydantic.dataclasses.dataclass(frozen=True, config=FIELDS_CHECKED)(cls)
        cls.__init__ = _in_one_line(cls.__init__)  # type: ignore[method-assign]

    @property
    def is_custom(self) -> bool:
        """Whether a user's module defines the rule; such a rule is shown in every table."""
        return type(self).__module__ != HOME

    @property
    def parameters(self) -> dict[str, Any]:
        """The rule's parameters, by name."""
        return {spec.name: getattr(self, spec.name) for spec in fields(self)}

    @property
    def label(self) -> str:
        """The identifier of the rule in artifacts and data files, e.g. "additive t=0.1"."""
        return " ".join([self.name, *(f"{key}={_short(x)}" for key, x in self.parameters.items())])

    @property
    def title(self) -> str:
        """The printed name in tables and figures, e.g. "Additive (t = 0.1)"."""
        if self.title_format:
            return self.title_format.format(**self.parameters)
        if not self._first_words:
            return self.label
        values = ", ".join(f"{key} = {_short(x)}" for key, x in self.parameters.items())
        return f"{self._first_words} ({values})" if values else self._first_words

    @property
    def ceiling(self) -> float:
        return math.log(2.0)

    @property
    def minimum_k(self) -> int:
        return 1

    def cut(self, _dist: TopK, /) -> Threshold | None:
        """Return the rule as a threshold, or None if it is not one."""
        return None

    def accepted_count(self, _dist: TopK, /) -> Counts:
        """Return (N,) accepted counts n >= 1, where the rule is no threshold.

        UNKNOWN where more than the K stored tokens are accepted, in unknown number; NO_COUNT for a
        rule that does not depend on ranks. What a threshold accepts is counted by `certify`.
        """
        raise NotImplementedError

    def undefined(self, dist: TopK, /) -> NDArray[np.bool_]:
        """Return (N,) whether the rule's test is undefined at a step; nowhere by default."""
        return np.zeros(len(dist), dtype=np.bool_)

    def acceptance_test(self, dist: TopK, /) -> Threshold | Counts:
        """Return the acceptance test: what `cut` or `accepted_count` says, checked.

        Raises:
            RuleError: the class defines neither, or its numbers are impossible.
        """
        if type(self).accepted_count is Rule.accepted_count:
            cut = self.cut(dist)
            returned = f"rule {self.label!r}: cut(dist) returned"
            if not isinstance(cut, Threshold):
                raise RuleError(
                    f"{returned} {cut!r:.80}: give a Threshold, or accepted_count(dist)"
                )
            if fault := cut.fault(len(dist)):
                raise RuleError(f"{returned} {fault}")
            return cut
        counts = np.asarray(self.accepted_count(dist))
        size = dist.vocab_size
        right = counts.dtype.kind in "iu" and counts.shape == (len(dist),)
        if right and self.judges_tokens:
            unknown = (counts == UNKNOWN) & (dist.k < size)
            right = bool(np.all(((counts >= 1) | unknown) & (counts <= size)))
        if not right:
            raise RuleError(
                f"rule {self.label!r}: accepted_count must give one integer per step, in "
                f"[1, {size}], or {UNKNOWN} where more than the stored tokens are accepted"
            )
        return counts

    def accepts(
        self,
        dist: TopK,
        rank: NDArray[np.integer[Any]],
        log_prob: Floats,
        argmax_rank: NDArray[np.integer[Any]] | None = None,
        count: Counts | None = None,
    ) -> NDArray[np.bool_]:
        """Return (N,) whether the drafted tokens are accepted.

        `rank`, from 1, and `log_prob` are those of the drafted tokens under the target, (N,) each;
        `argmax_rank` is that of x0 under the drafter, which trees need; `count` are the accepted
        counts, if `certify` has computed them already.

        Raises:
            RuleError: the count is unknown, the token is not among the stored ones, and the
                rule has no threshold for its probability.
        """
        test = self.acceptance_test(dist) if count is None else count
        if isinstance(test, Threshold):
            return test.accepts(dist, rank, log_prob)
        accepted = np.asarray(rank <= np.where(test < 0, dist.k, test))
        beyond = (test < 0) & (rank > dist.k)
        if np.any(beyond):
            cut = self.cut(dist)
            if cut is None:
                raise RuleError(
                    f"rule {self.label!r} gave the count {UNKNOWN} for a step whose drafted token "
                    f"is not among the K={dist.k} stored ones: store more tokens per step, or give "
                    "the rule a method cut(dist)"
                )
            accepted[beyond] = cut.accepts(dist, rank, log_prob)[beyond]
        return accepted


def check_k(
    rules: Iterable[Rule], k: int, vocab_size: float = math.inf, setting: str = "k"
) -> None:
    """Check, before any work, that K stored tokens suffice for all rules; all V tokens do.

    Raises:
        RuleError: names the rule, the K it needs, the stored K, and the `setting` to change.
    """
    for rule in rules:
        needed = min(rule.minimum_k, vocab_size)
        if k < needed:
            raise RuleError(
                f"rule {rule.label!r} needs the {needed} most probable tokens of every step, and "
                f"K={k} are stored: set {setting} to {needed} or more"
            )


def _named(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of a user's rule: its errors name the rule, and it can't change the steps."""

    @wraps(method)
    def named(rule: Rule, dist: TopK, *values: Any, **others: Any) -> Any:
        name = method.__name__
        copy = dist[:]
        for array in vars(copy).values():
            if isinstance(array, np.ndarray):
                array.flags.writeable = False
        try:
            result = method(rule, copy, *values, **others)
        except (Exception, SystemExit) as error:
            message = f"{name}(dist) raised {type(error).__name__}: {error}"
            raise RuleError(f"rule {rule.label!r}: {' '.join(message.split())}") from error
        flags = np.asarray(result)
        if name in FLAGS and (flags.shape != (len(dist),) or flags.dtype != np.bool_):
            raise RuleError(f"rule {rule.label!r}: {name} must give one boolean per step")
        return result

    return named


def _in_one_line(init: Callable[..., None]) -> Callable[..., None]:
    """Return a rule's `__init__` that also takes NumPy scalars, and has one-line errors."""

    @wraps(init)
    def checked(rule: Rule, *values: Any, **named: Any) -> None:
        try:
            init(rule, *map(_plain, values), **{key: _plain(x) for key, x in named.items()})
        except pydantic.ValidationError as error:
            names = [spec.name for spec in fields(rule)]
            raise RuleError(f"rule {rule.name}: {what_is_wrong(error, names)}") from None

    return checked


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _first_words(text: str) -> str:
    """Return a docstring up to its first punctuation mark, or as many words of it as fit."""
    words = re.split(r"[.,:;()\n]", text.strip())[0].split()
    while len(" ".join(words)) > MAX_TITLE_LENGTH:
        words.pop()
    return " ".join(words)


def _short(value: Any) -> str:
    """Return the shortest text from which a number can be read back exactly."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)

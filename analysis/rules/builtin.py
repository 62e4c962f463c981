"""The acceptance rules, and how plain configuration becomes one.

Definitions: docs/method.md. x0 is the target's argmax (rank 1), p0 its probability; x0 is always
accepted. Comparisons are strict, as in the paper.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.rules.rule import REGISTRY, Counts, Cut, Rule, parameter, register

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from analysis.topk import Floats, TopK

__all__ = [
    "AbsoluteThreshold",
    "Additive",
    "Cut",
    "Mars",
    "Multiplicative",
    "Rule",
    "StrictGreedy",
    "TopMAdditive",
    "TopMMultiplicative",
    "Tree",
    "Typical",
    "build",
    "check_k",
    "expand",
    "parameter",
    "register",
    "to_mapping",
]


def _t() -> Any:
    return parameter("a number in [0, 1]", lambda t: 0 <= t <= 1)


def _alpha() -> Any:
    return parameter("a number in (0, 1]", lambda alpha: 0 < alpha <= 1)


def _m() -> Any:
    return parameter("an integer of at least 1, below 2^31", lambda m: 1 <= m < 1 << 31)


def _convention() -> Any:
    return parameter("rank or paper", lambda word: word in ("rank", "paper"), default="rank")


@register("greedy")
@dataclass(frozen=True)
class StrictGreedy(Rule):
    """Accept x0 only (Corollary 4.7)."""

    @property
    def minimum_k(self) -> int:
        """2: x0 and the first rejected token."""
        return 2

    def cut(self, _dist: TopK, /) -> Cut:
        """Return the limit to rank 1."""
        return Cut(max_rank=1)


@register("additive")
@dataclass(frozen=True)
class Additive(Rule):
    """Accept p > p0 - t (Corollary 4.10)."""

    t: float = _t()

    def cut(self, _dist: TopK, /) -> Cut:
        """Return p > p0 - t."""
        return Cut(offset=-self.t, slope=1.0)


@register("multiplicative")
@dataclass(frozen=True)
class Multiplicative(Rule):
    """Accept p > alpha p0 (Corollary 4.12)."""

    alpha: float = _alpha()

    def cut(self, _dist: TopK, /) -> Cut:
        """Return p > alpha p0."""
        return Cut(offset=0.0, slope=self.alpha)


class _TopM(Rule):
    """A further test among the top m tokens.

    `convention: rank` accepts ranks up to m. `convention: paper` is Corollary 4.14 read
    literally: p must exceed the p of rank m, which keeps at most m - 1 tokens.
    """

    m: int
    convention: str

    @property
    def minimum_k(self) -> int:
        """The first rejected token has rank at most m + 1, or max(m, 2) by the paper's gate."""
        return self.m + 1 if self.convention == "rank" else max(2, self.m)

    def _cut(self, offset: float, slope: float) -> Cut:
        if self.convention == "paper":
            return Cut(offset=offset, slope=slope, strictly_above_rank=self.m)
        return Cut(max_rank=self.m, offset=offset, slope=slope)


@register("topm_additive")
@dataclass(frozen=True)
class TopMAdditive(_TopM):
    """Accept the top m tokens with p > p0 - t (Corollary 4.14)."""

    m: int = _m()
    t: float = _t()
    convention: str = _convention()

    def cut(self, _dist: TopK, /) -> Cut:
        """Return p > p0 - t, up to rank m."""
        return self._cut(-self.t, 1.0)


@register("topm_multiplicative")
@dataclass(frozen=True)
class TopMMultiplicative(_TopM):
    """Accept the top m tokens with p > alpha p0 (Corollary 4.14)."""

    m: int = _m()
    alpha: float = _alpha()
    convention: str = _convention()

    def cut(self, _dist: TopK, /) -> Cut:
        """Return p > alpha p0, up to rank m."""
        return self._cut(0.0, self.alpha)


@register("typical")
@dataclass(frozen=True)
class Typical(Rule):
    """Accept p > min(eps0, delta0 exp(-H)), H the target's entropy (Corollary 4.15)."""

    eps0: float = parameter("a number above 0", lambda value: value > 0)
    delta0: float = parameter("a number above 0", lambda value: value > 0)

    def cut(self, dist: TopK, /) -> Cut:
        """Return p > min(eps0, delta0 exp(-H))."""
        return Cut(offset=np.minimum(self.eps0, self.delta0 * np.exp(-dist.entropy)))


@register("absolute")
@dataclass(frozen=True)
class AbsoluteThreshold(Rule):
    """Accept p > theta."""

    theta: float = parameter("a number in [0, 1)", lambda theta: 0 <= theta < 1)

    def cut(self, _dist: TopK, /) -> Cut:
        """Return p > theta."""
        return Cut(offset=self.theta)


@register("mars")
@dataclass(frozen=True)
class Mars(Rule):
    """Accept rank 2 as well where z2 / z1 > theta on raw logits (MARS, arXiv 2601.15498).

    The ratio means nothing at z1 <= 0: only x0 is accepted there, see `undefined`.
    """

    theta: float = parameter("a number in (0, 1)", lambda theta: 0 < theta < 1)

    @property
    def minimum_k(self) -> int:
        """3: rank 3 is the first rejected token where rank 2 is accepted."""
        return 3

    def undefined(self, dist: TopK) -> NDArray[np.bool_]:
        """Return the (N,) steps at which z1 <= 0.

        Raises:
            ValueError: the raw logits are not known.
        """
        return np.asarray(self.raw_logits(dist)[:, 0] <= 0)

    def raw_logits(self, dist: TopK) -> NDArray[np.float32]:
        """Return the (N, K) logits the ratio is taken of.

        Raises:
            ValueError: they are not known.
        """
        if dist.logits is None:
            raise ValueError(
                f"rule {self.label!r} compares raw logits, and this distribution is "
                "given by probabilities only: build it with TopK.from_logits"
            )
        return dist.logits


@register("tree")
@dataclass(frozen=True)
class Tree(Rule):
    """Accept a tree level iff x0 is among the drafter's top m tokens (Theorem 5.1).

    Not a rule on the rank of one token: its accepted count is always -1.
    """

    m: int = _m()

    @property
    def ceiling(self) -> float:
        """log(m + 1), Theorem 5.3."""
        return math.log(self.m + 1)

    @property
    def minimum_k(self) -> int:
        """M + 1: x0 and the m tokens that can push it out."""
        return self.m + 1

    def accepted_count(self, dist: TopK, /) -> Counts:
        """Return -1 throughout."""
        return np.full(len(dist), -1, dtype=np.int32)

    def accepts(
        self, dist: TopK, rank: NDArray[np.integer[Any]], log_prob: Floats
    ) -> NDArray[np.bool_]:
        """Say whether x0 is covered; `rank` is the rank of x0 under the drafter."""
        return np.asarray(rank <= self.m)


def build(mapping: Mapping[str, Any]) -> Rule:
    """Make a rule from plain configuration, such as {"rule": "additive", "t": 0.1}.

    A user's rule names the module that registers it: {"module": "my_rules", "rule": "mine"}.

    Raises:
        ValueError: the rule or a key is unknown or missing, or a value has the wrong type or is
            out of range; the message names the key, the value and what is allowed.
    """
    values = _plain(mapping)
    module = values.pop("module", None)
    if module is not None:
        _load(module)
    name = values.pop("rule", None)
    if not isinstance(name, str) or name not in REGISTRY:
        hint = "" if module is not None else ", or name the module that registers it (module: ...)"
        raise ValueError(
            f"rule={name!r} is not known: give one of {', '.join(sorted(REGISTRY))}{hint}"
        )
    cls = REGISTRY[name]
    specs = {spec.name: spec for spec in fields(cls)}
    unknown = sorted(set(values) - set(specs))
    if unknown:
        takes = f"{name} takes {', '.join(specs)}" if specs else f"{name} takes no parameters"
        raise ValueError(f"rule {name}: the key {unknown[0]!r} is not known: {takes}")
    for key, spec in specs.items():
        if key not in values and spec.default is MISSING and spec.default_factory is MISSING:
            raise ValueError(
                f"rule {name}: the key {key!r} is missing: give "
                f"{spec.metadata.get('allowed', 'its value')}"
            )
    return cls(**values)


def _plain(mapping: Any) -> dict[str, Any]:
    if not isinstance(mapping, Mapping) or not all(isinstance(key, str) for key in mapping):
        raise ValueError(
            f"{mapping!r} is no rule: give a mapping, for instance {{rule: additive, t: 0.1}}"
        )
    return dict(mapping)


def to_mapping(rule: Rule) -> dict[str, Any]:
    """Return the plain configuration that `build` makes this rule from."""
    own = {"module": type(rule).__module__} if rule.own else {}
    return {**own, "rule": rule.name, **rule.parameters}


def expand(mappings: Iterable[Mapping[str, Any]]) -> list[Rule]:
    """Build rules, with a list as a value standing for one rule each; lists multiply.

    Example:
        >>> [rule.label for rule in expand([{"rule": "additive", "t": [0.1, 0.2]}])]
        ['additive t=0.1', 'additive t=0.2']
    """
    rules = []
    for mapping in map(_plain, mappings):
        empty = next((key for key, value in mapping.items() if value in ([], ())), None)
        if empty is not None:
            raise ValueError(
                f"rule {mapping.get('rule')}: {empty}=[] is not allowed: give at least one value"
            )
        axes = [value if isinstance(value, list | tuple) else [value] for value in mapping.values()]
        rules += [
            build(dict(zip(mapping, point, strict=True))) for point in itertools.product(*axes)
        ]
    return rules


def check_k(rules: Iterable[Rule], k: int, vocab_size: int) -> None:
    """Check that K stored tokens suffice, before any work is done.

    Raises:
        ValueError: something is no rule; or names the rule, the K it needs and the K there is.
    """
    for rule in rules:
        if not isinstance(rule, Rule):
            raise ValueError(f"{rule!r} is no rule: make one with its class, or with build")
        needed = min(rule.minimum_k, vocab_size)
        if k < needed:
            raise ValueError(
                f"rule {rule.label!r} needs the {needed} most probable tokens of "
                f"every step, and K={k} are stored: set distributions.k to "
                f"{needed} or more"
            )


def _load(module: Any) -> None:
    try:
        importlib.import_module(str(module))
    except ModuleNotFoundError as error:
        advice = (
            f"put {module}.py into the directory you start from, or its directory into PYTHONPATH"
        )
        if error.name != str(module):  # the module is there, something that it imports is not
            advice = str(error)
        raise ValueError(f"module={module!r} cannot be imported: {advice}") from error
    except Exception as error:  # whatever a user's module raises
        raise ValueError(
            f"module={module!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error

"""Rules from plain configuration, rules back to configuration, and what is wrong with either."""

from __future__ import annotations

import itertools
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, TypeVar

import numpy as np
import pydantic

from . import RuleError
from .rule_base import what_is_wrong
from .rules import BUILT_IN, Rule

T = TypeVar("T")
TARGET = "_target_"  # Hydra's key of a class
EXAMPLE = "{rule: additive, t: 0.1}"


def build(mapping: Mapping[str, Any]) -> Rule:
    """Make a rule from plain configuration.

    A built-in rule has a short name, ``{"rule": "additive", "t": 0.1}``, a user's own the place of
    its class, ``{"_target_": "my_rules.Confident", "c": 0.9}``.

    Raises:
        ValueError: a rule, key, type or value is wrong; names key, value and what is allowed.
    """
    kind, values = rule_class(mapping)
    return checked(kind, values, f"rule {kind.name}")


def rule_class(mapping: Any) -> tuple[type[Rule], dict[str, Any]]:
    """Return the class that a mapping names, ValueError if there is none, and the other keys."""
    if not isinstance(mapping, Mapping):
        raise ValueError(f"{mapping!r} is not a rule: give a mapping such as {EXAMPLE}")
    values = dict(mapping)
    if TARGET not in values:
        name = values.pop("rule", None)
        if not isinstance(name, str) or name not in BUILT_IN:
            raise ValueError(
                f"rule={name!r} is not known{nearest(str(name), BUILT_IN)}: give one of "
                f"{', '.join(sorted(BUILT_IN))}, or a class of your own, {TARGET}: my_rules.MyRule"
            )
        return BUILT_IN[name], values
    target = values.pop(TARGET)
    try:
        kind = pkgutil.resolve_name(target)
    except (Exception, SystemExit) as error:  # whatever a user's module raises
        raise ValueError(
            f"{TARGET}={target} cannot be imported: {type(error).__name__}: {error}. Modules are "
            "found in the directory you start from and on PYTHONPATH"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, Rule) and kind is not Rule):
        raise ValueError(f"{TARGET}={target} is no rule: give a subclass of analysis.rules.Rule")
    return kind, values


def to_mapping(rule: Rule) -> dict[str, Any]:
    """Return the plain configuration from which `build` makes this rule."""
    kind = type(rule)
    name = {TARGET: f"{kind.__module__}.{kind.__qualname__}"} if rule.own else {"rule": rule.name}
    return {**name, **rule.parameters}


def expand(mappings: Iterable[Mapping[str, Any]]) -> list[Rule]:
    """Build rules; a list as a value gives a rule for each entry, several lists their product.

    >>> [rule.label for rule in expand([{"rule": "additive", "t": [0.1, 0.2]}])]
    ['additive t=0.1', 'additive t=0.2']
    """
    return [build(point) for mapping in mappings for point in product(mapping)]


def product(mapping: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a mapping for each combination of values that are lists; ValueError if one is empty."""
    axes = []
    for key, value in mapping.items():
        several = isinstance(value, list | tuple)
        if several and not value:
            raise ValueError(f"{key}=[]: give a value, or a list of at least one")
        axes.append(value if several else [value])
    for point in itertools.product(*axes):
        yield dict(zip(mapping, point, strict=True))


@dataclass(frozen=True)
class ParameterRange:
    """A rule at two values of one parameter, strict and relaxed: what `solve` searches."""

    parameter: str
    rules: tuple[Rule, Rule]

    @property
    def name(self) -> str:
        """The rule's name with its fixed parameters."""
        fixed = [
            f"{key}={value:g}"
            for key, value in self.rules[0].parameters.items()
            if key != self.parameter and isinstance(value, int | float)
        ]
        return " ".join([self.rules[0].name, *fixed])

    def value(self, rule: Rule) -> float:
        """Return the value of the range's parameter in one of its rules."""
        return float(rule.parameters[self.parameter])


def build_range(mapping: Mapping[str, Any]) -> ParameterRange:
    """Return the range that a rule's class gives (`Rule.ends`); other parameters may be given.

    Raises:
        ValueError: the rule has no range, or as of `build`.

    >>> [rule.label for rule in build_range({"rule": "topm_additive", "m": 4}).rules]
    ['topm_additive m=4 t=0', 'topm_additive m=4 t=1']
    """
    kind, values = rule_class(mapping)
    if not kind.ends:
        raise ValueError(f"rule {kind.name} has no range: its class gives the ends of a parameter")
    parameter, (_, relaxed) = next(iter(kind.ends.items()))
    strict = {name: ends[0] for name, ends in kind.ends.items()} | values
    both = (strict, strict | {parameter: relaxed})
    first, last = (checked(kind, one, f"rule {kind.name}") for one in both)
    return ParameterRange(parameter, (first, last))


def check_k(rules: Iterable[Rule], k: int, vocab_size: float = np.inf, setting: str = "k") -> None:
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


def checked(kind: Callable[..., T], values: Mapping[str, Any], where: str) -> T:
    """Make a pydantic dataclass.

    Raises:
        ValueError: all that is wrong with `values`, in one line that begins with `where`.
    """
    names = [spec.name for spec in fields(kind)]  # type: ignore[arg-type]
    check_keys(values, names, where)
    try:
        return kind(**values)
    except RuleError:  # which says it all
        raise
    except pydantic.ValidationError as error:
        raise ValueError(f"{where}: {what_is_wrong(error, names)}") from None
    except (Exception, SystemExit) as error:  # of a user's class
        raise ValueError(f"{where}: {type(error).__name__}: {error}") from error


def check_keys(keys: Iterable[str], allowed: Iterable[str], where: str) -> None:
    """Check that all keys are allowed; else a ValueError names the first that is not."""
    names = list(allowed)
    for key in keys:
        if key not in names:
            raise ValueError(
                f"{where}: the key {key!r} is not known{nearest(str(key), names)}: "
                + (f"give {', '.join(names)}" if names else "there are no parameters")
            )


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a hint at the closest name, for the end of an error.

    >>> nearest("tempature", ["seed", "temperature"])
    ' (did you mean temperature?)'
    """
    matches = get_close_matches(name, list(names), n=1)
    return f" (did you mean {matches[0]}?)" if matches else ""

"""Rules and parameter ranges from plain configuration, and rules back to configuration."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..fields import FieldError, alternatives, from_mapping
from .rule import REGISTRY, Rule


def build(mapping: Mapping[str, Any]) -> Rule:
    """Make a rule from plain configuration, for instance {"rule": "additive", "t": 0.1}.

    A user's rule names the module that registers it: {"module": "my_rules", "rule": "mine"}.

    Raises:
        ValueError: the rule or a key is unknown or missing, or a value has the wrong type or is
            out of range. The message names the key, the value and what is allowed.
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
    return from_mapping(REGISTRY[name], values, f"rule {name}: ", name)


def _plain(mapping: Any) -> dict[str, Any]:
    if not isinstance(mapping, Mapping) or not all(isinstance(key, str) for key in mapping):
        raise ValueError(
            f"{mapping!r} is not a rule: give a mapping, for instance {{rule: additive, t: 0.1}}"
        )
    return dict(mapping)


def to_mapping(rule: Rule) -> dict[str, Any]:
    """Return the plain configuration from which `build` makes this rule."""
    own = {"module": type(rule).__module__} if rule.own else {}
    return {**own, "rule": rule.name, **rule.parameters}


def expand(mappings: Iterable[Mapping[str, Any]]) -> list[Rule]:
    """Build rules; a list as a value gives a rule for each entry, several lists their product.

    Examples:
        >>> [rule.label for rule in expand([{"rule": "additive", "t": [0.1, 0.2]}])]
        ['additive t=0.1', 'additive t=0.2']
    """
    rules = list[Rule]()
    for mapping in map(_plain, mappings):
        try:
            points = alternatives(mapping)
        except FieldError as error:
            raise ValueError(f"rule {mapping.get('rule')}: {error}") from error
        rules += map(build, points)
    return rules


@dataclass(frozen=True)
class ParameterRange:
    """A rule at several values of one parameter, from strict to relaxed.

    Attributes:
        parameter: its name.
        rules: the rule at each value.
    """

    parameter: str
    rules: tuple[Rule, ...]

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
    """Make a range from plain configuration, for instance {"rule": "additive", "t": [0.1, 0.2]}.

    Raises:
        ValueError: not exactly one key has a list of at least two values, a rule is wrong, or
            the values of a built-in rule do not go from strict to relaxed.
    """
    lists = [key for key, value in mapping.items() if isinstance(value, list | tuple)]
    values = mapping[lists[0]] if len(lists) == 1 else []
    if len(values) < 2 or not all(isinstance(value, int | float) for value in values):
        raise ValueError(
            f"the range {dict(mapping)} is not allowed: give one key a list of at "
            "least two numbers, from strict to relaxed, and the others one value"
        )
    built = ParameterRange(lists[0], tuple(expand([mapping])))
    sign = built.rules[0].relaxes.get(built.parameter)
    if sign is not None:
        values = [sign * built.value(rule) for rule in built.rules]
        if values != sorted(set(values)):
            direction = "falls" if sign < 0 else "grows"
            raise ValueError(
                f"the range {dict(mapping)} is not allowed: give the values from strict to "
                f"relaxed, {built.parameter} {direction}"
            )
    return built


def check_k(rules: Iterable[Rule], k: int, vocab_size: int | None = None) -> None:
    """Check, before any work, that K stored tokens suffice for all rules.

    All V tokens do; without `vocab_size` V is not known.

    Raises:
        ValueError: an entry is not a rule; or names the rule, the K it needs and the stored K.
    """
    for rule in rules:
        if not isinstance(rule, Rule):
            raise ValueError(f"{rule!r} is not a rule: make one with its class, or with build")
        needed = rule.minimum_k
        if not isinstance(needed, int | np.integer):
            raise ValueError(f"rule {rule.label!r}: minimum_k={needed!r} must be an integer")
        needed = int(needed) if vocab_size is None else min(int(needed), vocab_size)
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
    except (Exception, SystemExit) as error:  # whatever a user's module raises
        raise ValueError(
            f"module={module!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error

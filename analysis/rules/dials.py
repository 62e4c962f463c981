"""Dials: a rule's parameter turned from strict to relaxed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .build import expand
from .rule import Rule


@dataclass(frozen=True)
class Dial:
    """A rule at several values of one parameter, from strict to relaxed.

    Attributes:
        parameter: its name.
        rules: the rule at each value.
    """

    parameter: str
    rules: tuple[Rule, ...]

    @property
    def name(self) -> str:
        """The rule's name, with the parameters that stay."""
        fixed = [
            f"{key}={value:g}"
            for key, value in self.rules[0].parameters.items()
            if key != self.parameter and isinstance(value, int | float)
        ]
        return " ".join([self.rules[0].name, *fixed])

    def value(self, rule: Rule) -> float:
        """Return the parameter of a rule of this dial."""
        return float(rule.parameters[self.parameter])


def build_dial(mapping: Mapping[str, Any]) -> Dial:
    """Make a dial from plain configuration, such as {"rule": "additive", "t": [0.1, 0.2]}.

    Raises:
        ValueError: not exactly one key has a list of at least two values, or a rule is wrong, or
            the values of a built-in rule do not go from strict to relaxed.
    """
    lists = [key for key, value in mapping.items() if isinstance(value, list | tuple)]
    values = mapping[lists[0]] if len(lists) == 1 else []
    if len(values) < 2 or not all(isinstance(value, int | float) for value in values):
        raise ValueError(
            f"the dial {dict(mapping)} is not allowed: give one key a list of at "
            "least two numbers, from strict to relaxed, and the others one value"
        )
    dial = Dial(lists[0], tuple(expand([mapping])))
    sign = dial.rules[0].relaxes.get(dial.parameter)
    if sign is not None:
        values = [sign * dial.value(rule) for rule in dial.rules]
        if values != sorted(set(values)):
            direction = "falls" if sign < 0 else "grows"
            raise ValueError(
                f"the dial {dict(mapping)} is not allowed: give the values from strict to "
                f"relaxed, {dial.parameter} {direction}"
            )
    return dial

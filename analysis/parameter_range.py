"""The range of a rule's parameter, from the strict to the relaxed end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .rule_base import Rule
from .rule_config import rule_class
from .validation import checked


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
    """Return the `search_range` of a rule's class; its other parameters may be given.

    Raises:
        ValueError: the rule has no range, or as of `build`.

    >>> [rule.label for rule in build_range({"rule": "topm_additive", "m": 4}).rules]
    ['topm_additive m=4 t=0', 'topm_additive m=4 t=1']
    """
    kind, values = rule_class(mapping)
    if not kind.search_range:
        raise ValueError(f"rule {kind.name} has no range: its class gives the ends of a parameter")
    parameter, (_, relaxed) = next(iter(kind.search_range.items()))
    strict = {name: ends[0] for name, ends in kind.search_range.items()} | values
    both = (strict, strict | {parameter: relaxed})
    first, last = (checked(kind, one, f"rule {kind.name}") for one in both)
    return ParameterRange(parameter, (first, last))

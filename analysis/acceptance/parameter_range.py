"""The range of a rule's parameter that is searched, from its strict to its relaxed end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ..certificates.certify import certify
from ..rule_base import Rule
from ..rule_config import rule_class
from ..topk import TopK
from ..validation import checked

RESOLUTION = 1e-4  # distance between the settings of a continuous parameter
TRIED = 64  # random steps, with as many tokens, on which the ends of a range are compared


@dataclass(frozen=True)
class ParameterRange:
    """A rule at the strict and the relaxed end of one parameter: `solve` searches between them."""

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
    """Return the range to search of the rule in `mapping`, which may fix other parameters.

    The range is the `search_range` of the rule's class. Without one, it is the range between the
    bounds of the first parameter that `mapping` does not fix and whose field has a lower and an
    upper bound. Which end is the strict one is tried on random steps.

    Raises:
        ValueError: the rule has no range, or `build` refuses the mapping.

    >>> [rule.label for rule in build_range({"rule": "topm_additive", "m": 4}).rules]
    ['topm_additive m=4 t=0', 'topm_additive m=4 t=1']
    """
    kind, values = rule_class(mapping)
    if not kind.search_range:
        return _range_of_bounds(kind, values)
    parameter, (_, relaxed) = next(iter(kind.search_range.items()))
    strict = {name: ends[0] for name, ends in kind.search_range.items()} | values
    both = (strict, strict | {parameter: relaxed})
    first, last = (checked(kind, one, f"rule {kind.name}") for one in both)
    return ParameterRange(parameter, (first, last))


def _range_of_bounds(kind: type[Rule], values: Mapping[str, Any]) -> ParameterRange:
    """Return the range between the bounds of a field, from its strict to its relaxed end."""
    bounded = {name: ends for name in _names(kind) if (ends := _bounds(kind, name)) is not None}
    parameter = next((name for name in bounded if name not in values), None)
    if parameter is None:
        raise ValueError(
            f"rule {kind.name} has no range: give its class search_range, or a parameter both "
            "bounds, Field(ge=0, le=1)"
        )
    rules = [
        checked(kind, {**values, parameter: end}, f"rule {kind.name}") for end in bounded[parameter]
    ]
    shape = (TRIED, max(TRIED, *(rule.minimum_k for rule in rules)))
    steps = TopK.from_logits(3 * np.random.default_rng(0).standard_normal(shape))
    first, second = certify(steps, rules).lower.T
    if np.all(first <= second) and np.any(first < second):
        return ParameterRange(parameter, (rules[0], rules[1]))
    if np.all(second <= first) and np.any(second < first):
        return ParameterRange(parameter, (rules[1], rules[0]))
    raise ValueError(
        f"rule {kind.name}: neither {rules[0].label} nor {rules[1].label} is stricter at every "
        "step: give its class search_range, the strict and the relaxed end of a parameter"
    )


def _names(kind: type[Rule]) -> list[str]:
    return [field.name for field in fields(kind)]


def _bounds(kind: type[Rule], name: str) -> tuple[float, float] | None:
    """Return the least and the largest value that a field allows; None if either is missing."""
    field = kind.__pydantic_fields__[name]  # type: ignore[attr-defined]
    limits = {
        limit: getattr(part, limit)
        for part in field.metadata
        for limit in ("ge", "gt", "le", "lt")
        if getattr(part, limit, None) is not None
    }
    step = 1 if field.annotation is int else RESOLUTION
    low = limits.get("ge", limits["gt"] + step if "gt" in limits else None)
    high = limits.get("le", limits["lt"] - step if "lt" in limits else None)
    if low is None or high is None or field.annotation not in (int, float):
        return None
    return field.annotation(low), field.annotation(high)

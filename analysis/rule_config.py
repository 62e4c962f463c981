"""Build rules from plain configuration, and turn them back into it."""

from __future__ import annotations

import itertools
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .rules import BUILT_IN, Rule
from .validation import checked, nearest

TARGET = "_target_"  # Hydra's key of a class
EXAMPLE = "{rule: additive, t: 0.1}"


def build(mapping: Mapping[str, Any]) -> Rule:
    """Make a rule from plain configuration.

    A built-in rule is given by its short name, ``{"rule": "additive", "t": 0.1}``, a user's own by
    the import path of its class, ``{"_target_": "my_rules.Confident", "c": 0.9}``.

    Raises:
        ValueError: a rule, key, type or value is wrong; the message names it and what is allowed.
    """
    kind, values = rule_class(mapping)
    return checked(kind, values, f"rule {kind.name}")


def rule_class(mapping: Any) -> tuple[type[Rule], dict[str, Any]]:
    """Return the class that a mapping names, and its other keys; ValueError for no such rule."""
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
    name = (
        {TARGET: f"{kind.__module__}.{kind.__qualname__}"}
        if rule.is_custom
        else {"rule": rule.name}
    )
    return {**name, **rule.parameters}


def expand(mappings: Iterable[Mapping[str, Any]]) -> list[Rule]:
    """Build rules. A value may be a list: there is a rule for each combination of list entries.

    >>> [rule.label for rule in expand([{"rule": "additive", "t": [0.1, 0.2]}])]
    ['additive t=0.1', 'additive t=0.2']
    """
    return [build(point) for mapping in mappings for point in combinations(mapping)]


def combinations(mapping: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a mapping for each combination of values that are lists; ValueError if one is empty."""
    axes = []
    for key, value in mapping.items():
        several = isinstance(value, list | tuple)
        if several and not value:
            raise ValueError(f"{key}=[]: give a value, or a list of at least one")
        axes.append(value if several else [value])
    for point in itertools.product(*axes):
        yield dict(zip(mapping, point, strict=True))

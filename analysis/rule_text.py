"""Rules as people write them in Python: a short text, an object, or a list of them.

"additive:0.3" is `Additive(0.3)`, "topm_additive:4,0.1" is `TopMAdditive(4, 0.1)`. The label that
tables print, "topm_additive m=4 t=0.1", is understood as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from . import RuleError
from .rule_config import build
from .rules import BUILT_IN, Rule
from .validation import described, nearest

ALLOWED = "give 'greedy', 'additive:0.3', Additive(0.3), or a list of rules"


def rules_from(value: Any) -> list[Rule]:
    """Return the rules that one text, one object, or a list of either stands for.

    Raises:
        ValueError: there is no rule, or one is wrong. Names it, and says what is allowed.

    >>> [rule.label for rule in rules_from(["greedy", "additive:0.3", "topm_additive m=4 t=0.1"])]
    ['greedy', 'additive t=0.3', 'topm_additive m=4 t=0.1']
    """
    rules = [rule_from(entry) for entry in (value if is_several(value) else [value])]
    if not rules:
        raise RuleError(f"there is no rule: {ALLOWED}")
    return rules


def is_several(value: Any) -> bool:
    """Whether rules are given as a list, or another sequence."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def rule_from(value: Any) -> Rule:
    """Return the rule that a text, a mapping or an object stands for.

    Raises:
        ValueError: as of `rules_from`.
    """
    if isinstance(value, Rule):
        return value
    if isinstance(value, str):
        return _parsed(value)
    if isinstance(value, Mapping):
        return build(value)
    if isinstance(value, type) and issubclass(value, Rule):
        raise RuleError(
            f"{value.__name__} is a class: give one of its rules, {value.__name__}(...)"
        )
    raise RuleError(f"{described(value)} is not a rule: {ALLOWED}")


def _parsed(text: str) -> Rule:
    name, *values = re.split(r"[:,\s]+", text.strip())
    if name not in BUILT_IN:
        raise RuleError(
            f"rule {text!r} is not known{nearest(name, BUILT_IN)}: give one of "
            f"{', '.join(sorted(BUILT_IN))}, with values as in 'additive:0.3', or an object of "
            "your own class"
        )
    positional = [_number(text, value) for value in values if "=" not in value]
    named: dict[str, float] = {}
    for value in values:
        key, equals, number = value.partition("=")
        if key in named:
            raise RuleError(f"rule {text!r} gives {key} twice")
        if equals:
            named[key] = _number(text, number)
    return BUILT_IN[name](*positional, **named)


def _number(text: str, value: str) -> float:
    try:
        return int(value) if re.fullmatch(r"[+-]?\d+", value) else float(value)
    except ValueError:
        raise RuleError(f"rule {text!r}: {value!r} is not a number") from None

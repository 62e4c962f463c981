"""Acceptance rules: which drafted tokens are accepted, given the target's distribution.

`rule` says what a rule is, `builtin` and `tree` are the rules, `build` makes one from plain
configuration, `dials` turns one parameter from strict to relaxed.
"""

from .build import build, check_k, expand, to_mapping
from .builtin import (
    AbsoluteThreshold,
    Additive,
    Mars,
    Multiplicative,
    StrictGreedy,
    TopMAdditive,
    TopMMultiplicative,
    Typical,
)
from .rule import NO_COUNT, UNKNOWN, Cut, Drafted, Rule, parameter, register
from .tree import Tree

__all__ = [
    "NO_COUNT",
    "UNKNOWN",
    "AbsoluteThreshold",
    "Additive",
    "Cut",
    "Drafted",
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

"""Acceptance rules: the drafted tokens that are accepted, given the target's distribution.

`rule` defines a rule, and `builtin` holds the rules. `build` makes a rule, or a range
of a parameter from strict to relaxed, from plain configuration.
"""

from .build import build, check_k, expand, to_mapping
from .builtin import (
    AbsoluteThreshold,
    Additive,
    FirstRanks,
    Mars,
    Multiplicative,
    StrictGreedy,
    TopMAdditive,
    TopMMultiplicative,
    Tree,
    Typical,
)
from .rule import NO_COUNT, UNKNOWN, Cut, Rule, parameter, register

__all__ = [
    "NO_COUNT",
    "UNKNOWN",
    "AbsoluteThreshold",
    "Additive",
    "Cut",
    "FirstRanks",
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

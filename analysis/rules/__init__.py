"""Acceptance rules: the drafted tokens that are accepted, given the target's distribution.

`rule` defines a rule, `builtin` holds the rules, and `build` makes a rule from plain configuration.
"""

from .build import build, build_range, check_k, expand, to_mapping
from .builtin import (
    BUILT_IN,
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
from .rule import NO_COUNT, UNKNOWN, Cut, Rule

__all__ = [
    "BUILT_IN",
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
    "build_range",
    "check_k",
    "expand",
    "to_mapping",
]

"""Acceptance rules: which drafted tokens are accepted, given the target's distribution.

`rule` defines a rule, `builtin` and `nucleus` have the rules, `build` makes one, or a range of a
parameter from strict to relaxed, from plain configuration.
"""

from .build import build, check_k, expand, to_mapping
from .builtin import (
    AbsoluteThreshold,
    Additive,
    FirstRanks,
    Mars,
    Multiplicative,
    Prefix,
    StrictGreedy,
    TopMAdditive,
    TopMMultiplicative,
    Tree,
    Typical,
    best_path,
)
from .nucleus import Nucleus
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
    "Nucleus",
    "Prefix",
    "Rule",
    "StrictGreedy",
    "TopMAdditive",
    "TopMMultiplicative",
    "Tree",
    "Typical",
    "best_path",
    "build",
    "check_k",
    "expand",
    "parameter",
    "register",
    "to_mapping",
]

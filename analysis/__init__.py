"""The pure half of the project: arrays and tables in; arrays, tables and figures out.

Nothing here reads or writes files, uses Hydra, runs a model, or depends on a device. The names for
use at a Python prompt are imported on first access: `from analysis import TopK, certify`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .certificates.certify import certify
    from .topk import TopK

__all__ = ["RuleError", "TopK", "certify"]

_HOMES = {"TopK": ".topk", "certify": ".certificates.certify"}


class RuleError(ValueError):
    """A rule can't be applied, or fails: names the rule."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)

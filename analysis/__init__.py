"""The pure half of the project: arrays and tables in; arrays, tables and figures out.

Nothing here reads or writes files, uses Hydra, runs a model, or depends on a device. The names for
use at a Python prompt (docs/library.md) are imported on first access: `from analysis import TopK`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import rules
    from .acceptance.judgement import Steps, judge
    from .acceptance.usual_drafter import typical_acceptance
    from .certificates.certify import certify, extremal_draft
    from .statistics.prompts import prompt_bootstrap
    from .topk import TopK

_HOMES = {
    "Steps": ".acceptance.judgement",
    "TopK": ".topk",
    "certify": ".certificates.certify",
    "extremal_draft": ".certificates.certify",
    "judge": ".acceptance.judgement",
    "prompt_bootstrap": ".statistics.prompts",
    "typical_acceptance": ".acceptance.usual_drafter",
}
__all__ = [
    "RuleError", "Steps", "TopK", "certify", "extremal_draft", "judge", "prompt_bootstrap", "rules",
    "typical_acceptance",
]  # fmt: skip


class RuleError(ValueError):
    """A rule can't be applied, or fails: names the rule."""


def __getattr__(name: str) -> Any:
    if name == "rules":
        return import_module(".rules", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return __all__

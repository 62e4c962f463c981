"""The kinds of drafters. To add one, write a class in a file of this folder; list it in `KINDS`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.drafters.draft_model import DraftModel
from pipeline.drafters.drafter_base import Drafter, NeuralDrafter, TextDrafter
from pipeline.drafters.eagle3_head import Eagle3Head
from pipeline.drafters.prompt_lookup import PromptLookup

if TYPE_CHECKING:
    from conf.schema import DrafterConfig
    from pipeline.core.stage import ModelSpec

__all__ = ["KINDS", "NAMES", "Drafter", "NeuralDrafter", "TextDrafter", "kind_of", "neural_kind"]

KINDS: tuple[type[Drafter], ...] = (DraftModel, Eagle3Head, PromptLookup)
NAMES = tuple(dict.fromkeys(kind.name for kind in KINDS))  # in tables the drafters have this order


def kind_of(name: str, drafter: DrafterConfig | ModelSpec | None = None) -> type[Drafter]:
    """Return the kind called `name`; if several share a name, the one of the configured drafter."""
    kinds = [kind for kind in KINDS if kind.name == name]
    matching = [kind for kind in kinds if drafter is not None and kind.reads(drafter)]
    return (matching or kinds)[0]


def neural_kind(drafter: DrafterConfig | ModelSpec) -> type[NeuralDrafter]:
    """Return the kind of the drafter that the key `drafter` names."""
    kind = kind_of(NeuralDrafter.name, drafter)
    assert issubclass(kind, NeuralDrafter)
    return kind

"""Keeps one target and its drafter in memory between the stages of a command."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.core.stage import ModelSpec
    from pipeline.models.language_model import LanguageModel

_kept: dict[ModelSpec, LanguageModel] | None = None  # None: nothing is kept


@contextmanager
def kept_models() -> Iterator[None]:
    """Load each model only once while the context lasts, however many stages run it."""
    global _kept
    before = _kept
    _kept = {}
    try:
        yield
    finally:
        _kept = before


def load_once(spec: ModelSpec, load: Callable[[ModelSpec], LanguageModel]) -> LanguageModel:
    """Return a kept model, or load it; loading a target releases the one before and its drafter."""
    if _kept is None:
        return load(spec)
    if spec not in _kept:
        if spec.key != "drafter":
            release_models()
        _kept[spec] = load(spec)
    return _kept[spec]


def release_models() -> None:
    """Release the kept models and their memory, also the buffers of recorded passes."""
    if _kept:
        _kept.clear()
        gc.collect()

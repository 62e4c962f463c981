"""One target and its drafter, kept in memory from stage to stage of a command."""

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
    """Return a model that is kept, or load it; a target replaces another and its drafter."""
    if _kept is None:
        return load(spec)
    if spec not in _kept:
        if spec.key != "drafter":
            release_models()
        _kept[spec] = load(spec)
    return _kept[spec]


def release_models() -> None:
    """Give up what is kept, memory too: buffers of recorded passes refer to their model."""
    if _kept:
        _kept.clear()
        gc.collect()

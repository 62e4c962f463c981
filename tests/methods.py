"""Lists of methods, for tests."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.methods import Method, build_methods


def build(entries: Sequence[Mapping[str, Any]], draft_length: int | None = None) -> list[Method]:
    """Build methods from entries such as {drafter: model, rule: additive, t: 0.1, ...}."""
    named = {f"m{number}": entry for number, entry in enumerate(entries)}
    return build_methods(named, [], draft_length)


def overrides(*lines: str) -> list[str]:
    """Return the overrides that decode these methods and no others."""
    added = [f"+decoding.methods.m{number}={line}" for number, line in enumerate(lines)]
    return ["decoding=settings", *added]

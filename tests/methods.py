"""Lists of methods, for tests."""

from pipeline.settings.method_config import build_methods


def build(entries, draft_length=None):
    """Build methods from entries such as {drafter: model, rule: additive, t: 0.1, ...}."""
    named = {f"m{number}": entry for number, entry in enumerate(entries)}
    return build_methods(named, [], draft_length)


def overrides(*lines):
    """Return the overrides that decode these methods and no others."""
    added = [f"+decoding.methods.m{number}={line}" for number, line in enumerate(lines)]
    return ["decoding=settings", *added]

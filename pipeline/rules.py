"""Acceptance rules from `criteria`: one rule, or a list of them under `rules`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis import criteria
from analysis.dials import Dial, build_dial
from pipeline.errors import PipelineError


def build_rules(config: Any) -> list[criteria.Rule]:
    """Return the rules of a `criteria` configuration.

    Raises:
        PipelineError: a rule, key, type or range is wrong, or two rules are the same.
    """
    if not isinstance(config, Mapping) or not ({"rule", "rules"} & set(config)):
        raise PipelineError(
            f"criteria={config!r} is not allowed: give one rule "
            "(criteria=additive) or a list of them under `rules`"
        )
    mappings = config.get("rules", [config])
    try:
        rules = criteria.expand(mappings)
    except (ValueError, TypeError, ImportError) as error:
        raise PipelineError(f"criteria: {error}") from error
    labels = [rule.label for rule in rules]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise PipelineError(f"criteria: {', '.join(twice)} is given twice")
    return rules


def build_dials(config: list[Any]) -> list[Dial]:
    """Return the dials of acceptance.dials.

    Raises:
        PipelineError: one is not a rule with a list of values for one key.
    """
    try:
        return [build_dial(mapping) for mapping in config]
    except (ValueError, TypeError, ImportError) as error:
        raise PipelineError(f"acceptance.dials: {error}") from error

"""Methods with their rules in one line, for tests: a line gives a named rule and a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from analysis.fields import keys_of
from analysis.rules import Rule, expand
from pipeline.plan.method import Method
from pipeline.plan.methods import build_methods

OF_METHOD = keys_of(Method) - {"rule"}


def parted(entry: Mapping[str, Any], number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the rule of an entry, empty for sampling alone, and the entry with the rule's name."""
    if "rule" not in entry:
        return {}, dict(entry)
    method = {key: value for key, value in entry.items() if key in OF_METHOD}
    rule = {key: value for key, value in entry.items() if key not in OF_METHOD}
    return rule, method | {"rule": f"rule{number}"}


def build(entries: Sequence[Mapping[str, Any]], draft_length: int | None = None) -> list[Method]:
    """Build methods from entries such as {drafter: model, rule: additive, t: 0.1, ...}."""
    rules: dict[str, list[Rule]] = {}
    named = {}
    for number, entry in enumerate(entries):
        rule, named[f"m{number}"] = parted(entry, number)
        if rule:
            rules[f"rule{number}"] = expand([rule])
    return build_methods(named, rules, draft_length)


def overrides(*lines: str) -> list[str]:
    """Return the overrides that decode these methods and no others."""
    made = ["decoding=settings"]
    for number, line in enumerate(lines):
        rule, method = parted(yaml.safe_load(line), number)
        if rule:
            made.append(f"+rules.rule{number}={flow(rule)}")
        made.append(f"+decoding.methods.m{number}={flow(method)}")
    return made


def flow(mapping: Mapping[str, Any]) -> str:
    """Return a mapping as the value of an override."""
    return yaml.safe_dump(dict(mapping), default_flow_style=True, width=1e9).strip()

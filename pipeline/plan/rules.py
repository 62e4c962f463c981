"""Acceptance rules from `criteria`: one rule, or a list of them under `rules`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.report.escape import macro
from analysis.rules import Cut, Rule, Tree, expand
from analysis.rules.dials import Dial, build_dial
from analysis.topk import TopK
from pipeline.errors import PipelineError


def build_rules(config: Any, key: str = "criteria") -> list[Rule]:
    """Return the rules of a `criteria` configuration, or of another key.

    Raises:
        PipelineError: there is none, a rule, key, type or range is wrong, or two are the same.
    """
    if not key.isprintable():  # the name of a preset is printed
        raise PipelineError(f"{key!a} is not allowed: give a name on one line")
    if not isinstance(config, Mapping) or not ({"rule", "rules"} & set(config)):
        raise PipelineError(
            f"{key}={config!r} is not allowed: give one rule, {{rule: additive, t: 0.1}}, "
            "or a list of them under `rules`"
        )
    mappings = config.get("rules", [config])
    if not isinstance(mappings, list) or not mappings:
        raise PipelineError(f"{key}.rules={mappings!r} is not allowed: give at least one rule")
    try:
        rules = expand(mappings)
    except (ValueError, TypeError, ImportError) as error:
        raise PipelineError(f"{key}: {error}") from error
    labels = [rule.label for rule in rules]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise PipelineError(f"{key}: {', '.join(twice)} is given twice")
    return rules


def judged_by_logs(rule: Rule) -> bool:
    """Whether a rule can be judged by rounded log-probabilities: no raw logits, no own counts."""
    tokens = range(rule.minimum_k)
    probe = TopK.from_log_probs([tokens], [[-99.0] * rule.minimum_k], 0.0, 2**31)
    try:
        return isinstance(rule, Tree) or isinstance(rule.form(probe), Cut)
    except ValueError:
        return False


def check_names(targets: Sequence[str], rules: Sequence[Rule]) -> None:
    """Check that a report can tell everything apart by its printed name.

    Raises:
        PipelineError: two targets have one name, or two numbers one name as LaTeX macros.
    """
    twice = next((label for label in targets if targets.count(label) > 1), None)
    if twice is not None:
        raise PipelineError(
            f"targets.*.label={twice} is given to two targets: the report needs different names"
        )
    known: dict[str, str] = {}
    for target in targets:
        for rule in rules:
            name, printed = macro(target, rule.label), f"{target}, {rule.label}"
            if name in known:
                raise PipelineError(
                    f"{known[name]!r} and {printed!r} have the same letters a to z and digits, "
                    "and so one name as LaTeX macros of the report: change targets.*.label, or "
                    "the rule"
                )
            known[name] = printed


def build_dials(config: list[Any], key: str = "acceptance.dials") -> list[Dial]:
    """Return the dials of acceptance.dials, or of another key.

    Raises:
        PipelineError: one is not a rule with a list of values for one key.
    """
    for mapping in config:
        if not isinstance(mapping, Mapping):
            raise PipelineError(
                f"{key}: {mapping!r} is no dial: give a mapping, for instance "
                "{rule: additive, t: [0.1, 0.2]}"
            )
    try:
        dials = [build_dial(mapping) for mapping in config]
    except (ValueError, TypeError, ImportError) as error:
        raise PipelineError(f"{key}: {error}") from error
    names = [f"{dial.name}, {dial.parameter}" for dial in dials]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise PipelineError(f"{key}: {twice} is given twice: give it one list of values")
    return dials

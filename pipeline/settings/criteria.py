"""The rules of the key `criteria`.

`criteria` maps names to a rule or a list of rules. A list as a parameter's value stands for one
rule per value, several lists for one per combination. A file of conf/criteria puts its rules under
its own name, so `criteria=[paper,mine]` has the rules of both. Other entries, such as `criteria.t`,
are parameters that rules refer to.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from analysis.rule_config import EXAMPLE, build, expand, to_mapping
from analysis.rules import Rule, Tree
from pipeline.core.errors import PipelineError
from pipeline.core.files import file_digest


def build_rules(criteria: Any) -> tuple[list[Rule], list[Rule]]:
    """Return all rules of `criteria`, and those that methods with `rule: criteria` use.

    The second are all but the rules in a list and those that judge neither tokens nor trees.
    """
    by_name = _by_name(criteria)
    rules = [rule for built in by_name.values() for rule in built]
    labels = [rule.label for rule in rules]
    if not labels:
        raise PipelineError(f"criteria has no rule: give one, +criteria.mine='{EXAMPLE}'")
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise PipelineError(f"criteria: {', '.join(twice)} is given twice")
    single = [
        rule
        for name, built in by_name.items()
        if isinstance(criteria[name], Mapping)
        for rule in built
    ]
    return rules, [rule for rule in single if rule.judges_tokens or isinstance(rule, Tree)]


def rule_entries(rule: Rule) -> dict[str, Any]:
    """Return a rule as JSON values; a user's rule has the digest of its file, too."""
    if not rule.is_custom:
        return {"rule": to_mapping(rule)}
    return {"rule": to_mapping(rule), "source": file_digest(Path(inspect.getfile(type(rule))))}


def rules_of(entries: Sequence[Mapping[str, Any]]) -> list[Rule]:
    """Return the rules from the entries of `rule_entries` in a task's settings."""
    return [build(entry["rule"]) for entry in entries]


def judged_by_logs(rule: Rule) -> bool:
    """Whether a rule can be certified from the rounded log-probabilities of a log.

    Some built-in rules need raw logits. Of a user's rule that is not known: `certify` refuses it by
    name if it can't be certified.
    """
    counts = type(rule).accepted_count is not Rule.accepted_count
    return rule.is_custom or isinstance(rule, Tree) or not counts


def _by_name(criteria: Any) -> dict[str, list[Rule]]:
    if not isinstance(criteria, Mapping):
        raise PipelineError(
            f"criteria={criteria!r} is not allowed: give rules by name, +criteria.mine='{EXAMPLE}'"
        )
    rules = dict[str, list[Rule]]()
    others = dict[str, Any]()
    for name, entry in criteria.items():
        entries = entry if isinstance(entry, list) else [entry]
        if all(isinstance(item, Mapping) for item in entries):
            with rule_errors(f"criteria.{name}"):
                rules[name] = expand(entries)
        else:
            others[name] = entry
    used = [pair for built in rules.values() for rule in built for pair in rule.parameters.items()]
    for name, value in others.items():
        values = value if isinstance(value, list) else [value]
        if value is not None and not all((name, one) in used for one in values):
            raise PipelineError(
                f"criteria.{name}={value} is neither a rule nor a parameter that one takes: give a "
                f"rule a name, +criteria.mine='{EXAMPLE}', in a file mine: {EXAMPLE}"
            )
    return rules


@contextmanager
def rule_errors(key: str = "criteria") -> Iterator[None]:
    """Turn a ValueError about a rule into a PipelineError that names the configuration key."""
    try:
        yield
    except ValueError as error:
        raise PipelineError(f"{key}: {' '.join(str(error).split())}") from error

"""Rules and ranges from the configuration: `criteria`, `rules` and `ranges`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.fields import FieldError, check_fields, from_mapping, nearest, ranged
from analysis.rules import Cut, Rule, Tree, check_k, expand
from analysis.rules.build import ParameterRange, build_range
from analysis.topk import TopK
from conf.schema import Config
from pipeline.errors import PipelineError

CRITERIA = "criteria"  # the name of the rules of `criteria` among those of `rules`


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


def rules_by_name(config: Config, criteria: Sequence[Rule]) -> dict[str, list[Rule]]:
    """Return the rules of `rules` under their names, and those of `criteria` as "criteria".

    A grid of criteria (`criteria.rules`) is certified, not decoded: "criteria" is empty then, and
    where its rule judges neither drafted tokens nor trees.

    Raises:
        PipelineError: a rule, key, type or range is wrong.
    """
    named = {
        name: build_rules(entry, f"rules.{name}")
        for name, entry in config.rules.items()
        if entry is not None
    }
    single = isinstance(config.criteria, Mapping) and "rule" in config.criteria
    decodable = [rule for rule in criteria if rule.judges_tokens or isinstance(rule, Tree)]
    return named | {CRITERIA: decodable if single else []}


def presets_of(config: Config, named: Mapping[str, Sequence[Rule]]) -> dict[str, Rule]:
    """Return the rules of `acceptance.presets` by name.

    Raises:
        PipelineError: a name is not one of `rules`, or of several rules.
    """
    presets = {}
    for name in config.acceptance.presets:
        rules = named.get(name, [])
        if len(rules) != 1 or name == CRITERIA:
            raise PipelineError(
                f"acceptance.presets: {name} is not the name of one rule{nearest(name, named)}: "
                f"give names of `rules`: {', '.join(sorted(set(named) - {CRITERIA}))}"
            )
        presets[name] = rules[0]
    return presets


@dataclass(frozen=True)
class ConfiguredRange:
    """A rule with the range of one parameter, as `ranges` holds it.

    Attributes:
        rule: its name; the module of a user's own rule is in `fixed`.
        parameter: the one with a range.
        ends: its strictest and its most relaxed value.
        fixed: the other parameters.
    """

    rule: str
    parameter: str
    ends: list[float] = ranged("two values, strict and relaxed", lambda ends: len(ends) == 2)
    fixed: dict[str, Any] = field(default_factory=dict)


def ranges_of(config: Config, names: Iterable[str]) -> list[ParameterRange]:
    """Return the ranges of `solve.ranges` by name, by their ends.

    Raises:
        PipelineError: a name is not one of `ranges`, or a range is wrong.
    """
    ranges = []
    for name in names:
        if name not in config.ranges:
            raise PipelineError(
                f"solve.ranges: {name} is not a name of `ranges`{nearest(name, config.ranges)}: "
                f"give one of {', '.join(config.ranges)}"
            )
        where = f"ranges.{name}."
        try:
            entry = from_mapping(ConfiguredRange, config.ranges[name], where, "a range")
            check_fields(entry, where)
            mapping = {"rule": entry.rule, **entry.fixed, entry.parameter: entry.ends}
            ranges.append(build_range(mapping))
        except FieldError as error:
            raise PipelineError(str(error)) from error
        except (ValueError, TypeError, ImportError) as error:
            raise PipelineError(f"ranges.{name}: {error}") from error
    return ranges


def check_stored_tokens(rules: Iterable[Any], k: int) -> None:
    """Check that `k` stored tokens a step are enough for all rules, of whatever vocabulary.

    Raises:
        PipelineError: they are not; names the rule.
    """
    try:
        check_k(rules, k)
    except ValueError as error:
        raise PipelineError(str(error)) from error

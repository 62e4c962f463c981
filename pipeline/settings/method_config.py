"""The methods of the key `decoding.methods`, built and checked.

A rule's parameters are those of its method: ``{drafter: model, rule: additive, t: 0.1,
draft_length: 4}``. A list as a value stands for one method per value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from analysis.rule_config import TARGET, build, combinations, rule_class
from analysis.rules import Rule, Tree
from analysis.validation import check_keys, checked
from pipeline.core.errors import PipelineError
from pipeline.drafters import kind_of
from pipeline.settings.methods import (
    ALONE,
    DYNAMIC,
    OF_METHOD,
    OF_TREE,
    SAMPLINGS,
    SPECULATIVE,
    DraftTree,
    Method,
    read_tree,
)

if TYPE_CHECKING:
    pass

MAX_CRITERIA_NODES = 64  # of the draft tree of a tree rule in `criteria`
CRITERIA = "criteria"  # the rule that stands for those of `criteria`
KEY = "decoding.methods"
EXAMPLE = "{drafter: model, rule: greedy, draft_length: 4}"


def build_methods(
    entries: Any, criteria: Sequence[Rule], draft_length: int | None = None
) -> list[Method]:
    """Return the methods of `decoding.methods`; a list as a value stands for one method per item.

    Args:
        entries: `decoding.methods`; entries of null are left out.
        criteria: the rules that `rule: criteria` stands for. A method that another entry gives,
            too, is not repeated.
        draft_length: replaces that of every method, and methods that become equal become one.
            None: as configured.
    """
    by_name = entries if isinstance(entries, Mapping) else {}
    named = {name: entry for name, entry in by_name.items() if entry is not None}
    if not named:
        raise PipelineError(
            f"{KEY}: give at least one method by name, for instance +{KEY}.mine='{EXAMPLE}'"
        )
    where = dict[Method, str]()  # the key of each method
    for name in sorted(named, key=lambda name: _of_criteria(named[name])):  # `rule: criteria` last
        for method in _built(named[name], criteria, f"{KEY}.{name}"):
            if method not in where:
                where[method] = f"{KEY}.{name}"
            elif not _of_criteria(named[name]):
                raise PipelineError(f"{KEY}.{name}: {method.name} is given twice")
    if draft_length is not None:
        where = {_of_length(method, draft_length): place for method, place in where.items()}
    for method, place in where.items():
        if fault := _contradiction(method):
            raise PipelineError(f"{place}: {fault}")
    return list(where)


def _of_criteria(entry: Any) -> bool:
    return isinstance(entry, Mapping) and entry.get("rule") == CRITERIA


def _built(entry: Any, criteria: Sequence[Rule], where: str) -> Iterator[Method]:
    if not isinstance(entry, Mapping):
        raise PipelineError(f"{where}={entry!r} is not allowed: give a mapping such as {EXAMPLE}")
    try:
        for point in combinations(entry):
            if not _of_criteria(point):
                yield _method(point, where)
                continue
            del point["rule"]
            for rule in criteria:
                method = _method(point, where, rule)
                yield _of_length(method, method.draft_length)
    except ValueError as error:
        message = str(error)
        raise PipelineError(
            message if message.startswith(where) else f"{where}: {message}"
        ) from error


def _method(entry: Mapping[str, Any], where: str, rule: Rule | None = None) -> Method:
    """Return the method of an entry without lists; `rule` is used if it has none of its own."""
    of_rule = {
        key: value for key, value in entry.items() if key not in (*OF_METHOD, "tree", *OF_TREE)
    }
    kind, parameters = rule_class(of_rule) if {"rule", TARGET} & of_rule.keys() else (None, of_rule)
    names = [] if kind is None else [spec.name for spec in fields(kind)]
    check_keys(parameters, [*OF_METHOD, "rule", "tree", *OF_TREE, *names], where)
    rule = build(of_rule) if kind is not None else rule
    tree = read_tree(entry, where)
    if isinstance(rule, Tree):
        if tree is not None:
            raise ValueError("rule: tree is greedy on a symmetric tree of width m: leave out tree")
        tree = DraftTree("symmetric", rule.m)
    values = {key: entry[key] for key in OF_METHOD if key in entry}
    return checked(Method, values | {"rule": rule, "tree": tree}, where)


def _of_length(method: Method, length: int) -> Method:
    if isinstance(method.rule, Tree):
        sizes = accumulate(method.rule.m**level for level in range(1, MAX_CRITERIA_NODES + 1))
        deepest = sum(size <= MAX_CRITERIA_NODES for size in sizes)
        length = min(length, max(deepest, 1))
    return replace(method, draft_length=length)


def _contradiction(method: Method) -> str:
    """Return what is contradictory in a configured method; empty if nothing is."""
    rule = method.rule
    warm = method.temperature > 0
    if method.drafter == ALONE or method.draft_length < 1:
        return "the target alone is always decoded: give a drafter and a draft_length of at least 1"
    if (rule is None) == (method.sampling is None):
        return f"give either rule or sampling ({', '.join(SAMPLINGS)})"
    if rule is None and not warm:
        return "temperature=0 samples nothing: give a number above 0, or rule: greedy"
    if rule is not None and warm and not rule.samples:
        return (
            f"temperature={method.temperature:g} is not allowed: give 0 for a rule; above 0 only "
            "mars, speculative sampling and races are defined"
        )
    if not (rule is None or rule.judges_tokens or isinstance(rule, Tree)):
        return f"rule {rule.name} needs a tree of drafts, a method drafts a chain"
    return "" if method.tree is None else _contradiction_of_tree(method, method.tree)


def _contradiction_of_tree(method: Method, tree: DraftTree) -> str:
    if not kind_of(method.drafter).gives_logits:
        return f"drafter={method.drafter} drafts chains only: give drafter: model for a tree"
    if tree.shape == DYNAMIC and method.sampling == SPECULATIVE:
        return (
            "sampling=speculative is not lossless where nodes are chosen by what was drawn: give "
            "sampling: races, rule: greedy, or a tree of fixed shape"
        )
    try:
        if not tree.needs_drafts:
            tree.topology(method.draft_length)
    except ValueError as error:
        return str(error)
    return ""

"""Methods from `decoding.methods`: named entries of a drafter, a draft length and a rule's name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from analysis.fields import FieldError, alternatives, check_fields, from_mapping, nearest, refused
from analysis.rules import Rule, Tree
from pipeline.errors import PipelineError
from pipeline.plan.draft_trees import DYNAMIC, VECTOR, DraftTree
from pipeline.plan.method import SAMPLINGS, SPECULATIVE, Method
from pipeline.plan.rules import CRITERIA

MOST_OF_CRITERIA = 64  # nodes of the tree that verifies the tree rule of `criteria`
EXAMPLE = "{drafter: model, rule: greedy, draft_length: 4}"
Rules = Mapping[str, Sequence[Rule]]  # by the names under which methods refer to them


def build_methods(
    entries: Any, rules: Rules, draft_length: int | None = None, key: str = "decoding.methods"
) -> list[Method]:
    """Return the methods of `decoding.methods`; a list as a value gives one method for each item.

    Args:
        entries: by name, as configured; null is left out.
        rules: by name. CRITERIA stands for those of `criteria`: a method of it that is decoded
            anyway is left out.
        draft_length: `decoding.draft_length`, which replaces the draft length of every method;
            methods that differ in nothing else become one. None leaves them as they are.
        key: where they stand in the configuration, for errors.

    Raises:
        PipelineError: a key, name, type or range is wrong, or two methods are the same.
    """
    if isinstance(entries, list):
        raise PipelineError(
            f"{key} is not a list any more: give every method a name, for instance "
            f"+{key}.mine='{EXAMPLE}', where rule is a name of `rules` (+rules.mine={{rule: "
            "additive, t: 0.1}}) or criteria"
        )
    named = {name: entry for name, entry in (entries or {}).items() if entry is not None}
    if not named:
        raise PipelineError(f"{key}: give at least one method, for instance +{key}.mine={EXAMPLE}")
    methods: list[Method] = []
    last = {name: entry for name, entry in named.items() if _of_criteria(entry)}
    for name, entry in ({n: e for n, e in named.items() if n not in last} | last).items():
        where = f"{key}.{name}"
        try:
            built = list(_built(entry, rules, where))
        except FieldError as error:
            raise PipelineError(str(error)) from error
        if name in last:
            built = [method for method in built if method not in methods]
        methods += built
    for method in methods:
        if methods.count(method) > 1:
            raise PipelineError(
                f"{key}: {method.name} with draft_length={method.draft_length}, "
                f"temperature={method.temperature:g} is given twice"
            )
    if draft_length is not None:
        methods = list(dict.fromkeys(_of_length(method, draft_length) for method in methods))
    for method in methods:
        _check_drafts(method, key)
    printed = [(method.name, method.draft_length, method.temperature) for method in methods]
    for index, (name, length, temperature) in enumerate(printed):
        if (name, length, temperature) in printed[:index]:
            raise PipelineError(
                f"{key}: two methods have one printed name, {name} with draft_length="
                f"{length}, temperature={temperature:g}: decode them in separate studies"
            )
    return methods


def _of_criteria(entry: Any) -> bool:
    return isinstance(entry, Mapping) and entry.get("rule") == CRITERIA


def _built(entry: Any, rules: Rules, where: str) -> Iterator[Method]:
    """Yield the methods of one entry.

    Raises:
        FieldError, PipelineError: a key, name, type or range is wrong.
    """
    if not isinstance(entry, Mapping):
        raise PipelineError(f"{where}={entry!r} is not allowed: give a mapping such as {EXAMPLE}")
    if ("rule" in entry) == ("sampling" in entry):
        raise PipelineError(
            f"{where}: give either rule or sampling ({', '.join(SAMPLINGS)}), not both"
        )
    try:
        points = alternatives(entry, whole=[VECTOR])
    except FieldError as error:
        raise FieldError(f"{where}.{error}") from error
    for point in points:
        name = point.get("rule")
        if name is None:
            yield _method(point, None, where)
            continue
        for rule in _rules_named(name, rules, where):
            fitted = point
            if name == CRITERIA and isinstance(rule, Tree):
                fitted = point | {"draft_length": _depth(rule.m, point.get("draft_length"))}
            yield _method(fitted, rule, where)


def _rules_named(name: Any, rules: Rules, where: str) -> Sequence[Rule]:
    if isinstance(name, str) and name in rules:
        return rules[name]
    names = ", ".join(sorted(rules))
    if isinstance(name, Mapping):
        raise PipelineError(
            f"{where}.rule={dict(name)} is not allowed: give a name, and the rule under it: "
            f"+rules.NAME={dict(name)}; names are {names}"
        )
    raise PipelineError(
        f"{where}.rule={name} is not a name of `rules`{nearest(str(name), rules)}: give one of "
        f"{names}, or add it: +rules.{name}={{rule: additive, t: 0.1}}"
    )


def _of_length(method: Method, length: int) -> Method:
    fitting = _depth(method.rule.m, length) if isinstance(method.rule, Tree) else length
    return replace(method, draft_length=fitting)


def _depth(width: int, most: Any) -> Any:
    """Return the levels of a symmetric tree of at most MOST_OF_CRITERIA nodes, and at most `most`.

    >>> [_depth(m, 4) for m in (1, 2, 4, 8, 100)]
    [4, 4, 2, 1, 1]
    """
    if not isinstance(most, int):
        return most  # reported as it stands
    depth = 1
    while depth < most and sum(width**level for level in range(1, depth + 2)) <= MOST_OF_CRITERIA:
        depth += 1
    return depth


def _method(entry: dict[str, Any], rule: Rule | None, where: str) -> Method:
    """Return the method of an entry without lists.

    Raises:
        FieldError, PipelineError: a key, type or range is wrong, or keys contradict each other.
    """
    method = from_mapping(Method, entry | {"rule": rule}, f"{where}.", "a method")
    check_fields(method, f"{where}.")
    if method.tree is not None:
        method.tree.check_keys(where)
    if rule is not None and not (rule.judges_tokens or isinstance(rule, Tree)):
        raise PipelineError(
            f"{where}: rule {rule.name} needs a tree of drafts, a method drafts a chain; "
            "give another rule"
        )
    if isinstance(rule, Tree):
        if method.tree is not None:
            raise PipelineError(
                f"{where}: rule: {entry['rule']} is greedy on a symmetric tree of width m: "
                "leave out tree"
            )
        method = replace(method, tree=DraftTree("symmetric", rule.m))
    for name, value, misfit, allowed in _misfits(method):
        if misfit:
            raise refused(f"{where}.{name}", value, allowed)
    return method


def _misfits(method: Method) -> Iterator[tuple[str, Any, bool, str]]:
    """Yield keys that may contradict others: name, value, whether it does, the allowed values."""
    rule, drawn = method.rule, method.temperature > 0
    t = method.temperature
    yield ("temperature", t, rule is None and not drawn, "a number above 0: at 0 take rule: greedy")
    yield (
        "temperature",
        t,
        rule is not None and drawn and not rule.samples,
        "0 for a rule; above 0 only mars, speculative sampling and races are defined",
    )


def _check_drafts(method: Method, key: str) -> None:
    """Check that the drafts of a method can be made so and verified.

    Raises:
        PipelineError: its tree can't be drafted or verified.
    """
    tree = method.tree
    if tree is None:
        return
    where = f"{key}, tree: {tree.shape}"
    if method.drafter != "model":
        raise PipelineError(
            f"{where}: drafter={method.drafter} drafts chains only: give drafter: model"
        )
    if tree.shape == DYNAMIC and method.sampling == SPECULATIVE:
        raise PipelineError(
            f"{where}: sampling=speculative is not lossless where nodes are chosen by what was "
            "drawn: give sampling: races, rule: greedy, or a tree of fixed shape"
        )
    try:
        # sizes are checked: where R is not measured yet, any will do
        rated = tree.with_rates([1.0, *[0.0] * (tree.nodes or 0)]) if tree.needs_drafts else tree
        rated.topology(method.draft_length)
    except ValueError as error:
        raise PipelineError(f"{where}: {error}") from error

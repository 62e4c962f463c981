"""Methods from the entries of `decoding.methods`: keys, ranges and valid combinations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from analysis.fields import FieldError, check_fields, check_keys, from_mapping, refused
from analysis.rules import Prefix, Rule, Tree, build
from pipeline.errors import PipelineError
from pipeline.plan.draft_trees import DYNAMIC, KEYS, VECTOR, DraftTree, build_tree
from pipeline.plan.method import (
    BLOCK,
    BUDGET,
    BUDGETS,
    DRAFTING,
    SAMPLINGS,
    SPECULATIVE,
    Method,
    read_drafting,
)

OWN = ("drafter", "sampling", "draft_length", "model_length", "temperature", "top_p", "top_k")


def build_methods(
    entries: Any,
    draft_length: int | None = None,
    key: str = "decoding.methods",
    measured: bool = False,
) -> list[Method]:
    """Return the methods of `decoding.methods`; a list as a value stands for one method each.

    Args:
        entries: the list as configured.
        draft_length: `decoding.draft_length`, in the place of every method's own; methods that
            differ in nothing else become one. None leaves them as they are.
        key: where they stand in the configuration, for errors.
        measured: whether what stage drafts measured is at hand, for trees that depend on it.

    Raises:
        PipelineError: a key, type or range is wrong, or two methods are the same.
    """
    if not isinstance(entries, list) or not entries:
        raise PipelineError(
            f"{key}: give a list of at least one method, for instance "
            "{drafter: model, rule: greedy, draft_length: 7, temperature: 0}"
        )
    methods = []
    for at, entry in enumerate(entries):
        where = f"{key}[{at}]"
        if not isinstance(entry, Mapping):
            raise PipelineError(f"{where}={entry!r} is not allowed: give a mapping")
        for name, value in entry.items():
            if value == []:
                problem = refused(f"{where}.{name}", value, "a value, or a list of at least one")
                raise PipelineError(str(problem))
        axes = [_alternatives(key, value) for key, value in entry.items()]
        methods += [
            _build(dict(zip(entry, point, strict=True)), where)
            for point in itertools.product(*axes)
        ]
    for method in methods:
        if methods.count(method) > 1:
            raise PipelineError(
                f"{key}: {method.name} with draft_length="
                f"{method.draft_length}, temperature={method.temperature:g} is "
                "given twice"
            )
    if draft_length is not None:
        methods = [replace(method, draft_length=draft_length) for method in methods]
    methods = list(dict.fromkeys(methods))
    for method in methods:
        if method.needs_drafts and not measured:
            raise PipelineError(
                f"{key}, tree: {method.tree and method.tree.name}: the key 'acceptance' is "
                "missing: only decoding.methods may take it from stage drafts"
            )
        _check_drafts(method)
    printed = [(method.name, method.draft_length, method.temperature) for method in methods]
    for at, (name, length, temperature) in enumerate(printed):
        if printed.index(printed[at]) < at:
            raise PipelineError(
                f"decoding.methods: two methods have one printed name, {name} with draft_length="
                f"{length}, temperature={temperature:g}: decode them in separate studies"
            )
    return methods


def _alternatives(key: str, value: Any) -> list[Any]:
    """Return the values of a key, one method each: a list, but of a list of numbers lists."""
    if not isinstance(value, list):
        return [value]
    if key == VECTOR and not any(isinstance(one, list) for one in value):
        return [value]
    return value


def _check_drafts(method: Method) -> None:
    """Check that the drafts of a method can be made so and verified.

    Raises:
        PipelineError: its tree can't be drafted or verified, or its drafter can't stop by itself.
    """
    tree, rule, stops = method.tree, method.rule, method.drafting
    chained = rule is not None and not (method.lossless or isinstance(rule, Prefix))
    misfits: list[tuple[bool, str]] = []
    if tree is not None:
        drawn_nodes = tree.name == DYNAMIC and method.sampling == SPECULATIVE
        misfits += [
            (method.drafter != "model",
             f"drafter={method.drafter} drafts chains only: give drafter: model"),
            (method.sampling in (BLOCK, BUDGET),
             f"sampling={method.sampling} verifies chains only: give speculative or races, or no "
             "tree"),
            (drawn_nodes, "sampling=speculative is not lossless where nodes are chosen by what was "
             "drawn: give sampling: races, rule: greedy, or a tree of fixed shape"),
            (chained, f"rule={rule and rule.name} judges chains only: give rule: greedy, "
             "rule: tree, rule: prefix or sampling"),
        ]  # fmt: skip
    if stops is not None:
        misfits += [
            (tree is not None or method.drafter == "prompt_lookup",
             f"drafting: {stops[0]}: a model that drafts a chain can stop: give drafter: "
             "model or lookup_first, and no tree"),
            (method.sampling == BLOCK, "sampling=block tests drafts of a length that is given"),
        ]  # fmt: skip
    where = "decoding.methods" if tree is None else f"decoding.methods, tree: {tree.name}"
    for misfit, problem in misfits:
        if misfit:
            raise PipelineError(f"{where}: {problem}")
    if tree is None:
        return
    try:
        # where R is not known yet any will do: what is checked are sizes
        known = tree.with_rates([1.0, *[0.0] * (tree.nodes or 0)]) if tree.needs_drafts else tree
        known.topology(method.draft_length)
    except ValueError as error:
        raise PipelineError(f"{where}: {error}") from error


def _build(entry: dict[str, Any], where: str) -> Method:
    if ("rule" in entry) == ("sampling" in entry):
        raise PipelineError(
            f"{where}: give either rule or sampling ({', '.join(SAMPLINGS)}), not both"
        )
    own = (*OWN, *KEYS) if "tree" in entry else OWN
    own = (*own, *DRAFTING) if "drafting" in entry else own
    of_rule = {} if "sampling" in entry else {key: entry[key] for key in entry if key not in own}
    of_tree = {key: entry[key] for key in entry if key in KEYS and "tree" in entry}
    stops = {key: entry[key] for key in entry if key in DRAFTING and "drafting" in entry}
    of_budget = {key: entry[key] for key in entry if key in BUDGETS and "sampling" in entry}
    apart = {*of_rule, *of_tree, *stops, *of_budget}
    plain = {key: value for key, value in entry.items() if key not in apart}
    try:
        check_keys(plain, OWN, f"{where}.", "sampling")
        rule = _rule(of_rule, where) if of_rule else None
        tree = build_tree(of_tree, where) if of_tree else None
        if isinstance(rule, Tree):
            if tree is not None:
                raise PipelineError(
                    f"{where}: rule: tree is greedy on a symmetric tree of width m: leave out tree"
                )
            tree = DraftTree("symmetric", rule.m)
        stopping = read_drafting(stops, f"{where}.") if stops else None
        parts = {"rule": rule, "tree": tree, "drafting": stopping}
        given = from_mapping(Method, {"sampling": None, **plain, **parts}, f"{where}.", "method")
        check_fields(given, f"{where}.")
        drawn, length = given.temperature > 0, given.model_length
        nothing_drawn = "at temperature 0, where nothing is drawn"
        for name, misfit, allowed in (
            ("temperature", rule is None and not drawn, "a number above 0: at 0 take rule: greedy"),
            ("temperature", rule is not None and drawn and not rule.samples,
             "0 for a rule; above 0 only mars, speculative sampling and races are defined"),
            ("top_p", not drawn and given.top_p != 1, f"1 {nothing_drawn}"),
            ("top_k", not drawn and given.top_k != 0, f"0 {nothing_drawn}"),
            ("model_length", length is not None and given.drafter != "lookup_first",
             "nothing: it is for drafter: lookup_first, where look-up finds nothing"),
            ("model_length", (length or 0) > given.draft_length,
             f"at most draft_length={given.draft_length}"),
        ):  # fmt: skip
            if misfit:
                raise refused(f"{where}.{name}", getattr(given, name), allowed)
        return replace(given, budget=_budget(given.sampling, of_budget, where))
    except FieldError as error:
        raise PipelineError(str(error)) from error


def _budget(sampling: str | None, given: dict[str, Any], where: str) -> tuple[str, float] | None:
    """Return what sampling: budget may spend, from its one key.

    Raises:
        FieldError: there is none or more than one, it is of another sampling, or out of range.
    """
    if sampling != BUDGET:
        if given:
            only = "nothing: it is a key of sampling: budget"
            raise refused(f"{where}.{next(iter(given))}", next(iter(given.values())), only)
        return None
    if len(given) != 1:
        known = f"one of {', '.join(BUDGETS)} beside sampling: budget"
        raise refused(f"{where}.sampling", sampling, known)
    ((key, value),) = given.items()
    least, meaning = BUDGETS[key]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and least <= value < math.inf):
        raise refused(f"{where}.{key}", value, f"a number of at least {least:g}: {meaning}")
    return key, float(value)


def _rule(mapping: dict[str, Any], where: str) -> Rule:
    try:
        rule = build(mapping)
    except (ValueError, TypeError, ImportError) as error:
        raise PipelineError(f"{where}: {error}") from error
    if not (rule.judges_tokens or isinstance(rule, Tree)):
        raise PipelineError(
            f"{where}: rule {rule.name} needs a tree of drafts, a method drafts a chain; "
            "give another rule"
        )
    return rule

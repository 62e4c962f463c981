"""Decoding methods from `decoding.methods`: what drafts, what accepts, how long, how hot."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from analysis.fields import FieldError, check, from_mapping, ranged, refused
from analysis.rules import Rule, StrictGreedy, Tree, build
from analysis.trees.topology import Growth, Topology
from pipeline.errors import PipelineError
from pipeline.plan import drafting
from pipeline.plan.draft_trees import DYNAMIC, KEYS, VECTORS, DraftTree, build_tree
from pipeline.plan.drafting import Drafting, build_drafting

DRAFTERS = {
    "model": "",
    "prompt_lookup": " (prompt lookup)",
    "lookup_first": " (look-up first)",  # and where it finds nothing, the model
}
OWN = ("drafter", "sampling", "draft_length", "model_length", "temperature", "top_p", "top_k")
BASELINE = "autoregressive"
SPECULATIVE = "speculative"
RACES = "races"  # the sampling whose baseline needs noise of its own
BLOCK = "block"  # the sampling that tests a draft as a whole
SAMPLINGS = {
    SPECULATIVE: "speculative sampling",
    RACES: "exponential races",
    BLOCK: "block verification",
}


@dataclass(frozen=True)
class Method:
    """One way to decode.

    Attributes:
        drafter: model, prompt_lookup, lookup_first, or none for the baseline.
        rule: the acceptance rule, None for the baseline and for sampling alone.
        sampling: speculative, races or block, None for a rule alone; of a baseline, how the
            target chooses: races by the race of the drafting methods, None otherwise.
        draft_length: drafted tokens a call, of a tree in a row; 0 for the baseline.
        model_length: those of the model where look-up finds nothing; None is draft_length.
        temperature: 0 is greedy.
        tree: the shape of its drafts; None is a chain.
        drafting: when its drafter stops before; None is never.
        top_p: which of the most probable tokens target and drafter may choose; 1 is all.
        top_k: likewise, before top_p; 0 is all.
    """

    drafter: str
    rule: Rule | None
    sampling: str | None
    draft_length: int
    temperature: float
    tree: DraftTree | None = None
    drafting: Drafting | None = None
    top_p: float = 1.0
    top_k: int = 0
    model_length: int | None = None

    @property
    def topology(self) -> Topology | Growth | None:
        """The shape of its drafts in level order, or how it grows; None is a chain."""
        return None if self.tree is None else self.tree.topology(self.draft_length)

    @property
    def needs_drafts(self) -> bool:
        """Whether the shape of its tree hangs on what stage drafts measured."""
        return self.tree is not None and self.tree.needs_drafts

    @property
    def truncation(self) -> dict[str, float]:
        """What leaves tokens out: top_p and top_k where they do."""
        given = {"top_p": (self.top_p, 1.0), "top_k": (self.top_k, 0)}
        return {name: value for name, (value, all_in) in given.items() if value != all_in}

    @property
    def name(self) -> str:
        """The method as printed, without draft length and temperature."""
        cut = shown_truncation(self.truncation)
        if self.drafter == "none":
            return BASELINE + (f" ({SAMPLINGS[RACES]})" if self.sampling == RACES else "") + cut
        law = self.rule.label if self.rule is not None else SAMPLINGS[str(self.sampling)]
        tree = "" if self.tree is None or isinstance(self.rule, Tree) else f" ({self.tree.shown})"
        stops = "" if self.drafting is None else f" (drafting {self.drafting.shown})"
        length = "" if self.model_length is None else f" (model drafts {self.model_length})"
        return law + DRAFTERS[self.drafter] + length + tree + stops + cut

    @property
    def uses_model(self) -> bool:
        """Whether the drafter of the study drafts, always or at times."""
        return self.drafter in ("model", "lookup_first")

    @property
    def lossless(self) -> bool:
        """Whether the output is that of the target, or distributed like it."""
        return self.rule is None or isinstance(self.rule, StrictGreedy | Tree)


def shown_truncation(given: Mapping[str, float]) -> str:
    """Return top_p and top_k as printed behind a method; nothing where they leave all in.

    Example:
        >>> shown_truncation({"top_p": 0.9})
        ' (top-p 0.9)'
    """
    parts = [f"{name.replace('_', '-')} {value:g}" for name, value in given.items()]
    return f" ({', '.join(parts)})" if parts else ""


def baseline(method: Method) -> Method:
    """Return the target alone as `method` is compared with it: with the same noise.

    Races decode token for token what the target alone decodes with the same race, so they have
    a baseline of their own; all other methods of a temperature share one, and of a truncation.
    """
    races = RACES if method.sampling == RACES else None
    return Method(
        "none", None, races, 0, method.temperature, top_p=method.top_p, top_k=method.top_k
    )


def with_baselines(methods: list[Method]) -> list[Method]:
    """Return the baselines of `methods`, coldest first and each once, and then the methods."""
    alone = sorted({*map(baseline, methods)}, key=lambda one: (one.temperature, one.name))
    return [*alone, *methods]


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
        measured: whether what stage drafts measured is at hand, for trees that hang on it.

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
        _check_tree(method)
        _check_drafting(method)
    printed = [(method.name, method.draft_length, method.temperature) for method in methods]
    for at, (name, length, temperature) in enumerate(printed):
        if printed.index(printed[at]) < at:
            raise PipelineError(
                f"decoding.methods: two methods are printed alike, {name} with draft_length="
                f"{length}, temperature={temperature:g}: decode them in studies of their own"
            )
    return methods


def _alternatives(key: str, value: Any) -> list[Any]:
    """Return the values of a key, one method each: a list, but of a list of numbers lists."""
    if not isinstance(value, list):
        return [value]
    if key in VECTORS and not any(isinstance(one, list) for one in value):
        return [value]
    return value


def _check_tree(method: Method) -> None:
    """Check that the tree of a method can be drafted and verified.

    Raises:
        PipelineError: it can't.
    """
    tree = method.tree
    if tree is None:
        return
    where = f"decoding.methods, tree: {tree.name}"
    if method.drafter != "model":
        raise PipelineError(
            f"{where}: drafter={method.drafter} drafts chains only: give drafter: model"
        )
    if method.sampling == BLOCK:
        raise PipelineError(
            f"{where}: sampling=block verifies chains only: give speculative or races, or no tree"
        )
    if tree.name == DYNAMIC and method.sampling == SPECULATIVE:
        raise PipelineError(
            f"{where}: sampling=speculative is not lossless where nodes are chosen by what was "
            "drawn: give sampling: races, rule: greedy, or a tree of fixed shape"
        )
    if method.rule is not None and not method.lossless:
        raise PipelineError(
            f"{where}: rule={method.rule.name} judges chains only: give rule: greedy, rule: tree "
            "or sampling"
        )
    try:
        # where R is not known yet any will do: what is checked are sizes
        known = tree.with_rates([1.0, *[0.0] * tree.most_nodes]) if tree.needs_drafts else tree
        known.topology(method.draft_length)
    except ValueError as error:
        raise PipelineError(f"{where}: {error}") from error


def _check_drafting(method: Method) -> None:
    """Check that the drafter of a method can stop by its own measure.

    Raises:
        PipelineError: it can't.
    """
    if method.drafting is None:
        return
    where = f"decoding.methods, drafting: {method.drafting.measure}"
    if method.drafter == "prompt_lookup" or method.tree is not None:
        raise PipelineError(
            f"{where}: a model that drafts a chain can stop: give drafter: model or lookup_first, "
            "and no tree"
        )
    if method.sampling == BLOCK:
        raise PipelineError(f"{where}: sampling=block tests drafts of a length that is given")


@dataclass(frozen=True)
class _Given:
    """What an entry of `decoding.methods` says apart from its rule."""

    drafter: str = ranged(f"one of {', '.join(DRAFTERS)}", lambda value: value in DRAFTERS)
    draft_length: int = ranged(
        "an integer of at least 1; the autoregressive baseline is always decoded",
        lambda value: value >= 1,
    )
    temperature: float = ranged("a number of at least 0", lambda value: value >= 0)
    sampling: str | None = ranged(
        f"one of {', '.join(SAMPLINGS)}", lambda value: value in (None, *SAMPLINGS), default=None
    )
    top_p: float = ranged("a number in (0, 1]", lambda value: 0 < value <= 1, default=1.0)
    top_k: int = ranged("an integer of at least 0", lambda value: value >= 0, default=0)
    model_length: int | None = ranged(
        "an integer of at least 1", lambda value: value is None or value >= 1, default=None
    )


def _build(entry: dict[str, Any], where: str) -> Method:
    if ("rule" in entry) == ("sampling" in entry):
        raise PipelineError(
            f"{where}: give either rule or sampling ({', '.join(SAMPLINGS)}), not both"
        )
    own = (*OWN, *KEYS) if "tree" in entry else OWN
    own = (*own, *drafting.KEYS) if "drafting" in entry else own
    of_rule = {} if "sampling" in entry else {key: entry[key] for key in entry if key not in own}
    of_tree = {key: entry[key] for key in entry if key in KEYS and "tree" in entry}
    stops = {key: entry[key] for key in entry if key in drafting.KEYS and "drafting" in entry}
    apart = {*of_rule, *of_tree, *stops}
    plain = {key: value for key, value in entry.items() if key not in apart}
    try:
        given = from_mapping(_Given, plain, f"{where}.", "sampling")
        check(given, f"{where}.")
        rule = _rule(of_rule, where) if of_rule else None
        if rule is None:
            fits, allowed = given.temperature > 0, "a number above 0: at 0 take rule: greedy"
        else:
            fits = given.temperature == 0 or rule.samples
            allowed = "0 for a rule; above 0 only mars, speculative sampling and races are defined"
        if not fits:
            raise refused(f"{where}.temperature", given.temperature, allowed)
        for name, all_in in (("top_p", 1.0), ("top_k", 0)):
            if given.temperature == 0 and getattr(given, name) != all_in:
                only = f"{all_in:g} at temperature 0, where nothing is drawn"
                raise refused(f"{where}.{name}", getattr(given, name), only)
        if given.model_length is not None:
            if given.drafter != "lookup_first":
                only = "nothing: it is for drafter: lookup_first, where look-up finds nothing"
                raise refused(f"{where}.model_length", given.model_length, only)
            if given.model_length > given.draft_length:
                at_most = f"at most draft_length={given.draft_length}"
                raise refused(f"{where}.model_length", given.model_length, at_most)
        tree = build_tree(of_tree, where) if of_tree else None
        stopping = build_drafting(stops, where) if stops else None
    except FieldError as error:
        raise PipelineError(str(error)) from error
    if isinstance(rule, Tree):
        if tree is not None:
            raise PipelineError(
                f"{where}: rule: tree is greedy on a symmetric tree of width m: leave out tree"
            )
        tree = DraftTree("symmetric", rule.m)
    lengths = given.draft_length, given.temperature
    truncation = given.top_p, given.top_k
    return Method(
        *(given.drafter, rule, given.sampling, *lengths, tree, stopping),
        *(*truncation, given.model_length),
    )


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

"""Decoding methods from `decoding.methods`: what drafts, what accepts, how long, how hot."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from analysis.rules import Rule, StrictGreedy, build
from pipeline.errors import PipelineError

DRAFTERS = {"model": "", "prompt_lookup": " (prompt lookup)"}
SAMPLINGS = {"speculative": "speculative sampling", "races": "exponential races"}
OWN = ("drafter", "sampling", "draft_length", "temperature")
BASELINE = "autoregressive"
RACES = "races"  # the sampling whose baseline needs noise of its own


@dataclass(frozen=True)
class Method:
    """One way to decode.

    Attributes:
        drafter: model, prompt_lookup, or none for the baseline.
        rule: the acceptance rule, None for the baseline and for sampling alone.
        sampling: speculative or races, None for a rule alone; of a baseline, how the target
            chooses: races by the race of the drafting methods, None otherwise.
        draft_length: drafted tokens a call; 0 for the baseline.
        temperature: 0 is greedy.
    """

    drafter: str
    rule: Rule | None
    sampling: str | None
    draft_length: int
    temperature: float

    @property
    def name(self) -> str:
        """The method as printed, without draft length and temperature."""
        if self.drafter == "none":
            return BASELINE + (f" ({SAMPLINGS[RACES]})" if self.sampling == RACES else "")
        law = self.rule.label if self.rule is not None else SAMPLINGS[str(self.sampling)]
        return law + DRAFTERS[self.drafter]

    @property
    def lossless(self) -> bool:
        """Whether the output is that of the target, or distributed like it."""
        return self.rule is None or self.rule == StrictGreedy()


def baseline(method: Method) -> Method:
    """Return the target alone as `method` is compared with it: with the same noise.

    Races decode token for token what the target alone decodes with the same race, so they have
    a baseline of their own; all other methods of a temperature share one.
    """
    races = RACES if method.sampling == RACES else None
    return Method("none", None, races, 0, method.temperature)


def with_baselines(methods: list[Method]) -> list[Method]:
    """Return the baselines of `methods`, coldest first and each once, and then the methods."""
    alone = sorted({*map(baseline, methods)}, key=lambda one: (one.temperature, one.name))
    return [*alone, *methods]


def build_methods(entries: Any, draft_length: int | None = None) -> list[Method]:
    """Return the methods of `decoding.methods`; a list as a value stands for one method each.

    Args:
        entries: the list as configured.
        draft_length: `decoding.draft_length`, in the place of every method's own; methods that
            differ in nothing else become one. None leaves them as they are.

    Raises:
        PipelineError: a key, type or range is wrong, or two methods are the same.
    """
    if not isinstance(entries, list) or not entries:
        raise PipelineError(
            "decoding.methods: give a list of at least one method, for instance "
            "{drafter: model, rule: greedy, draft_length: 7, temperature: 0}"
        )
    methods = []
    for at, entry in enumerate(entries):
        where = f"decoding.methods[{at}]"
        if not isinstance(entry, Mapping):
            raise PipelineError(f"{where}={entry!r} is not allowed: give a mapping")
        for key, value in entry.items():
            _check(where, key, value, value != [], "a value, or a list of at least one")
        axes = [value if isinstance(value, list) else [value] for value in entry.values()]
        methods += [
            _build(dict(zip(entry, point, strict=True)), where)
            for point in itertools.product(*axes)
        ]
    for method in methods:
        if methods.count(method) > 1:
            raise PipelineError(
                f"decoding.methods: {method.name} with draft_length="
                f"{method.draft_length}, temperature={method.temperature:g} is "
                "given twice"
            )
    if draft_length is not None:
        methods = [replace(method, draft_length=draft_length) for method in methods]
    return list(dict.fromkeys(methods))


def _build(entry: dict[str, Any], where: str) -> Method:
    for key in ("drafter", "draft_length", "temperature"):
        if key not in entry:
            raise PipelineError(f"{where}: the key {key} is missing")
    if ("rule" in entry) == ("sampling" in entry):
        raise PipelineError(
            f"{where}: give either rule or sampling ({', '.join(SAMPLINGS)}), not both"
        )
    _check(
        where,
        "drafter",
        entry["drafter"],
        isinstance(entry["drafter"], str) and entry["drafter"] in DRAFTERS,
        f"one of {', '.join(DRAFTERS)}",
    )
    length, temperature = entry["draft_length"], entry["temperature"]
    _check(
        where,
        "draft_length",
        length,
        type(length) is int and length >= 1,
        "an integer of at least 1; the autoregressive baseline is always decoded",
    )
    _check(
        where,
        "temperature",
        temperature,
        type(temperature) in (int, float) and 0 <= temperature < math.inf,
        "a number of at least 0",
    )
    rule = _rule(entry, where, float(temperature)) if "rule" in entry else None
    if rule is None:
        _check(
            where,
            "sampling",
            entry["sampling"],
            isinstance(entry["sampling"], str) and entry["sampling"] in SAMPLINGS,
            f"one of {', '.join(SAMPLINGS)}",
        )
        _check(
            where,
            "temperature",
            temperature,
            temperature > 0,
            "a number above 0: at 0 take rule: greedy",
        )
        unknown = set(entry) - set(OWN)
        if unknown:
            raise PipelineError(
                f"{where}: the key {min(unknown)!r} is not known; sampling takes {', '.join(OWN)}"
            )
    return Method(entry["drafter"], rule, entry.get("sampling"), length, float(temperature))


def _rule(entry: dict[str, Any], where: str, temperature: float) -> Rule:
    try:
        rule = build({key: value for key, value in entry.items() if key not in OWN})
    except (ValueError, TypeError, ImportError) as error:
        raise PipelineError(f"{where}: {error}") from error
    if not rule.judges_tokens:
        raise PipelineError(
            f"{where}: rule {rule.name} needs a tree of drafts, a method drafts a chain; "
            "give another rule"
        )
    _check(
        where,
        "temperature",
        temperature,
        temperature == 0 or rule.samples,
        "0 for a rule; above 0 only mars, speculative sampling and races are defined",
    )
    return rule


def _check(where: str, key: str, value: Any, passes: bool, allowed: str) -> None:
    if not passes:
        raise PipelineError(f"{where}.{key}={value} is not allowed: give {allowed}")

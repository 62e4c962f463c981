"""The verdict on drafting for a target, as data: draft or not, by which method, how sure it is.

It is a pure function of the measurements; `analysis.report.verdict_sentences` says it in words.

A method is recommended only if it is lossless, an engine runs it (`engines`), and the lower end of
its interval is above 1. Intervals are simultaneous (`analysis.decoding.speed.speedups`), so the
best method can be picked after seeing them. With fewer than `FEW_PROMPTS` prompts, on a busy
machine, or if no interval is above 1 and some contain it, nothing is decided. A relaxed rule is
offered if it is surely faster than the recommended method, by the interval of their paired ratio
(`relaxed_ratios`), or than the target alone where no method is recommended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..rules import Rule, TopMAdditive, Typical
from ..statistics.bootstrap import FEW_PROMPTS

# outcomes
DRAFT = "draft"
DO_NOT = "do not draft"
OPEN = "not decided"
UNTIMED = "not measured"
# whether a drafter is faster than the target alone; or OPEN
YES = "yes"
NO = "no"
OUTCOMES = {YES: DRAFT, OPEN: OPEN, NO: DO_NOT}
# doubts
NO_METHOD = "no method"  # no lossless method that an engine runs was timed
FEW = "few prompts"
BUSY = "busy machine"
# relaxed rules that are surely faster
OFFERED = "offered"
REJECTS_NOTHING = "rejects nothing"  # it emits whatever is drafted
LOSES_ANSWERS = "loses answers"
# docs/certify.md
RULE_ENGINES: Mapping[type, str] = {TopMAdditive: "TensorRT-LLM", Typical: "Medusa"}
SETTING = ("method", "drafter", "draft_length", "temperature")  # of scored answers
Run = Mapping[Any, Any]  # a method, by the columns of `analysis.decoding.speed.speed`


@dataclass(frozen=True)
class RelaxedRule:
    """A relaxed rule beside the recommended method, or beside the target alone without one.

    Attributes:
        run: its row of `Timed.speeds`.
        ratio: its speed over that of the recommended method; None without one.
        judgement: `OFFERED`, `REJECTS_NOTHING` or `LOSES_ANSWERS`.
        scores: its row of `analysis.decoding.paired_accuracy.losses`; None if none were scored.
    """

    run: Run
    ratio: Run | None
    judgement: str
    scores: Run | None

    @property
    def surely_faster(self) -> bool:
        """Whether the interval of its speed is above 1."""
        return bool((self.ratio or self.run)["ci_low"] > 1)


@dataclass(frozen=True)
class Verdict:
    """The verdict on drafting for a target.

    Attributes:
        outcome: `DRAFT`, `DO_NOT`, `OPEN` or `UNTIMED`.
        doubt: why nothing can be decided, `NO_METHOD`, `FEW` or `BUSY`; else empty.
        methods: the compared methods, the fastest first; rows of `Timed.speeds`.
        best: the best lossless method that an engine runs; None without any.
        unsure: lossless methods that were faster than the best, but not surely.
        drafters: the best lossless method of each drafter, the study's own first, then by speed;
            with its `answer`: `YES`, `NO` or `OPEN`.
        relaxed: all relaxed rules, the fastest first; empty with a doubt.
    """

    outcome: str
    doubt: str = ""
    methods: Sequence[Run] = ()
    best: Run | None = None
    unsure: Sequence[Run] = ()
    drafters: Sequence[Run] = ()
    relaxed: Sequence[RelaxedRule] = ()

    @property
    def prompts(self) -> int:
        """The least number of prompts that a method decoded."""
        return min(int(run["prompts"]) for run in self.methods)

    @property
    def recommended(self) -> Run | None:
        """The method to draft with; None if drafting is not recommended."""
        return self.best if self.outcome == DRAFT else None


def engines(
    runs: pd.DataFrame, rules: Mapping[str, Rule], of_drafters: Mapping[str, str]
) -> list[str]:
    """Return the engines that run each method; empty for trees, races and rules of no engine.

    `rules` are those of the runs, by label. `of_drafters` are the engines that run the chains of
    each drafter, by its name in `runs`.
    """

    def engine(run: Run) -> str:
        if run["tree"] is not None or run["sampling"] == "races":
            return ""
        if run["lossless"]:
            return of_drafters.get(run["drafter"], "")
        return RULE_ENGINES.get(type(rules.get(run["rule"])), "")

    return [engine(run) for run in runs.to_dict("records")]


@dataclass(frozen=True)
class Timed:
    """The timed results of a target's methods.

    Attributes:
        speeds: the table of `analysis.decoding.speed.speed`, with the columns `engine`, which runs
            the method (`engines`), and `drafter_title`, the drafter's name in sentences.
        ratios: the table of `analysis.decoding.speed.relaxed_ratios`; runs are rows of `speeds`.
        predicted: the table of `analysis.decoding.predicted_speed.predictions`, for explanations
            only.
        busy: signs of other work on the machine (`signs_of_load`).
    """

    speeds: pd.DataFrame
    ratios: pd.DataFrame | None = None
    predicted: pd.DataFrame | None = None
    busy: Sequence[str] = ()


def decide(drafter: str, timed: Timed | None, scores: pd.DataFrame | None = None) -> Verdict:
    """Return the verdict on drafting for a target.

    Methods are compared at the lowest temperature at which an engine runs a lossless one.

    Args:
        drafter: the printed name of the study's drafter; empty without one.
        timed: the timed results; None if nothing was timed.
        scores: the table of `analysis.decoding.paired_accuracy.losses`; None if no answers were
            scored.
    """
    methods = [] if timed is None else _compared_methods(timed.speeds)
    if timed is None or not methods:
        return Verdict(UNTIMED)
    lossless = [run for run in methods if run["lossless"] and run["engine"]]
    best = _best(lossless)
    doubt = _doubt(best, methods, timed.busy)
    outcome = OPEN if best is None or doubt else OUTCOMES[_answer(best)]
    drafters = [
        {**run, "answer": OPEN if doubt else _answer(run)}
        for run in _fastest_of_drafters(lossless, drafter)
    ]
    if best is None or doubt:
        return Verdict(outcome, doubt, methods, best, drafters=drafters)
    scored = [] if scores is None else scores.to_dict("records")
    return Verdict(
        outcome,
        doubt,
        methods,
        best,
        unsure=[run for run in lossless if run["speedup"] > best["speedup"]],
        drafters=drafters,
        relaxed=[
            _relaxed_rule(run, best if outcome == DRAFT else None, timed.ratios, scored)
            for run in methods
            if not run["lossless"]
        ],
    )


def _compared_methods(speeds: pd.DataFrame) -> list[Run]:
    """Return the methods with drafts at the temperature that counts, the fastest first."""
    drafted = speeds[speeds["drafter"] != "none"]
    if drafted.empty:
        return []
    drafted = drafted.assign(run=drafted.index)
    runnable = drafted["lossless"] & (drafted["engine"] != "")
    temperature = (drafted[runnable] if runnable.any() else drafted)["temperature"].min()
    runs = drafted[drafted["temperature"] == temperature]
    rows: list[Run] = runs.sort_values("speedup", ascending=False).to_dict("records")
    return rows


def _doubt(best: Run | None, methods: Sequence[Run], busy: Sequence[str]) -> str:
    """Return why nothing can be decided; empty where something can."""
    if best is None:
        return NO_METHOD
    if any(run["prompts"] < FEW_PROMPTS for run in methods):
        return FEW
    return BUSY if busy else ""


def _answer(run: Run) -> str:
    """Return whether a method is faster than the target alone."""
    if run["ci_low"] > 1:
        return YES
    if run["ci_high"] < 1:
        return NO
    return OPEN


def _best(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Return the best method: the fastest of those whose interval is above 1.

    Without one, of those whose interval contains 1 or is undefined; else of all. `runs` are in the
    order of their speed.
    """
    ordered = [run for answer in (YES, OPEN, NO) for run in runs if _answer(run) == answer]
    return dict(ordered[0]) if ordered else None


def _fastest_of_drafters(lossless: Sequence[Run], drafter: str) -> list[dict[str, Any]]:
    """Return the `_best` method of each drafter, the study's own first, then by speed."""
    by_drafter: dict[str, list[Run]] = {}
    for run in sorted(lossless, key=lambda run: run["drafter_title"] != drafter):
        by_drafter.setdefault(run["drafter"], []).append(run)
    return [fastest for runs in by_drafter.values() if (fastest := _best(runs)) is not None]


def _relaxed_rule(
    run: Run, recommended: Run | None, ratios: pd.DataFrame | None, scored: Sequence[Run]
) -> RelaxedRule:
    """Judge a relaxed rule by its speed, by what it rejected and by its right answers."""
    ratio = None
    if recommended is not None:
        assert ratios is not None, "a relaxed rule needs its ratio to the recommended method"
        of_pair = (ratios["relaxed"] == run["run"]) & (ratios["lossless"] == recommended["run"])
        ratio = ratios[of_pair].rename(columns={"ratio": "speedup"}).to_dict("records")[0]
    scores = next((row for row in scored if all(row[key] == run[key] for key in SETTING)), None)
    judgement = OFFERED
    if run["accepted"] >= run["tested"]:
        judgement = REJECTS_NOTHING
    elif scores is not None and scores["falls"]:
        judgement = LOSES_ANSWERS
    return RelaxedRule(run, ratio, judgement, scores)

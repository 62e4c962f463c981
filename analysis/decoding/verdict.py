"""The verdict on drafting for a target: draft or not, the method, and the numbers behind it.

It is a pure function of the measurements. A method is recommended only if it is lossless, an engine
runs it (`engines`), and the lower end of its interval is above 1. Intervals are simultaneous
(`analysis.decoding.speed.speedups`), so the best method can be picked after seeing them. With fewer
than `FEW_PROMPTS` prompts, on a busy machine, or if no interval is above 1 and some contain it,
nothing is decided. A relaxed rule is offered if it is surely faster than the recommended method, by
the interval of their paired ratio (`relaxed_ratios`), or than the target alone where no method is
recommended.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..report.text import estimate_text
from ..statistics.bootstrap import FEW_PROMPTS
from ..statistics.estimate import Estimate
from .call_costs import LONGEST, Outlook
from .speed import SPEEDUP_ENDS

# outcomes
DRAFT = "draft"
DO_NOT = "do not draft"
OPEN = "not decided"
UNTIMED = "not measured"
# whether a drafter is faster than the target alone; or OPEN
YES = "yes"
NO = "no"
OUTCOMES = {YES: DRAFT, OPEN: OPEN, NO: DO_NOT}
RULE_ENGINES = {"topm_additive": "TensorRT-LLM", "typical": "Medusa"}  # docs/certify.md
SETTING = ("method", "drafter", "draft_length", "temperature")  # of scored answers
Run = Mapping[Any, Any]  # a method, by the columns of `analysis.decoding.speed.speed`


@dataclass(frozen=True)
class Advice:
    """The advice for a target, in plain sentences with numbers."""

    target: str
    outcome: str  # draft, do not draft, not decided or not measured
    sentence: str  # the verdict, ready to quote
    beside: Sequence[str]  # sentences on faster methods that are not sure, and on relaxed rules
    # the fastest lossless method of each drafter, the study's own first, then by speed: a row of
    # `speeds` of `advise` with its `answer`: yes, no or not decided
    drafters: Sequence[Run] = ()
    outlooks: Sequence[str] = ()  # of these: why each pays or not, and which draft length would


def engines(runs: pd.DataFrame, of_drafters: Mapping[str, str]) -> list[str]:
    """Return the engines that run each method; empty for trees, races and rules of no engine.

    `of_drafters` are the engines that run the chains of each drafter, by its name in `runs`.
    """

    def engine(run: Run) -> str:
        if run["tree"] is not None or run["sampling"] == "races":
            return ""
        if run["lossless"]:
            return of_drafters.get(run["drafter"], "")
        return RULE_ENGINES.get(str(run["rule"]).split()[0], "")

    return [engine(run) for run in runs.to_dict("records")]


@dataclass(frozen=True)
class Timed:
    """What a clock said of a target's methods.

    Attributes:
        speeds: of `analysis.decoding.speed.speed` with `engine`, that runs the method (`engines`),
            and `drafter_title`, how a sentence calls its drafter.
        ratios: of `analysis.decoding.speed.relaxed_ratios`, by the index of `speeds`.
        predicted: of `analysis.decoding.call_costs.predictions`; a prediction decides nothing.
        busy: signs of other work on the machine (`signs_of_load`).
    """

    speeds: pd.DataFrame
    ratios: pd.DataFrame | None = None
    predicted: pd.DataFrame | None = None
    busy: Sequence[str] = ()


def advise(
    target: str,
    drafter: str,
    timed: Timed | None,
    answers: pd.DataFrame | None = None,
    tolerated_loss: float = math.nan,
    command: str = "",
) -> Advice:
    """Return the verdict on drafting for a target.

    Methods are compared at the lowest temperature at which an engine runs a lossless one.

    Args:
        target: its printed name.
        drafter: the printed name of the study's own; empty without one.
        timed: what was timed; None if nothing was.
        answers: of `analysis.decoding.paired_accuracy.losses`; None if none were scored.
        tolerated_loss: the loss of right answers that they were compared with.
        command: that runs the study, up to a stage's name; empty if no model can be run.
    """
    drafted = pd.DataFrame()
    if timed is not None:
        drafted = timed.speeds[timed.speeds["drafter"] != "none"]
        drafted = drafted.assign(run=drafted.index)
    if timed is None or drafted.empty:
        text = f"Not measured for {target}: nothing was decoded with a drafter and timed."
        if not drafter:
            text = f"No drafter was given for {target}: certificates only."
        elif command:
            text += f" Run `{command} stage=decoding`."
        return Advice(target, UNTIMED, text, [])
    runnable = drafted["lossless"] & (drafted["engine"] != "")
    temperature = (drafted[runnable] if runnable.any() else drafted)["temperature"].min()
    runs = drafted[drafted["temperature"] == temperature].sort_values("speedup", ascending=False)
    methods = runs.to_dict("records")
    prompts = int(runs["prompts"].min())
    lossless: list[Run] = [run for run in methods if run["lossless"] and run["engine"]]
    relaxed = [run for run in methods if not run["lossless"]]
    best = _best(lossless)
    doubt = _doubt(best, prompts, timed.busy)
    outcome = OPEN if best is None or doubt else OUTCOMES[_answer(best)]
    beside = ["Not decided for relaxed rules either."] if relaxed else []
    if best is not None and not doubt:
        ahead = [run for run in lossless if run["speedup"] > best["speedup"]]
        beside = [f"Faster, but not for sure: {_unsure(run)}." for run in ahead]
        sure = best if outcome == DRAFT else None
        compared = _Compared(target, sure, _ratios_to(sure, relaxed, timed.ratios))
        beside += _relaxed(relaxed, compared, answers, tolerated_loss, command)
    how = "greedy decoding" if temperature == 0 else f"temperature {temperature:g}"
    together = ""
    if len(methods) > 1 and prompts > 1:
        together = f"; intervals hold for all {len(methods)} timed methods at once"
    verdict = _verdict(target, best, outcome, doubt)
    sentence = f"{verdict} ({_counted(prompts)}, {how}{together})."
    drafters = _fastest_of_drafters(lossless, drafter)
    answered = [run | {"answer": OPEN if doubt else _answer(run)} for run in drafters]
    predicted = timed.predicted
    outlooks = [] if predicted is None else [_outlook(run, predicted) for run in drafters]
    return Advice(target, outcome, sentence, beside, answered, list(filter(None, outlooks)))


def _doubt(best: Run | None, prompts: int, busy: Sequence[str]) -> str:
    """Return why nothing can be decided; empty where something can."""
    if best is None:
        return "no lossless method that an engine runs was timed"
    if prompts < FEW_PROMPTS:
        return f"{_counted(prompts)} of at least {FEW_PROMPTS} that are needed"
    if busy:
        return f"the machine was busy ({'; '.join(busy)}), so run it again on an idle one"
    return ""


def _counted(prompts: int) -> str:
    return "1 prompt" if prompts == 1 else f"{prompts} prompts"


def _verdict(target: str, best: Run | None, outcome: str, doubt: str) -> str:
    """Return the verdict in words, without the prompts that it comes from."""
    if best is None:
        return f"Not decided for {target}: {doubt}"
    name = best["drafter_title"]
    scheme = scheme_in_words(best)
    speed = f"{speed_text(best)} as {target} alone"
    if outcome == DRAFT:
        same = "its distribution stays" if best["temperature"] else "the text stays"
        return f"{name} pays here under {scheme}: {speed}, and {same} the same"
    if outcome == DO_NOT:
        return f"{name} does not pay here: the fastest lossless method, {scheme}, is only {speed}"
    why = f"{doubt}; {method_in_words(best)} was {speed}" if doubt else _unsure(best)
    return f"Not decided for {target}: {why}"


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
    ordered = [run for answer in OUTCOMES for run in runs if _answer(run) == answer]
    return dict(ordered[0]) if ordered else None


def _fastest_of_drafters(lossless: Sequence[Run], drafter: str) -> list[dict[str, Any]]:
    """Return the `_best` method of each drafter, the study's own first, then by speed."""
    by_drafter: dict[str, list[Run]] = {}
    for run in sorted(lossless, key=lambda run: run["drafter_title"] != drafter):
        by_drafter.setdefault(run["drafter"], []).append(run)
    return [fastest for runs in by_drafter.values() if (fastest := _best(runs)) is not None]


def _outlook(run: Run, predicted: pd.DataFrame) -> str:
    """Return why a method pays or not, and what would pay; empty where nothing was predicted."""
    found = Outlook.of(predicted, run["drafter"], run["rule"])
    if found is None or run["draft_length"] > LONGEST:
        return ""
    cost = found.estimate("cost", run["draft_length"]).value
    tokens = run["tokens_per_call"]
    length, speed = found.best()
    bound_length, bound = found.best("memory_bound")
    here = "no draft length is predicted to pay here"
    if length:
        here = f"best here, as predicted: {_drafted(length)}, {speed.value:.2f} times as fast"
    elsewhere = "nor where longer passes cost nothing"
    if bound_length:
        elsewhere = (
            f"{_drafted(bound_length)}, {bound.value:.2f} times, if longer passes cost nothing"
        )
    return (
        f"{method_in_words(run)}: a call takes as long as {cost:.2f} passes over one token here "
        f"and gives {tokens:.2f} tokens; {here}; {elsewhere}."
    )


def _drafted(length: int) -> str:
    return f"{length} drafted token{'' if length == 1 else 's'}"


def _unsure(run: Run) -> str:
    why = "is undefined" if math.isnan(run["ci_low"] + run["ci_high"]) else "contains 1"
    return f"{method_in_words(run)} was {speed_text(run)}, and its interval {why}"


@dataclass(frozen=True)
class _Compared:
    """What relaxed rules are compared with: a method that is surely faster, or the target alone."""

    target: str
    lossless: Run | None
    ratios: Mapping[int, Run]  # speed of each relaxed run over that of `lossless`

    @property
    def beaten(self) -> str:
        if self.lossless is None:
            return "not drafting"
        return method_in_words(self.lossless)

    def is_faster(self, run: Run) -> bool:
        ends = run if self.lossless is None else self.ratios[run["run"]]
        return bool(ends["ci_low"] > 1)

    def speed(self, run: Run) -> str:
        text = f"{speed_text(run)} as {self.target} alone"
        if self.lossless is not None:
            text += f", and {speed_text(self.ratios[run['run']])} as {self.beaten}"
        return text


def _ratios_to(
    lossless: Run | None, relaxed: Sequence[Run], ratios: pd.DataFrame | None
) -> dict[int, Run]:
    """Return the speed of each relaxed run over that of a lossless one."""
    if lossless is None or not relaxed:
        return {}
    assert ratios is not None, "a relaxed rule needs its ratio to the recommended method"
    rows = ratios[ratios["lossless"] == lossless["run"]]
    named = rows.rename(columns={"ratio": "speedup"})
    return {row["relaxed"]: row for row in named.to_dict("records")}


def _relaxed(
    relaxed: Sequence[Run],
    compared: _Compared,
    answers: pd.DataFrame | None,
    tolerated_loss: float,
    command: str,
) -> list[str]:
    """Return sentences on the fastest surely faster rule of each engine, or that there is none."""
    scored = [] if answers is None else answers.to_dict("records")
    texts: list[str] = []
    offered: set[str] = set()
    for run in filter(compared.is_faster, relaxed):
        name = method_in_words(run)
        speed = compared.speed(run)
        own = next((row for row in scored if all(row[key] == run[key] for key in SETTING)), None)
        when = f"If the text may change, in {run['engine']}" if run["engine"] else "In no engine"
        if run["accepted"] >= run["tested"]:
            texts.append(f"{name} rejected nothing: it emits whatever is drafted. Not offered.")
        elif own is not None and own["falls"]:
            texts.append(
                f"Avoid {name}: it was {speed}, but right answers fell from {own['alone']} to "
                f"{own['right']} of {own['items']}."
            )
        elif when not in offered:
            offered.add(when)
            texts.append(
                f"{when}: {name} was {speed}. It gives up {run['nats_given_up']:.2g} nats per "
                f"token. {_right_answers(own, tolerated_loss, command)}."
            )
    if relaxed and not texts:
        which = f"The fastest of {len(relaxed)} timed" if relaxed[1:] else "The only one timed"
        fastest = f"{method_in_words(relaxed[0])}, was"
        texts = [
            f"No relaxed rule was measurably faster than {compared.beaten}. {which}, {fastest} "
            f"{compared.speed(relaxed[0])}."
        ]
    return texts


def _right_answers(scored: Run | None, tolerated_loss: float, command: str) -> str:
    """Return what is known of the right answers with a rule, given its row of scored answers."""
    if scored is None:
        unknown = "Its right answers were not measured"
        return f"{unknown}: run `{command} stage=accuracy`" if command else unknown
    counts = f"{scored['right']} of {scored['items']} answers were right"
    judged = "excluded" if scored["within"] else "not excluded"
    loss = f"a loss of {100 * tolerated_loss:g} points is {judged}"
    return f"{counts}, {scored['alone']} without it; {loss}"


def method_in_words(run: Run) -> str:
    """Return a method as a phrase.

    >>> run = {"scheme": "additive (t = 0.1)", "drafter_title": "small", "draft_length": 4}
    >>> method_in_words(run)
    'small under additive (t = 0.1; γ = 4)'
    """
    return f"{run['drafter_title']} under {scheme_in_words(run)}"


def scheme_in_words(run: Run) -> str:
    """Return how a method verifies, with its draft length.

    >>> scheme_in_words({"scheme": "strict greedy", "draft_length": 4})
    'strict greedy (γ = 4)'
    """
    scheme = run["scheme"]
    length = f"γ = {run['draft_length']}"
    return f"{scheme[:-1]}; {length})" if scheme.endswith(")") else f"{scheme} ({length})"


def speed_text(run: Run) -> str:
    """Return a measured speed with its interval, with digits that tell an end from 1.

    >>> speed_text({"speedup": 1.1297, "ci_low": 1.0801, "ci_high": 1.1848})
    '1.13 [1.08, 1.18] times as fast'
    >>> speed_text({"speedup": 1.1297, "ci_low": 1.0012, "ci_high": 1.1848})
    '1.130 [1.001, 1.185] times as fast'
    """
    times = Estimate.read(run, "speedup", SPEEDUP_ENDS)
    return f"{estimate_text(times, apart=[1], zero_width=True)} times as fast"

"""The verdict on drafting for a target: draft or not, the method, and the numbers behind it.

It is a pure function of the measurements. Lossless methods come first, ranked by measured speed,
and one is recommended only if the lower end of its interval is above 1. A relaxed rule is offered
in addition, never instead. With fewer than `FEW_PROMPTS` prompts, on a busy machine, or if no
interval is above 1 and some contain it, nothing is decided. Intervals hold for all methods together
(`analysis.decoding.speed.speedups`), so the printed interval of the fastest method decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import pandas as pd

from ..statistics.bootstrap import FEW_PROMPTS

DRAFT, DO_NOT, OPEN, UNTIMED = "draft", "do not draft", "not decided", "not measured"
YES, NO = "yes", "no"  # is a drafter faster than the target alone; or OPEN
DRAFTERS = ("model", "prompt_lookup")  # in the order of the headline
SETTING = ("method", "drafter", "draft_length", "temperature")  # of scored answers
Run = Mapping[str, Any]


@dataclass(frozen=True)
class Advice:
    """The advice for a target, in plain sentences with numbers.

    Attributes:
        target: printed name.
        outcome: draft, do not draft, not decided or not measured.
        sentence: the verdict, ready to quote.
        beside: sentences on relaxed rules.
        run: the fastest lossless method, a row of `analysis.decoding.speed.speed`; None if there
            is none.
        drafters: the fastest lossless method of each drafter, the study's own drafter first, with
            its `answer`: yes, no or not decided.
        methods: the timed lossless methods and the target alone, by measured speed.
        headline: the answer for each drafter by name.
    """

    target: str
    outcome: str
    sentence: str
    beside: Sequence[str]
    _: KW_ONLY
    run: Run | None = None
    drafters: Sequence[Run] = ()
    methods: Sequence[Run] = ()
    headline: str = "No verdict on speed"


def advise(
    target: str,
    drafter: str,
    speeds: pd.DataFrame | None,
    answers: pd.DataFrame | None = None,
    margin: float = math.nan,
    busy: Sequence[str] = (),
    command: str = "",
) -> Advice:
    """Return the verdict on drafting for a target.

    Methods are compared at the lowest temperature with a drafter.

    Args:
        target: printed name.
        drafter: printed name; empty without a drafter.
        speeds: rows of `analysis.decoding.speed.speed` with `lossless`; None if nothing was timed.
        answers: rows of `analysis.decoding.answers.losses`; None if no answers were scored.
        margin: the loss of right answers that they were compared with.
        busy: signs of other work on the machine (`signs_of_load`).
        command: runs the study, up to a stage's name; empty if no model can be run.
    """
    drafted = None if speeds is None else speeds[speeds["drafter"] != "none"]
    if speeds is None or drafted is None or drafted.empty:
        how = f" Run `{command} stage=decoding`." if command and drafter else ""
        text = f"Not measured for {target}: nothing was decoded with a drafter and timed.{how}"
        return Advice(target, UNTIMED, text, [])
    runs = drafted[drafted["temperature"] == drafted["temperature"].min()]
    methods: list[Run] = runs.sort_values("speedup", ascending=False).to_dict("records")
    lossless = [run for run in methods if run["lossless"]]
    relaxed = [run for run in methods if not run["lossless"]]
    sure, unsure = _answered(lossless, YES), _answered(lossless, OPEN)
    best = _best(lossless)
    prompts, temperature = int(runs["prompts"].min()), float(runs["temperature"].iloc[0])
    doubt = _doubt(lossless, prompts, busy)
    outcome = OPEN if doubt or (unsure and not sure) else DRAFT if sure else DO_NOT
    how = "greedy decoding" if temperature == 0 else f"temperature {temperature:g}"
    together = f"; intervals of all {len(methods)} methods together" if len(methods) > 1 else ""
    basis = f"({prompts} prompts, {how}{together})"
    text = f"Not decided for {target}: {doubt}"
    if best is not None:
        same = "the text" if temperature == 0 else "the distribution of the text"
        name, speed = method_in_words(best, drafter), f"{speed_text(best)} as {target} alone"
        text = {
            DRAFT: f"Draft for {target} with {name}: {speed}, and {same} stays"
            + (" the same" if temperature == 0 else ""),
            DO_NOT: f"Do not draft for {target} here: {name}, the fastest lossless method, is only "
            f"{speed}",
            OPEN: f"{text}{'; ' if doubt else ''}{name} was {speed}"
            + ("" if doubt else f", {_undecided(best)}"),
        }[outcome]
    beside: list[str] = []
    if not doubt:
        ahead = [run for run in unsure if best is not None and run["speedup"] > best["speedup"]]
        beside = [
            *(_faster_yet_unsure(run, drafter) for run in ahead),
            *_relaxed(relaxed, best if sure else None, drafter, answers, margin, command),
        ]
    alone = {"drafter": "none", "method": "the target alone", "speedup": 1.0}
    ranked = sorted([*lossless, alone], key=lambda run: -run["speedup"])
    of_drafters = [
        own | {"answer": OPEN if doubt else _answer(own)}
        for kind in DRAFTERS
        if (own := _best([run for run in lossless if run["drafter"] == kind])) is not None
    ]
    parts = [
        f"{drafter_in_words(run, drafter)}: {run['answer']}, {run['speedup']:.2f} times as fast"
        for run in of_drafters
    ]
    headline = "; ".join(parts) or "No lossless method was timed"
    sentence = f"{text} {basis}."
    return Advice(
        target,
        outcome,
        sentence,
        beside,
        run=best,
        drafters=of_drafters,
        methods=ranked,
        headline=headline,
    )


def _answer(run: Run) -> str:
    return YES if run["ci_low"] > 1 else NO if run["ci_high"] < 1 else OPEN


def _answered(runs: Sequence[Run], answer: str) -> list[Run]:
    return [run for run in runs if _answer(run) == answer]


def _best(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Return the first method, of several by speed, that is surely faster, else may be, else is."""
    ordered = [*_answered(runs, YES), *_answered(runs, OPEN), *runs]
    return dict(ordered[0]) if ordered else None


def advice_text(advice: Sequence[Advice]) -> str:
    """Return verdicts as text: a paragraph for each target, with a list of further sentences."""
    blocks = [
        "\n".join([target_advice.sentence, *(f"- {text}" for text in target_advice.beside)])
        for target_advice in advice
    ]
    return "\n\n".join(blocks) + "\n"


def _undecided(run: Run) -> str:
    if math.isnan(run["ci_low"]) or math.isnan(run["ci_high"]):
        return "and its interval is undefined"
    return "and the interval contains 1"


def _faster_yet_unsure(run: Run, drafter: str) -> str:
    return (
        f"Faster, but not for sure: {method_in_words(run, drafter)} was {speed_text(run)}, "
        f"{_undecided(run)}."
    )


def _doubt(lossless: Sequence[Run], prompts: int, busy: Sequence[str]) -> str:
    """Return the reason why no decision is possible; empty if one is."""
    if not lossless:
        return "no lossless method was timed"
    if prompts < FEW_PROMPTS:
        return f"{prompts} prompts are fewer than {FEW_PROMPTS}"
    return f"the machine was busy ({'; '.join(busy)})" if busy else ""


def _relaxed(
    relaxed: Sequence[Run],
    lossless: Run | None,
    drafter: str,
    answers: pd.DataFrame | None,
    margin: float,
    command: str,
) -> list[str]:
    """Return sentences on the fastest relaxed rule, and on rules that lost right answers.

    A rule is faster if its interval lies above 1, and above that of the `lossless` method that is
    surely faster than not drafting, None if there is none.
    """
    least = 1.0 if lossless is None else lossless["ci_high"]
    faster = [run for run in relaxed if run["ci_low"] > least]
    texts, offered = list[str](), False
    for run in faster:
        name, speed = method_in_words(run, drafter), speed_text(run)
        scores, exact = _on_answers(run, answers)
        if run["accepted"] >= run["tested"]:
            texts.append(f"{name} rejected nothing: it emits whatever is drafted. Not offered.")
        elif scores is not None and exact and scores["falls"]:
            texts.append(
                f"Avoid {name}: it was {speed}, but right answers fell from "
                f"{scores['alone']} to {scores['right']} of {scores['items']}."
            )
        elif not offered:
            offered = True
            right = _answers(scores, exact, margin, command)
            texts.append(
                f"If the text may change: {name} was {speed}. It gives up "
                f"{run['nats_given_up']:.2g} nats per token. {right}"
            )
    beaten = "not drafting" if lossless is None else "the lossless method"
    none = [f"No relaxed rule was measurably faster than {beaten}."] if relaxed else []
    return texts or none


def _on_answers(run: Run, answers: pd.DataFrame | None) -> tuple[Run | None, bool]:
    """Return the scores of a run, else of its rule elsewhere, and whether they are its own.

    Another setting has the same rule and temperature, and the nearest draft length.
    """
    rows = list[Run]()
    if answers is not None:
        rows += [
            dict(zip(map(str, row), row.values(), strict=True))
            for row in answers.to_dict("records")
        ]
    own = [row for row in rows if all(row[key] == run[key] for key in SETTING)]
    if own:
        return own[0], True
    others = [row for row in rows if all(row[key] == run[key] for key in ("rule", "temperature"))]
    return min(
        others, key=lambda row: abs(row["draft_length"] - run["draft_length"]), default=None
    ), False


def _answers(scores: Run | None, exact: bool, margin: float, command: str) -> str:
    if scores is None:
        how = f": run `{command} stage=accuracy`" if command else ""
        return f"Its right answers were not measured{how}."
    right = f"{scores['right']} of {scores['items']} answers were right, {scores['alone']} without"
    points = f"a loss of {100 * margin:g} points"
    judged = "excluded" if scores["within"] else "not excluded"
    text = f"{right} it; {points} is {judged}."
    if exact:
        return text
    fell = " Accuracy fell measurably." if scores["falls"] else ""
    setting = f"{scores['method']}, γ = {scores['draft_length']}"
    return f"Its right answers were not measured. With {setting}: {text}{fell}"


def method_in_words(run: Run, drafter: str) -> str:
    """Return a method as a phrase.

    Args:
        run: its drafter, draft_length and scheme.
        drafter: printed name.

    Examples:
        >>> run = {"scheme": "strict greedy", "drafter": "prompt_lookup", "draft_length": 5}
        >>> method_in_words(run, "small")
        'prompt look-up under strict greedy (γ = 5)'
        >>> run = {"scheme": "additive (t = 0.1)", "drafter": "model", "draft_length": 4}
        >>> method_in_words(run, "small")
        'small under additive (t = 0.1; γ = 4)'
    """
    scheme, length = run["scheme"], f"γ = {run['draft_length']}"
    with_length = f"{scheme[:-1]}; {length})" if scheme.endswith(")") else f"{scheme} ({length})"
    return f"{drafter_in_words(run, drafter)} under {with_length}"


def drafter_in_words(run: Run, drafter: str) -> str:
    """Return the printed name of a method's drafter; `drafter` is that of the study's model."""
    return "prompt look-up" if run["drafter"] == "prompt_lookup" else drafter


def speed_text(run: Run) -> str:
    """Return a measured speed with its interval, with digits that tell an end from 1.

    >>> speed_text({"speedup": 1.1297, "ci_low": 1.0801, "ci_high": 1.1848})
    '1.13 [1.08, 1.18] times as fast'
    >>> speed_text({"speedup": 1.1297, "ci_low": 1.0012, "ci_high": 1.1848})
    '1.130 [1.001, 1.185] times as fast'
    """
    ends = [run["speedup"], run["ci_low"], run["ci_high"]]
    if any(map(math.isnan, ends[1:])):
        return f"{ends[0]:.2f} times as fast"
    close = any(abs(end - 1) < 0.005 and end != 1 for end in ends)
    value, low, high = (f"{end:.{3 if close else 2}f}" for end in ends)
    return f"{value} [{low}, {high}] times as fast"

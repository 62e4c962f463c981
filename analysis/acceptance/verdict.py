"""The verdict on drafting for a target: whether to draft, how, and the numbers behind it.

One pure function of what was measured. Lossless methods come first, ranked by measured speed and
named only where the interval's lower end is above 1. A relaxed rule is offered beside them, never
instead. With fewer than `FEW_PROMPTS` prompts, on a busy machine, or where an interval contains 1,
nothing is decided.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..statistics.bootstrap import FEW_PROMPTS

DRAFT, DO_NOT, OPEN, UNTIMED = "draft", "do not draft", "not decided", "not measured"
Run = Mapping[str, Any]


@dataclass(frozen=True)
class Advice:
    """What is advised for a target, in plain words with numbers.

    Attributes:
        target: printed name.
        outcome: draft, do not draft, not decided or not measured.
        sentence: the verdict, to be pasted.
        beside: sentences about relaxed rules, what would have to change, and predictions.
        run: the fastest lossless method, a row of `analysis.decoding.speed.speed`; None without.
        methods: the lossless methods that were timed, and the target alone, by measured speed.
    """

    target: str
    outcome: str
    sentence: str
    beside: Sequence[str]
    run: Run | None = None
    methods: Sequence[Run] = ()


def advise(
    target: str,
    drafter: str,
    speeds: pd.DataFrame | None,
    lengths: pd.DataFrame | None = None,
    answers: pd.DataFrame | None = None,
    busy: Sequence[str] = (),
    command: str = "",
) -> Advice:
    """Say whether to draft for a target, and how.

    Methods are compared at the lowest temperature at which something was drafted.

    Args:
        target: printed name.
        drafter: printed name; empty without one.
        speeds: rows of `analysis.decoding.speed.speed` with `lossless`; None if nothing was timed.
        lengths: rows of `analysis.decoding.predicted.draft_lengths`.
        answers: scored answers under relaxed rules, a row a run: rule (label), temperature,
            draft_length, items, right, alone (right without it), margin, up_to (a loss of `margin`
            is excluded) and down_to (accuracy fell); None where no answers were scored.
        busy: signs that the machine did other work meanwhile (`signs_of_load`).
        command: that runs the study, up to a stage's name; empty where no model can be run.
    """
    drafted = None if speeds is None else speeds[speeds["drafter"] != "none"]
    if speeds is None or drafted is None or drafted.empty:
        how = f" Run `{command} stage=decoding`." if command and drafter else ""
        said = f"Not measured for {target}: nothing was decoded with a drafter and timed.{how}"
        return Advice(target, UNTIMED, said, [])
    runs = drafted[drafted["temperature"] == drafted["temperature"].min()]
    methods: list[Run] = runs.sort_values("speedup", ascending=False).to_dict("records")
    lossless = [run for run in methods if run["lossless"]]
    relaxed = [run for run in methods if not run["lossless"]]
    sure = [run for run in lossless if run["ci_low"] > 1]
    unsure = [run for run in lossless if run["ci_low"] <= 1 <= run["ci_high"]]
    best = next(iter([*sure, *unsure, *lossless]), None)
    prompts, at = int(runs["prompts"].min()), float(runs["temperature"].iloc[0])
    doubt = _doubt(lossless, prompts, busy)
    outcome = OPEN if doubt or (unsure and not sure) else DRAFT if sure else DO_NOT
    how = "greedy decoding" if at == 0 else f"temperature {at:g}"
    basis = f"({prompts} prompts, {how}{_picked(lossless, 'lossless methods')})"
    said = f"Not decided for {target}: {doubt}"
    if best is not None:
        text = "the text stays the same" if at == 0 else "the distribution of the text stays"
        name, speed = method_in_words(best, drafter), f"{speed_text(best)} as {target} alone"
        said = {
            DRAFT: f"Draft for {target} with {name}: {speed}, and {text}",
            DO_NOT: f"Do not draft for {target} here: {name}, the fastest lossless method, is only "
            f"{speed}",
            OPEN: f"{said}{'; ' if doubt else ''}{name} was {speed}"
            + ("" if doubt else ", and the interval contains 1"),
        }[outcome]
    beside = [*_needed(lossless, drafter, outcome), *_predicted(best, lengths, outcome)]
    if not doubt:
        beside = [*_relaxed(relaxed, sure, drafter, answers, command), *beside]
    alone = {"drafter": "none", "method": "the target alone", "speedup": 1.0}
    ranked = sorted([*lossless, alone], key=lambda run: -run["speedup"])
    return Advice(target, outcome, f"{said} {basis}.", beside, best, ranked)


def _picked(runs: Sequence[Run], what: str) -> str:
    """Warn that the interval of the best of several is optimistic, where there are several."""
    if len(runs) < 2:
        return ""
    return f"; picked as the fastest of {len(runs)} {what}, so its interval is optimistic"


def _doubt(lossless: Sequence[Run], prompts: int, busy: Sequence[str]) -> str:
    """Return why no decision is possible, whatever the intervals; empty if one is."""
    if not lossless:
        return "no lossless method was timed"
    if prompts < FEW_PROMPTS:
        return f"{prompts} prompts are fewer than {FEW_PROMPTS}"
    return f"the machine was busy ({'; '.join(busy)})" if busy else ""


def _needed(lossless: Sequence[Run], drafter: str, outcome: str) -> list[str]:
    """Give the acceptance rate from which the drafter's own chains pay, where they may not."""
    chains = [run for run in lossless if not math.isnan(run["predicted"])]  # by the model
    if not chains or (outcome == DRAFT and any(run["ci_low"] > 1 for run in chains)):
        return []
    able = [run for run in chains if not math.isnan(run["least"])]
    if not able:
        return [
            f"At the measured costs {drafter} cannot pay off: drafting would be slower than not "
            "drafting even if every drafted token were accepted."
        ]
    run = min(able, key=lambda run: run["least"] - run["rate"])
    return [
        f"At the measured costs {drafter} with γ = {run['draft_length']} pays off once "
        f"{100 * run['least']:.0f} % of the tested tokens are accepted; {100 * run['rate']:.0f} % "
        "were."
    ]


def _predicted(best: Run | None, lengths: pd.DataFrame | None, outcome: str) -> list[str]:
    """Name a draft length that was not measured, where it is predicted to be faster."""
    if lengths is None or best is None or outcome == OPEN:
        return []
    mine = lengths[(lengths["temperature"] == best["temperature"])].to_dict("records")
    return [
        f"Predicted, not measured: {one['method']} with γ = {one['predicted']} would be "
        f"{one['predicted_speedup']:.2f} times as fast as not drafting."
        for one in mine
        if one["method"] == best["method"]
        and one["predicted_speedup"] > max(1, best["speedup"])
        and str(one["predicted"]) not in one["tried"].split(", ")
    ]


def _relaxed(
    relaxed: Sequence[Run],
    sure: Sequence[Run],
    drafter: str,
    answers: pd.DataFrame | None,
    command: str,
) -> list[str]:
    """Offer the fastest relaxed rule, and name those whose answers were worse.

    A rule that rejected nothing is not offered: it would keep whatever is drafted.
    """
    least = sure[0]["speedup"] if sure else 1.0
    faster = [run for run in relaxed if run["ci_low"] > 1 and run["speedup"] > least]
    said, offered = list[str](), False
    picked = _picked(relaxed, "relaxed rules")
    for run in faster:
        name, found = method_in_words(run, drafter), _on_answers(run, answers)
        if run["accepted"] >= run["tested"]:
            said.append(f"{name} rejected nothing: it emits whatever is drafted. Not offered.")
        elif found is not None and found["down_to"]:
            said.append(
                f"Avoid {name}: it was {speed_text(run)}, but right answers fell from "
                f"{found['alone']} to {found['right']} of {found['items']}."
            )
        elif not offered:
            offered = True
            than = f" instead of {least:.2f}" if sure else ""
            said.append(
                f"If the text may change: {name} was {speed_text(run)}{than}{picked}. It gives up "
                f"{run['given_up']:.2g} nats per token. "
                f"{_answers(found, command)}"
            )
    beaten = "the lossless method" if sure else "not drafting"
    none = [f"No relaxed rule was measurably faster than {beaten}."] if relaxed else []
    return said or none


def _on_answers(run: Run, answers: pd.DataFrame | None) -> Run | None:
    if answers is None:
        return None
    at = (answers["rule"] == run["rule"]) & (answers["temperature"] == run["temperature"])
    rows: list[Run] = answers[at].to_dict("records")
    near = sorted(rows, key=lambda row: abs(row["draft_length"] - run["draft_length"]))
    return near[0] if near else None


def _answers(found: Run | None, command: str) -> str:
    if found is None:
        how = f": run `{command} stage=accuracy`" if command else ""
        return f"Its right answers were not measured{how}."
    right = f"{found['right']} of {found['items']} answers were right, {found['alone']} without it"
    points = f"a loss of {100 * found['margin']:g} points"
    return f"{right}; {points} is {'excluded' if found['up_to'] else 'not excluded'}."


def method_in_words(run: Run, drafter: str) -> str:
    """Return a method in words.

    >>> run = {"method": "Strict greedy, prompt lookup", "drafter": "prompt_lookup"}
    >>> method_in_words({**run, "draft_length": 5}, "small")
    'prompt look-up under strict greedy (γ = 5)'
    >>> run = {"method": "Additive (t = 0.1), look-up first", "drafter": "lookup_first"}
    >>> method_in_words({**run, "draft_length": 4}, "small")
    'look-up first, else small, under additive (t = 0.1; γ = 4)'
    >>> method = "Strict greedy, look-up first, model drafts 2, drafting max_q threshold=0.3"
    >>> method_in_words({**run, "method": method, "draft_length": 4}, "small")
    'look-up first (γ = 4), else small (γ = 2), under strict greedy, drafting max_q threshold=0.3'
    >>> method = "Speculative sampling (look-up first) (model drafts 2) (top-p 0.9)"
    >>> method_in_words({**run, "method": method, "draft_length": 4}, "small")
    'look-up first (γ = 4), else small (γ = 2), under speculative sampling (top-p 0.9)'
    >>> run = {"method": "Medusa (ε₀ = 0.1)", "drafter": "model", "draft_length": 4}
    >>> method_in_words(run, "small")
    'small under Medusa (ε₀ = 0.1; γ = 4)'
    """
    law = re.sub(r",? \(?(prompt lookup|look-up first)\)?", "", str(run["method"]))
    law, *own = re.split(r",? \(?model drafts (\d+)\)?", law)
    is_name = law[:2].isupper() or law.startswith("Medusa")
    law = law if is_name else law[:1].lower() + law[1:]
    length = f"γ = {run['draft_length']}"
    if own:
        return f"look-up first ({length}), else {drafter} (γ = {own[0]}), under {law}{own[1]}"
    who = {"prompt_lookup": "prompt look-up", "lookup_first": f"look-up first, else {drafter},"}
    with_length = f"{law[:-1]}; {length})" if law.endswith(")") else f"{law} ({length})"
    return f"{who.get(run['drafter'], drafter)} under {with_length}"


def speed_text(run: Run) -> str:
    """Return a measured speed with its interval, in enough digits to tell an end from 1.

    >>> speed_text({"speedup": 1.1297, "ci_low": 1.0801, "ci_high": 1.1848})
    '1.13 [1.08, 1.18] times as fast'
    >>> speed_text({"speedup": 1.1297, "ci_low": 1.0012, "ci_high": 1.1848})
    '1.130 [1.001, 1.185] times as fast'
    """
    ends = [run["speedup"], run["ci_low"], run["ci_high"]]
    close = any(abs(end - 1) < 0.005 and end != 1 for end in ends)
    value, low, high = (f"{end:.{3 if close else 2}f}" for end in ends)
    return f"{value} [{low}, {high}] times as fast"

"""The verdict of `analysis.decoding.verdict` in sentences: whether drafting pays for a target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from ..acceptance.guarantees import certified_by_greedy, guaranteed_per_call
from ..acceptance.target import Target
from ..decoding.metrics import CONFIGURED, Decoded
from ..decoding.predicted_speed import MethodOutlook
from ..decoding.speed import SPEEDUP_ENDS
from ..decoding.verdict import (
    BUSY,
    DO_NOT,
    DRAFT,
    FEW,
    LOSES_ANSWERS,
    NO_METHOD,
    REJECTS_NOTHING,
    UNTIMED,
    RelaxedRule,
    Run,
    Timed,
    Verdict,
    decide,
)
from ..statistics.bootstrap import FEW_PROMPTS
from ..statistics.estimate import Estimate
from .results import ASSUMED_KL
from .text import estimate_text, number_text, percent_text

DRAFT_LENGTHS = (1, 2, 4, 8)  # compared in the verdict on a log


@dataclass(frozen=True)
class Advice:
    """The advice for a target, in plain sentences with numbers.

    Attributes:
        target: its printed name.
        outcome: `DRAFT`, `DO_NOT`, `OPEN` or `UNTIMED` of `analysis.decoding.verdict`.
        sentence: the verdict, ready to quote.
        beside: sentences on methods that may be faster, and on relaxed rules.
        drafters: of `analysis.decoding.verdict.Verdict`.
        outlooks: a sentence for each drafter: why it pays or not, and at which draft length.
    """

    target: str
    outcome: str
    sentence: str
    beside: Sequence[str]
    drafters: Sequence[Run] = ()
    outlooks: Sequence[str] = ()


def advise(
    target: str,
    drafter: str,
    timed: Timed | None,
    answers: pd.DataFrame | None = None,
    tolerated_loss: float = math.nan,
    command: str = "",
) -> Advice:
    """Return the verdict on drafting for a target, in sentences.

    Args:
        target: its printed name.
        drafter: the printed name of the study's own; empty without one.
        timed: what was timed; None if nothing was.
        answers: of `analysis.decoding.paired_accuracy.losses`; None if none were scored.
        tolerated_loss: the loss of right answers that they were compared with.
        command: that runs the study, up to a stage's name; empty if no model can be run.
    """
    verdict = decide(drafter, timed, answers)
    if timed is None or verdict.outcome == UNTIMED:
        return Advice(target, UNTIMED, _untimed(target, drafter, command), [])
    beside = [f"Faster, but not for sure: {_unsure(run)}." for run in verdict.unsure]
    if not verdict.doubt:
        beside += _relaxed(target, verdict, tolerated_loss, command)
    elif not all(run["lossless"] for run in verdict.methods):
        beside = ["Not decided for relaxed rules either."]
    sentence = f"{_verdict(target, verdict, timed.busy)} ({_basis(verdict)})."
    outlooks = [_outlook(run, timed.predicted) for run in verdict.drafters]
    if verdict.doubt == BUSY:
        outlooks = [_signs_of_load(timed.busy)]
    return Advice(
        target, verdict.outcome, sentence, beside, verdict.drafters, list(filter(None, outlooks))
    )


def _untimed(target: str, drafter: str, command: str) -> str:
    if not drafter:
        return f"No drafter was given for {target}: certificates only."
    text = f"Not measured for {target}: nothing was decoded with a drafter and timed."
    return f"{text} Run `{command} stage=decoding`." if command else text


def _verdict(target: str, verdict: Verdict, busy: Sequence[str]) -> str:
    """Return the verdict in words, without what it was measured on."""
    doubts = {
        "": "",
        NO_METHOD: "no lossless method that an engine runs was timed",
        FEW: f"{_counted(verdict.prompts)} of at least {FEW_PROMPTS} that are needed",
        BUSY: f"the machine was busy ({', '.join(busy[:1])}), so time it again on an idle one",
    }
    doubt = doubts[verdict.doubt]
    best = verdict.best
    if best is None:
        return f"Not decided for {target}: {doubt}"
    name = best["drafter_title"]
    scheme = scheme_in_words(best)
    speed = f"{speed_text(best)} as {target} alone"
    if verdict.outcome == DRAFT:
        same = "its distribution stays" if best["temperature"] else "the text stays"
        return f"{name} pays here under {scheme}: {speed}, and {same} the same"
    if verdict.outcome == DO_NOT:
        return f"{name} does not pay here: the fastest lossless method, {scheme}, is only {speed}"
    why = f"{doubt}; {method_in_words(best)} was {speed}" if doubt else _unsure(best)
    return f"Not decided for {target}: {why}"


def _basis(verdict: Verdict) -> str:
    """Return what a verdict was measured on: prompts, temperature, number of methods."""
    temperature = verdict.methods[0]["temperature"]
    how = "greedy decoding" if temperature == 0 else f"temperature {temperature:g}"
    text = f"{_counted(verdict.prompts)}, {how}"
    methods = len(verdict.methods)
    if methods > 1 and verdict.prompts > 1:
        which = "both" if methods == 2 else f"all {methods}"
        text += f"; intervals hold for {which} timed methods at once"
    return text


def _counted(prompts: int) -> str:
    return "1 prompt" if prompts == 1 else f"{prompts} prompts"


def _signs_of_load(busy: Sequence[str]) -> str:
    """Return what showed that the machine was busy, and how to time the methods again."""
    return (
        f"Signs of other work on the machine: {'; '.join(busy)}. So no time here is sure, and no "
        "speed that is predicted from it. To time again, delete `artifacts/decoding` and "
        "`artifacts/report` in the directory of outputs, and run the same command."
    )


def _outlook(run: Run, predicted: pd.DataFrame | None) -> str:
    """Return why a method pays or not, and what would pay; empty where nothing was predicted."""
    outlook = MethodOutlook.of(predicted, run)
    if math.isnan(outlook.cost.value):
        return ""
    here = "no draft length is predicted to pay here"
    if outlook.best_length:
        length = _drafted(outlook.best_length)
        times = f"{outlook.best_speed:.2f} times as fast"
        here = f"best here after the first token, as predicted: {length}, {times}"
    elsewhere = "nor where longer passes cost nothing"
    if outlook.bound_length:
        best = (
            f"best with {_drafted(outlook.bound_length)}, {outlook.bound_speed:.2f} times as fast"
        )
        elsewhere = f"if longer passes cost nothing, {best}"
    return (
        f"{method_in_words(run)}: a call takes as long as {outlook.cost.value:.2f} passes over one "
        f"token here and gives {run['tokens_per_call']:.2f} tokens; {here}; {elsewhere}."
    )


def _drafted(length: float) -> str:
    return f"{length:.0f} drafted token{'' if length == 1 else 's'}"


def _unsure(run: Run) -> str:
    why = "is undefined" if math.isnan(run["ci_low"] + run["ci_high"]) else "contains 1"
    return f"{method_in_words(run)} was {speed_text(run)}, and its interval {why}"


def _relaxed(target: str, verdict: Verdict, tolerated_loss: float, command: str) -> list[str]:
    """Return sentences on the fastest surely faster rule of each engine, or that there is none."""
    if not verdict.relaxed:
        return []
    beaten = "not drafting"
    if verdict.recommended is not None:
        beaten = method_in_words(verdict.recommended)
    texts: list[str] = []
    offered: set[str] = set()
    for rule in verdict.relaxed:
        if not rule.surely_faster:
            continue
        name = method_in_words(rule.run)
        speed = _relaxed_speed(rule, target, beaten)
        scores = rule.scores
        engine = rule.run["engine"]
        if rule.judgement == REJECTS_NOTHING:
            texts.append(f"{name} rejected nothing: it emits whatever is drafted. Not offered.")
        elif rule.judgement == LOSES_ANSWERS and scores is not None:
            texts.append(
                f"Avoid {name}: it was {speed}, but right answers fell from {scores['alone']} to "
                f"{scores['right']} of {scores['items']}."
            )
        elif engine not in offered:
            offered.add(engine)
            when = f"If the text may change, in {engine}" if engine else "In no engine"
            texts.append(
                f"{when}: {name} was {speed}. It gives up {rule.run['nats_given_up']:.2g} nats per "
                f"token. {_right_answers(scores, tolerated_loss, command)}."
            )
    return texts or [_none_faster(verdict.relaxed, target, beaten)]


def _none_faster(relaxed: Sequence[RelaxedRule], target: str, beaten: str) -> str:
    """Return that no relaxed rule is surely faster, and what the fastest one reached."""
    fastest = relaxed[0]
    which = f"The fastest of {len(relaxed)} timed" if len(relaxed) > 1 else "The only one timed"
    speed = f"{speed_text(fastest.run)} as {target} alone"
    if fastest.ratio is not None:  # first beside what it is compared with
        speed = f"{speed_text(fastest.ratio)} as that, and {speed}"
    return (
        f"No relaxed rule was surely faster than {beaten}. {which}, "
        f"{method_in_words(fastest.run)}, was {speed}."
    )


def _relaxed_speed(rule: RelaxedRule, target: str, beaten: str) -> str:
    text = f"{speed_text(rule.run)} as {target} alone"
    return text if rule.ratio is None else f"{text}, and {speed_text(rule.ratio)} as {beaten}"


def _right_answers(scored: Run | None, tolerated_loss: float, command: str) -> str:
    """Return what is known of the right answers with a rule, given its row of scored answers."""
    if scored is None:
        unknown = "Its right answers were not measured"
        return f"{unknown}: run `{command} stage=accuracy`" if command else unknown
    counts = f"{scored['right']} of {scored['items']} answers were right"
    judged = "excluded" if scored["within"] else "not excluded"
    loss = f"a loss of {100 * tolerated_loss:g} points is {judged}"
    return f"{counts}, {scored['alone']} without it; {loss}"


def log_advice(target: Target) -> Advice:
    """Return the verdict on the target of an engine's log: what it tells, and what it can't."""
    relax = (
        "Should I relax? vLLM and llama.cpp run no relaxed rule: at temperature 0 they accept the "
        "target's first choice alone. SGLang, TensorRT-LLM, ROCm ATOM and Medusa have such rules; "
        "which setting certifies stands above."
    )
    draft_length = (
        "How long should drafts be? That depends on what a step costs, which no log tells. Ask the "
        "server with drafts and without (`python -m pipeline.ask URL`), then `python -m "
        "pipeline.engine alone.jsonl drafted.jsonl` says how much faster it is with drafts."
    )
    certified = certified_by_greedy(target, ASSUMED_KL)
    if certified is not None:
        tokens = {n: guaranteed_per_call(certified, target, n) for n in DRAFT_LENGTHS}
        if math.isnan(tokens[1]):
            draft_length += " No answer has a second token, so no tokens per call are guaranteed."
        else:
            each = ", ".join(f"{number_text(x)} for {n}" for n, x in tokens.items())
            draft_length += (
                " Guaranteed tokens per call by draft length, to a drafter within "
                f"{ASSUMED_KL:g} nats at every step: {each}."
            )
    sentence = f"{target.label} was logged without strict greedy among the rules."
    if certified is not None:
        sentence = (
            f"Strict greedy certifies {percent_text(float(certified.mean()))} of the steps of "
            f"{target.label}: there it accepts any drafter within {ASSUMED_KL:g} nats."
        )
    pays = (
        "Does drafting pay? A log does not tell: the cost of a step is missing. It tells how much "
        "drafter error the target tolerates."
    )
    return Advice(target.label, UNTIMED, sentence, [relax, draft_length, pays])


def cost_sentence(decoded: Decoded, speeds: pd.DataFrame) -> str:
    """Return a line on what a token of the target alone costs, and a drafted token."""
    alone = speeds[speeds["drafter"] == "none"]
    drafted = speeds[speeds["drafter"] == CONFIGURED]
    text = (
        f"{decoded.target} alone: {alone['tokens_per_second'].iloc[0]:.3g} tokens per second, "
        f"{1000 * alone['per_token'].iloc[0]:.3g} ms per token"
    )
    if len(drafted):
        text += f"; {decoded.drafter}: {1000 * drafted['c_q'].iloc[0]:.3g} ms per drafted token"
    return f"{text}."


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
    return f"{estimate_text(times, distinct_from=[1], zero_width=True)} times as fast"

"""The first screen of the page: what a pair does, what to set, and how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ..report.measured import Certified
from ..report.records import Results
from ..report.sections.acceptance import LENGTH
from ..report.sections.acceptance_figures import (
    GREEDY,
    certified_by_any,
    own_rules,
    row_of,
    rules_in,
)
from ..report.text import UNDEFINED, number_text, share_text
from ..rules import Additive
from ..statistics.bootstrap import PromptBootstrap, few
from ..statistics.run_lengths import censored_ends
from ..statistics.trajectories import Trajectories, calls_made

BUDGET = 0.01  # target probability a step that the recommended rule may give up
WANTED, EPS = 0.95, 0.1  # of the recommendation without a drafter: share certified, nats
SHOWN_EPS = (0.01, 0.05, 0.1, 0.2)


@dataclass(frozen=True)
class Fact:
    """One row of the first screen: a name, what it means, and a text for each column."""

    name: str
    means: str
    values: Sequence[str]


@dataclass(frozen=True)
class Answer:
    """What the first screen says of one target.

    Attributes:
        target: its printed name.
        columns: headings over the values of the facts.
        facts: rows.
        setting: the recommended one, in a few words.
        reason: why, one paragraph.
        trust: how far to trust all this, plain sentences.
        rule: label of the recommended rule, empty where none is.
    """

    target: str
    columns: Sequence[str]
    facts: Sequence[Fact]
    setting: str
    reason: str
    trust: Sequence[str]
    rule: str = ""
    warnings: Sequence[str] = field(default_factory=tuple)


def recommended(pairs: Results, target: str, budget: float = BUDGET) -> str:
    """Return the label of the rule that accepts the longest runs at a small price.

    Among the rules that judge tokens, it is the one with the most tokens a call of those that give
    up at most `budget` of target probability a step, by the upper limit of the interval; of equal
    ones the first. Strict greedy gives up none, so that there is one.
    """
    labels = [
        rule
        for rule in rules_in(pairs, "baseline", "criteria", "preset")
        if pairs.rules[rule].judges_tokens
        and row_of(pairs, target, rule, "given_up")["ci_high"] <= budget
    ]
    return max(labels or [GREEDY], key=lambda rule: row_of(pairs, target, rule, LENGTH)["value"])


def of_pair(
    pairs: Results, target: str, sound: Mapping[str, Any], speeds: pd.DataFrame | None
) -> Answer:
    """Say what a drafter does for a target.

    Args:
        pairs: what was measured.
        target: its printed name.
        sound: facts of the stage acceptance: steps, rules, certified, violations.
        speeds: `analysis.decoding.speed.speed` of the target; None where nothing was decoded.
    """
    best = recommended(pairs, target)
    rules = list(dict.fromkeys([GREEDY, best]))

    def row(name: str, means: str, statistic: str, percent: bool = True) -> Fact:
        return Fact(
            name, means, [_text(row_of(pairs, target, r, statistic), percent) for r in rules]
        )

    facts = [
        row("Accepted", "drafted tokens that the rule keeps", "acceptance"),
        row("Certified", "steps where any drafter as close is sure to be accepted", "certified"),
        *by_any_divergence(pairs, target, rules),
        row("Tokens a call", "of the target, drafts of any length", LENGTH, percent=False),
        row("Departs", "steps whose token is not the target's first choice", "departure"),
        row("Given up", "target probability a step, in the mean", "given_up"),
    ]
    measured = None if speeds is None else fastest(speeds, best)
    found = None if speeds is None else [fastest(speeds, rule) for rule in rules]
    if found and any(one is not None for one in found):
        texts = [speed_text(one) for one in found]
        facts.append(Fact("Speed", "of decoding, the target alone being 1", texts))
    return Answer(
        target,
        [pairs.names[rule] for rule in rules],
        facts,
        pairs.names[best],
        _reason(pairs, target, best, measured),
        _trust_pair(pairs, target, sound),
        best,
    )


def by_any_divergence(pairs: Results, target: str, rules: Sequence[str]) -> list[Fact]:
    """Return what KL or another divergence certifies, where more than KL was asked for."""
    mine = certified_by_any(pairs, target)
    if not mine:
        return []
    texts = [_text(mine[rule], True) if rule in mine else UNDEFINED for rule in rules]
    means = "as close in KL, total variation or another: whichever is sure"
    return [Fact("Certified by any divergence", means, texts)]


def fastest(speeds: pd.DataFrame, rule: str) -> dict[str, Any] | None:
    """Return the fastest run of a rule with the model as drafter; None where it was not decoded."""
    mine = speeds[(speeds["rule"] == rule) & (speeds["drafter"] == "model")]
    if mine.empty:
        return None
    return dict(mine.iloc[int(mine["speedup"].to_numpy().argmax())])


def speed_text(run: Mapping[str, Any] | None) -> str:
    """Return a measured speed-up with its interval and the draft length."""
    if run is None:
        return "not decoded"
    return (
        f"{run['speedup']:.2f}× [{run['ci_low']:.2f}, {run['ci_high']:.2f}], "
        f"γ = {run['draft_length']}"
    )


def of_target(
    measured: Results, certificates: Sequence[Certified], bootstrap: PromptBootstrap, target: str
) -> Answer:
    """Say what is certified of a target whose drafter is not known.

    Args:
        measured: the study.
        certificates: of the target.
        bootstrap: over the prompts of its steps.
        target: its printed name.
    """
    first = certificates[0]
    shares = {item.rule: float((item.lower > EPS).mean()) for item in certificates}
    enough = [rule for rule, share in shares.items() if share >= WANTED and rule.judges_tokens]
    additive = [rule for rule in enough if isinstance(rule, Additive)]
    best = min(additive, key=lambda rule: rule.t) if additive else next(iter(enough), None)
    shown = [first, *(item for item in certificates if item.rule == best and item is not first)]
    starts = bootstrap.steps.cumsum() - bootstrap.steps
    trajectories = Trajectories(starts, bootstrap.prompts)
    facts = []
    for eps in SHOWN_EPS:
        texts = []
        for item in shown:
            certain = item.lower > eps
            calls = calls_made(certain[:, None], trajectories, None).sum()
            texts.append(f"{share_text(float(certain.mean()))}; {len(certain) / calls:.2f} tokens")
        name = f"Certified at ε = {eps:g} nats"
        facts.append(Fact(name, "steps; tokens a call, drafts of any length", texts))
    if best is None:
        setting = f"none certifies {100 * WANTED:g} % of the steps at ε = {EPS:g}"
        reason = "The calculator below has every setting of this study at every ε."
    else:
        setting = best.title
        reason = (
            f"If a drafter stays within {EPS:g} nats of the target at every step, this setting "
            f"accepts it at {share_text(shares[best])} of the steps for certain; it is the "
            f"strictest of this study that reaches {100 * WANTED:g} %. Strict settings depart from "
            "the target's own text least."
        )
    row = measured.row(target, first.rule.label, "mean")
    return Answer(
        target,
        [item.rule.title for item in shown],
        facts,
        setting,
        reason,
        [
            *_trust_steps(int(row["steps"]), bootstrap.count),
            "No drafter was measured: a certificate holds for every drafter that is as close.",
        ],
        "" if best is None else best.label,
    )


def _reason(pairs: Results, target: str, best: str, measured: Mapping[str, Any] | None) -> str:
    base, length = (
        row_of(pairs, target, GREEDY, LENGTH)["value"],
        row_of(pairs, target, best, LENGTH)["value"],
    )
    labels = rules_in(pairs, "baseline", "criteria", "preset")
    judged = sum(pairs.rules[rule].judges_tokens for rule in labels)
    budget = share_text(BUDGET)
    if best == GREEDY:
        said = (
            f"Of {judged} rules, no relaxed one gives up at most {budget} of target probability a "
            "step and accepts more. The text stays the target's own."
        )
    else:
        departs = row_of(pairs, target, best, "departure")["value"]
        lost = row_of(pairs, target, best, "given_up")["value"] / departs if departs else math.nan
        said = (
            f"Of the {judged} rules that judge tokens, it has the most tokens a call among those "
            f"that surely give up at most {budget} of target probability a step: "
            f"{number_text(length)} instead of {number_text(base)} "
            f"({100 * (length / base - 1):+.0f} %). At "
            f"{share_text(departs)} of the steps it emits another token than the target's first "
            f"choice, {number_text(lost, 3)} less probable in the mean. Where the text must be the "
            "target's own, stay with strict greedy."
        )
    if measured is not None:
        pays = measured["ci_low"] > 1
        said += (
            f" Decoded on this machine it ran {speed_text(measured)}"
            f"{'.' if pays else ': there it does not pay for sure.'}"
        )
    return said


def _trust_pair(pairs: Results, target: str, sound: Mapping[str, Any]) -> list[str]:
    row = row_of(pairs, target, GREEDY, "acceptance")
    inexact = max(row_of(pairs, target, rule, "inexact")["value"] for rule in own_rules(pairs))
    exact = (
        "Every certificate is exact for the stored logits."
        if not inexact
        else f"Certificates are exact at {share_text(1 - inexact)} of the steps or more, whatever "
        "the rule; elsewhere the sure end of an interval counts."
    )
    return [
        *_trust_steps(int(sound["steps"]), int(row["prompts"])),
        f"{sound['violations']} of {sound['certified']:,} certified decisions were rejected, over "
        f"{sound['rules']} rules.",
        exact,
        "Drafter and target read the target's own answers. A relaxed rule leaves them, and its "
        "later steps are others: only decoding measures that.",
    ]


def _trust_steps(steps: int, prompts: int) -> list[str]:
    said = [
        f"{steps:,} steps of {prompts} prompts. Intervals in brackets are over prompts, as the "
        "steps of one prompt are correlated."
    ]
    if few(prompts):
        said.append("So few prompts make them too narrow.")
    return said


def _text(row: Mapping[Any, Any], percent: bool) -> str:
    """Return a statistic with its interval, as a share or as a number."""
    value, low, high = (row[name] for name in ("value", "ci_low", "ci_high"))
    if math.isnan(value):
        return UNDEFINED
    if percent:
        text = share_text(value)
        limits = (f"{100 * low:.3g}", f"{100 * high:.3g} %")
    else:
        text = ("≥ " if censored_ends(row)[0] else "") + number_text(value)
        limits = (number_text(low), number_text(high))
    return text if value in (0, 1) and low == high else f"{text} [{', '.join(limits)}]"

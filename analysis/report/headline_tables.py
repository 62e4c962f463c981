"""The first tables of the page: each drafter's fastest method, and relaxed rules.

The same words everywhere: *accepted*, a share of the steps of the target's own text; *certified*,
the share at which the drafter's KL alone guarantees acceptance; *tokens per call*, the tokens that
one pass of the target yields, counting the one it adds itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from ..decoding.speed import SPEEDUP_ENDS
from ..decoding.verdict import Advice, method_in_words
from ..rules import StrictGreedy
from ..statistics.estimate import Estimate
from .results import Results
from .table import Table, rows_by_method
from .text import UNDEFINED, estimate_texts, number_text, percent_text, speed_texts

GREEDY = StrictGreedy().label
RELAXED: dict[str, tuple[str, Callable[[float], str]]] = {  # statistic: heading and format
    "acceptance": ("accepted", percent_text),
    "certified": ("certified", percent_text),
    "measured_per_call": ("tokens per call, drafts of any length", number_text),
    "departure": ("other tokens", percent_text),
    "probability_given_up": ("given up", percent_text),
}
Row = dict[str, Any]


def methods_table(advice: Sequence[Advice], results: Results) -> Table | None:
    """Return each drafter's fastest lossless method, with the engine that runs it; None if none.

    What strict greedy accepts of the study's drafter is the number of stage acceptance. Other
    drafts were tested only while decoding.
    """
    rows: list[Row] = []
    for of_target in advice:
        for method in of_target.drafters:
            accepted = Estimate.read(method, "rate")
            if method["drafter"] == "model" and method["rule"] == GREEDY:
                accepted = results.acceptance[of_target.target, GREEDY, "acceptance"]
            rows.append(
                {
                    "target": of_target.target,
                    "method": method_in_words(method),
                    "engine that runs it": method["engine"],
                    "faster?": method["answer"],
                    **Estimate.read(method, "speedup", SPEEDUP_ENDS).columns("speedup"),
                    **Estimate.read(method, "tokens_per_call").columns("tokens_per_call"),
                    **accepted.columns("accepted"),
                }
            )
    if not rows:
        return None
    data = pd.DataFrame(rows)
    columns: dict[str, Any] = {
        "engine that runs it": data["engine that runs it"],
        "faster?": data["faster?"],
        "speed": speed_texts(Estimate.read(data, "speedup")),
        "tokens per call": estimate_texts(Estimate.read(data, "tokens_per_call")),
        "accepted": estimate_texts(Estimate.read(data, "accepted"), percent=True, zero_width=True),
    }
    caption = (
        "Each drafter with its fastest lossless method. Speed: times as fast as the target alone, "
        "in this project's loop, one request at a time. Your engine accepts the same tokens, but "
        "its speed differs: time it. Tokens per call: tokens that one pass of the target yields, "
        "counting the one it adds itself. Accepted: of the drafter's first choices along the "
        "target's text; of look-up, of the tokens it drafted. γ: drafted tokens per call."
    )
    return Table("methods", "Methods", caption, data, rows_by_method(data, columns))


def relax_table(
    results: Results, tried: Sequence[str], scores: Mapping[str, pd.DataFrame]
) -> Table | None:
    """Return a row for each target and rule; None without a drafter.

    `tried` are the labels of rules that were decoded with, `scores` the `losses` of targets whose
    answers were scored.
    """
    if results["acceptance"].empty:
        return None
    rows: list[Row] = []
    right_answers: list[str] = []
    for target in results.targets:
        scored = _by_rule(scores.get(target))
        for rule in _relaxed_rules(results, [*tried, *scored]):
            values = {name: results.acceptance[target, rule, name].value for name in RELAXED}
            rows.append({"target": target, "rule": rule, **values})
            right_answers.append(_right_answers(scored.get(rule)))
    data = pd.DataFrame(rows)
    columns: dict[str, Any] = {
        heading: data[name].map(text) for name, (heading, text) in RELAXED.items()
    }
    if scores:
        columns["right answers"] = right_answers
    caption = (
        "Along the target's own text. Certified: the share of steps at which the drafter's KL "
        "alone guarantees acceptance. Other tokens: the share at which the accepted token is not "
        "the target's choice; given up: the target's probability lost per step. vLLM and llama.cpp "
        "run no relaxed rule; docs/decoding.md names engines that do."
    )
    titled = data.assign(rule=data["rule"].map(results.titles))
    shown = rows_by_method(titled, columns, ["rule"])
    return Table("relax", "Should I relax the rule?", caption, data, shown)


def _by_rule(losses: pd.DataFrame | None) -> dict[str, Mapping[Any, Any]]:
    if losses is None:
        return {}
    return {str(row["rule"]): row for row in losses.to_dict("records")}


def _right_answers(scored: Mapping[Any, Any] | None) -> str:
    if scored is None or not scored["items"]:
        return UNDEFINED
    return f"{scored['right']} of {scored['items']}, {scored['alone']} without"


def _relaxed_rules(results: Results, tried: Sequence[str]) -> list[str]:
    """Return the labels of each family that judges tokens: those tried, else the middle one."""
    judged = set(results["acceptance"]["rule"])
    families: dict[str, list[str]] = {}
    for rule in results.rules.values():
        if rule.judges_tokens and rule.label in judged:
            families.setdefault(rule.name, []).append(rule.label)
    chosen: list[str] = []
    for labels in families.values():
        middle = labels[(len(labels) - 1) // 2]
        chosen += [label for label in labels if label in tried] or [middle]
    return chosen

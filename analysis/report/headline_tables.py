"""The first tables of the page: each drafter's fastest method, and relaxed rules.

All tables use these terms: *accepted*, a share of the steps of the target's own text; *certified*,
the share at which the drafter's KL alone guarantees acceptance; *tokens per call*, the tokens that
one pass of the target yields, counting the one it adds itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isnan, nan
from typing import Any

import pandas as pd

from ..decoding.lookup import MATCHES_DIFFER
from ..decoding.metrics import CONFIGURED
from ..decoding.predicted_speed import GREEDY, MethodOutlook, Outlook
from ..decoding.speed import SPEEDUP_ENDS
from ..statistics.estimate import Estimate
from .results import Results
from .table import Table, rows_by_method
from .text import UNDEFINED, estimate_texts, number_text, percent_text, speed_texts
from .verdict_sentences import Advice, method_in_words

RELAXED: dict[str, tuple[str, Callable[[float], str]]] = {  # statistic: heading and format
    "acceptance": ("accepted", percent_text),
    "certified": ("certified", percent_text),
    "measured_per_call": ("tokens per call, drafts of any length", number_text),
    "departure": ("other tokens", percent_text),
    "probability_given_up": ("given up", percent_text),
}
Row = dict[str, Any]


def methods_table(
    advice: Sequence[Advice], results: Results, predicted: Mapping[str, pd.DataFrame]
) -> Table | None:
    """Return each drafter's fastest lossless method, with the engine that runs it; None if none.

    The accepted share of the study's drafter under strict greedy is that of stage acceptance. For
    others it is the share accepted while decoding. `predicted` are `predicted_speed.predictions` by
    target.
    """
    rows: list[Row] = []
    for of_target in advice:
        for method in of_target.drafters:
            accepted = Estimate.read(method, "rate")
            if method["drafter"] == CONFIGURED and method["rule"] == GREEDY:
                accepted = results.acceptance[of_target.target, GREEDY, "acceptance"]
            rows.append(
                {
                    "target": of_target.target,
                    "method": method_in_words(method),
                    "engine that runs it": method["engine"],
                    "faster?": method["answer"],
                    **Estimate.read(method, "tokens_per_call").columns("tokens_per_call"),
                    **MethodOutlook.of(predicted.get(of_target.target), method).columns(),
                    **Estimate.read(method, "speedup", SPEEDUP_ENDS).columns("speedup"),
                    **accepted.columns("accepted"),
                    "drafted_per_call": method.get("drafted_per_call", nan),
                }
            )
    if not rows:
        return None
    data = pd.DataFrame(rows)
    columns: dict[str, Any] = {
        "engine that runs it": data["engine that runs it"],
        "tokens per call": estimate_texts(Estimate.read(data, "tokens_per_call")),
        "a call costs": estimate_texts(Estimate.read(data, "cost"), unit=" passes"),
        "faster here?": data["faster?"],
        "speed here": speed_texts(Estimate.read(data, "speedup")),
        "best length, predicted": _lengths(data, "best"),
        "if longer passes cost nothing": _lengths(data, "bound"),
        "accepted": _accepted_texts(data),
    }
    of_costs = (
        "A call costs: in passes of the target over one token. Best length: predicted from tokens "
        "and cost per call, without the time to the first token. If longer passes cost nothing: "
        "the same if a pass over several tokens took as long as over one, which a GPU with one "
        "request comes closest to; drafting still takes the time it takes here. "
    )
    if data["cost"].isna().all():
        of_costs = ""
        for name in ("a call costs", "best length, predicted", "if longer passes cost nothing"):
            del columns[name]
    caption = (
        "Each drafter with its best lossless method; γ: drafted tokens per call. At the same γ, "
        "tokens per call and accepted tokens carry over to an engine that drafts alike. The "
        "rest is of this machine and this project's loop, one request at a time. Speed here: "
        f"timed, with the time to the first token. {of_costs}Accepted: of the drafter's first "
        "choices along the target's text; of look-up, of its tokens that were tested, so those "
        "behind a rejected one do not count. Drafted a call: the mean of the timed answers; "
        "look-up drafts only where it finds a match."
    )
    return Table("methods", "Methods", caption, data, rows_by_method(data, columns))


def engine_lines(methods: Table | None) -> list[str]:
    """Return how to run the methods of the first table in their engines; none without methods."""
    if methods is None:
        return []
    lines = [
        "How to run and check a method in its engine: docs/engine.md; γ is num_speculative_tokens "
        "in vLLM, --spec-draft-n-max in llama.cpp."
    ]
    if methods.data["engine that runs it"].str.contains(MATCHES_DIFFER, regex=False).any():
        lines.append(
            f"{MATCHES_DIFFER.capitalize()}: the n-gram drafters of vLLM and llama.cpp copy from "
            "other earlier passages than prompt look-up here, so other tokens are accepted; "
            "decoding.lookup_match=earliest copies as vLLM does."
        )
    return lines


def _accepted_texts(data: pd.DataFrame) -> list[str]:
    """Return the cells of accepted shares, with the number of drafted tokens if it is known."""
    shares = estimate_texts(Estimate.read(data, "accepted"), percent=True, zero_width=True)
    return [
        share if isnan(drafted) else f"{share}; {drafted:.2f} drafted a call"
        for share, drafted in zip(shares, data["drafted_per_call"], strict=True)
    ]


def _lengths(data: pd.DataFrame, name: str) -> list[str]:
    """Return the cells of best draft lengths and their speeds, as in "2 tokens: 1.24×"."""
    return [
        length_text(length, speed)
        for length, speed in zip(data[f"{name}_length"], data[f"{name}_speed"], strict=True)
    ]


def length_text(length: float, speed: float) -> str:
    """Return a best draft length with its speed; length 0 means that no draft pays.

    >>> length_text(1, 1.247), length_text(0, 1.0), length_text(nan, nan)
    ('1 token: 1.25×', 'none pays', '–')
    """
    if isnan(length):
        return UNDEFINED
    if length == 0:
        return "none pays"
    return f"{length:.0f} token{'' if length == 1 else 's'}: {speed:.2f}×"


def relax_table(
    results: Results, tried: Sequence[str], scores: Mapping[str, pd.DataFrame]
) -> Table | None:
    """Return a row for each target and token rule; None without a drafter or such a rule.

    `tried` are the labels of the rules that decoding used. `scores` are the `losses` of the targets
    whose answers were scored.
    """
    if results["acceptance"].empty:
        return None
    rows: list[Row] = []
    right_answers: list[str] = []
    for target in results.targets:
        scored = _by_rule(scores.get(target))
        for rule in _token_rules(results, [*tried, *scored]):
            values = {name: results.acceptance[target, rule, name].value for name in RELAXED}
            rows.append({"target": target, "rule": rule, **values})
            right_answers.append(_right_answers(scored.get(rule)))
    if not rows:
        return None
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


def relax_speed_table(
    relax: Table, predicted: Mapping[str, pd.DataFrame], advice: Sequence[Advice]
) -> Table:
    """Return `relax_table` with a column for the predicted speed of each rule on this machine.

    All rules have the draft length of the drafter's fastest lossless method. `predicted` are
    `predicted_speed.predictions` by target.
    """
    lengths = {of_target.target: _length_of_configured(of_target) for of_target in advice}
    speeds = [
        _predicted_speed(predicted.get(target), rule, lengths.get(target))
        for target, rule in zip(relax.data["target"], relax.data["rule"], strict=True)
    ]
    by_row = Estimate(*zip(*speeds, strict=True))
    cells = relax.cells.assign(**{"speed here, predicted": speed_texts(by_row)})
    caption = (
        f"{relax.caption} Predicted: not timed, at γ of the drafter's method above, after the "
        "first token; what was timed stands in the table Methods compared."
    )
    data = relax.data.assign(**by_row.columns("speed"))
    return Table("relax_speed", relax.title, caption, data, cells)


def _length_of_configured(advice: Advice) -> int | None:
    """Return the draft length of the configured drafter's fastest lossless method."""
    of_drafter = [run for run in advice.drafters if run["drafter"] == CONFIGURED]
    return int(of_drafter[0]["draft_length"]) if of_drafter else None


def _predicted_speed(predicted: pd.DataFrame | None, rule: str, length: int | None) -> Estimate:
    """Return the predicted speed of the configured drafter under a rule; NaN if it is unknown."""
    outlook = None if predicted is None else Outlook.of(predicted, CONFIGURED, rule)
    if outlook is None or length is None:
        return Estimate(nan)
    return outlook.estimate("speed", length)


def _by_rule(losses: pd.DataFrame | None) -> dict[str, Mapping[Any, Any]]:
    if losses is None:
        return {}
    return {str(row["rule"]): row for row in losses.to_dict("records")}


def _right_answers(scored: Mapping[Any, Any] | None) -> str:
    if scored is None or not scored["items"]:
        return UNDEFINED
    return f"{scored['right']} of {scored['items']}, {scored['alone']} without"


def _token_rules(results: Results, tried: Sequence[str]) -> list[str]:
    """Return labels of token rules: of each family those tried, or else its middle one."""
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

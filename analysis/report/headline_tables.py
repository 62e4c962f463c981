"""The first tables of the page: methods, relaxed rules, and the settings that certify.

The same words everywhere: *accepted*, a share of the steps of the target's own text; *certified*,
those at which it was bound to be; *tokens per call*, with the one that the target adds itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from ..acceptance.solve import Goal, solve
from ..decoding.metrics import Decoded
from ..decoding.verdict import UNTIMED, Advice, method_in_words
from ..parameter_range import build_range
from ..rules import StrictGreedy
from ..statistics.bootstrap import Flags
from ..statistics.trajectories import count_calls
from .decoding_tables import intervals, speed_intervals
from .results import EPS, Results, Target
from .table import Table, cells_to_grid, rows_by_method
from .text import UNDEFINED, interval_text, number_text, percent_text, symbol

EPSILONS = (0.05, 0.1)  # nats: the KL of the drafters that settings certify
SHARE = 0.9  # of the steps, to be certified
SEARCHED = {  # families whose setting is looked for
    "additive": "Additive",
    "multiplicative": "Multiplicative",
    "absolute": "Absolute threshold",
    "typical": "Typical (Medusa)",
    "mars": "MARS",
    "tree": "Tree",
}
GREEDY = StrictGreedy().label
RELAXED: dict[str, tuple[str, Callable[[float], str]]] = {  # statistic: heading and format
    "acceptance": ("accepted", percent_text),
    "certified": ("certified", percent_text),
    "measured_per_call": ("tokens per call, drafts of any length", number_text),
    "departure": ("other tokens", percent_text),
    "probability_given_up": ("given up", percent_text),
}
LENGTHS = (1, 2, 4, 8)  # draft lengths that are compared for a log
Row = dict[str, Any]


def methods_table(advice: Sequence[Advice], results: Results) -> Table | None:
    """Return each drafter's fastest lossless method, with the engine that runs it; None if none.

    What strict greedy accepts of the study's drafter is of stage acceptance; other drafts were
    tested while decoding alone.
    """
    known, rows, ends = _statistics(results), list[Row](), ("", "_ci_low", "_ci_high")
    for target, run in [(own.target, run) for own in advice for run in own.drafters]:
        numbers = {
            "speedup": [run["speedup"], run["ci_low"], run["ci_high"]],
            "tokens_per_call": [run[f"tokens_per_call{end}"] for end in ends],
            "accepted": [run[f"rate{end}"] for end in ends],
        }
        if run["drafter"] == "model" and run["rule"] == GREEDY:
            numbers["accepted"] = known[target, GREEDY, "acceptance"]
        rows.append({"target": target, "method": method_in_words(run, results.drafter)})
        rows[-1] |= {"engine that runs it": run["engine"], "faster?": run["answer"]}
        for name, values in numbers.items():
            rows[-1] |= {f"{name}{end}": x for end, x in zip(ends, values, strict=True)}
    if not rows:
        return None
    data = pd.DataFrame(rows)
    speeds, tokens, accepted = (
        [f"{name}{end}" for end in ends] for name in ("speedup", "tokens_per_call", "accepted")
    )
    columns: dict[str, Any] = {
        **{name: data[name] for name in ("engine that runs it", "faster?")},
        "speed": speed_intervals(data, speeds),
        "tokens per call": intervals(data, tokens),
        "accepted": [_percent_interval(*ends) for ends in data[accepted].to_numpy().tolist()],
    }
    caption = (
        "Each drafter with its fastest lossless method. Speed: times as fast as the target alone, "
        "in this project's loop, one request at a time; acceptance carries over to an engine, "
        "speed does not. Tokens per call: per pass of the target, with its own one. "
        "Accepted: of the drafter's first choices along the target's text; of look-up, of the "
        "tokens it drafted. γ: drafted tokens per call."
    )
    return Table("methods", "Methods", caption, data, rows_by_method(data, columns))


def _percent_interval(share: float, low: float, high: float) -> str:
    text = percent_text(share)
    if math.isnan(low) or math.isnan(high):
        return text
    return f"{text} [{100 * low:.1f}, {100 * high:.1f}]"


def _statistics(results: Results) -> dict[tuple[str, str, str], list[float]]:
    """Return value, ci_low and ci_high of stage acceptance by target, rule and statistic."""
    return {
        (row["target"], row["rule"], row["statistic"]): [
            row[name] for name in ("value", "ci_low", "ci_high")
        ]
        for row in results["acceptance"].to_dict("records")
    }


def relax_table(
    results: Results, tried: Sequence[str], scores: Mapping[str, pd.DataFrame]
) -> Table | None:
    """Return a row for each target and rule, `tried` labels first; None without a drafter."""
    if results["acceptance"].empty:
        return None
    rows, right, known = list[Row](), list[str](), _statistics(results)
    for target in results.targets:
        of_target = scores[target].to_dict("records") if target in scores else []
        scored = {str(row["rule"]): row for row in of_target}
        for rule in _relaxed_rules(results, [*tried, *scored]):
            value = {name: known[target, rule, name][0] for name in RELAXED}
            rows.append({"target": target, "rule": rule} | value)
            row = scored.get(rule, {"items": 0})
            text = "{right} of {items}, {alone} without" if row["items"] else UNDEFINED
            right.append(text.format_map(row))
    data = pd.DataFrame(rows)
    columns: dict[str, Any] = {
        heading: data[name].map(text) for name, (heading, text) in RELAXED.items()
    }
    if scores:
        columns["right answers"] = right
    caption = (
        "Along the target's own text. Certified: the share of steps at which the drafter's KL "
        "alone guarantees acceptance. Other tokens: the share at which the accepted token is not "
        "the target's choice; given up: the target's probability lost per step. vLLM and llama.cpp "
        "run no relaxed rule; docs/decoding.md names engines that do."
    )
    named = data.assign(rule=data["rule"].map(results.names))
    shown = rows_by_method(named, columns, ["rule"])
    return Table("relax", "Should I relax the rule?", caption, data, shown)


def _relaxed_rules(results: Results, tried: Sequence[str]) -> list[str]:
    """Return strict greedy and, of each family that judges tokens, the rules tried, else one."""
    judged = set(results["acceptance"]["rule"])
    families: dict[str, list[str]] = {}
    for rule in results.rules.values():
        if rule.judges_tokens and rule.label in judged:
            families.setdefault(rule.name, []).append(rule.label)
    return [
        label
        for labels in families.values()
        for label in [x for x in labels if x in tried] or [labels[(len(labels) - 1) // 2]]
    ]


def settings_table(results: Results, targets: Sequence[Target]) -> Table | None:
    """Return what strict greedy certifies, and the strictest settings that certify `SHARE`.

    None if the study has neither strict greedy nor a family whose setting can be searched.
    """
    rows = [
        {"target": target.label, "eps": eps} | row
        for target in targets
        for eps in EPSILONS
        for row in [*_guaranteed(target, eps, results), *_solved(target, eps)]
    ]
    if not rows:
        return None
    data = pd.DataFrame(rows)
    shown = cells_to_grid(data, ["target", "quantity"], "eps", data["text"])
    shown.columns = [f"any drafter within {eps:g} nats" for eps in shown.columns]
    caption = (
        "What holds for every drafter whose KL stays within the bound above each column, and the "
        f"strictest settings that certify {100 * SHARE:g} % of the steps (–: none does). Tokens "
        "per call: drafts of any length, without each answer's first token, which Table 5 counts."
    )
    if results.drafter:
        drafter = f"{results.drafter}, which is not within that KL at every step"
        caption += f" The guarantee does not apply to {drafter}."
    title = f"Which setting certifies {100 * SHARE:g} % of the steps?"
    shown = shown.rename_axis(index=["target", "Guarantee"])
    shown = shown if len(targets) > 1 else shown.droplevel("target")
    return Table("settings", title, caption, data.drop(columns="text"), shown)


def _guaranteed(target: Target, eps: float, results: Results) -> list[Row]:
    """Return what strict greedy certifies at a KL, beside what was measured of the drafter."""
    if StrictGreedy() not in target.certificates:
        return []
    certified = target.certificates[StrictGreedy()][0] > eps
    rows: dict[str, tuple[float, Callable[[float], str]]] = {
        "Strict greedy certifies, of the steps": (certified.mean(), percent_text),
        "Strict greedy guarantees, tokens per call": (_least(certified, target), number_text),
    }
    if target.kl is not None:
        within, drafter = (target.kl <= eps).mean(), results.drafter
        of_greedy = {"rule": GREEDY, "statistic": "measured_per_call"}
        reached = results.select("acceptance", target=target.label, **of_greedy)["value"].iloc[0]
        rows[f"{drafter} is within that KL, of the steps"] = (within, percent_text)
        rows[f"{drafter} reaches, tokens per call"] = (reached, number_text)
    return [
        {"quantity": name, "value": float(value), "text": text(value)}
        for name, (value, text) in rows.items()
    ]


def _least(certified: Flags, target: Target, length: int | None = None) -> float:
    """Return the least tokens per call that certified steps guarantee; NaN without a call."""
    made = count_calls(certified, target.trajectories, length)
    return float(made.tokens.sum() / made.calls.sum()) if made.calls.sum() else math.nan


def _solved(target: Target, eps: float) -> list[Row]:
    """Return the strictest setting of each family of the target's rules that certifies `SHARE`."""
    rows, dist = list[Row](), target.dist
    names = {rule.name for rule in target.certificates}
    for searched in [build_range({"rule": name}) for name in SEARCHED if name in names]:
        if dist is None or max(rule.minimum_k for rule in searched.rules) > dist.k:
            continue  # an engine's log has too few log-probabilities
        steps = target.bootstrap, target.trajectories
        (found,) = solve(dist, searched, eps, [Goal(SHARE)], *steps)
        (rule, last), parameter = searched.rules, searched.parameter
        fixed = [f", {symbol(x)} = {y:g}" for x, y in rule.parameters.items() if x != parameter]
        end = "least" if searched.value(last) > searched.value(rule) else "most"
        digits = 0 if isinstance(rule.parameters[parameter], int) else 4
        ends = found.value, found.ci_low, found.ci_high  # NaN: a limit lies beyond the range
        rows.append(
            {
                "quantity": f"{SEARCHED[rule.name]}{''.join(fixed)}: {symbol(parameter)} at {end}",
                "text": "any" if found.any_setting else interval_text(*ends, digits=digits),
                **dict(zip(("value", "ci_low", "ci_high"), ends, strict=True)),
            }
        )
    return rows


def costs(decoded: Decoded, speeds: pd.DataFrame) -> str:
    """Return a line on what a token costs: of the target alone, and drafted."""
    alone, drafted = speeds[speeds["drafter"] == "none"], speeds[speeds["drafter"] == "model"]
    text = (
        f"{decoded.target} alone: {alone['tokens_per_second'].iloc[0]:.3g} tokens per second, "
        f"{1000 * alone['per_token'].iloc[0]:.3g} ms per token"
    )
    if len(drafted):
        text += f"; {decoded.drafter}: {1000 * drafted['c_q'].iloc[0]:.3g} ms per drafted token"
    return f"{text}."


def verdict_text(advice: Sequence[Advice], methods: Table | None) -> str:
    """Return a paragraph for each target, and the table of methods in Markdown, to paste.

    Names are text: nothing in them makes a tag, a link or a cell.
    """
    blocks = ["\n".join([own.sentence, *(f"- {text}" for text in own.beside)]) for own in advice]
    if methods is not None:
        flat = methods.shown.reset_index().rename(columns=str.lower)
        rows = [list(flat.columns), ["---"] * flat.shape[1], *flat.to_numpy().tolist()]
        cells = [[str(cell).replace("|", r"\|") for cell in row] for row in rows]
        blocks.append("\n".join(f"| {' | '.join(row)} |" for row in cells))
    return "\n\n".join(blocks).replace("<", r"\<").replace("](", r"]\(") + "\n"


def log_advice(target: Target) -> Advice:
    """Return the verdict on the target of an engine's log: what it answers, and what it can't."""
    relax = (
        "Should I relax? vLLM and llama.cpp run no relaxed rule: at temperature 0 they accept the "
        "target's first choice alone. SGLang, TensorRT-LLM, ROCm ATOM and Medusa have such rules; "
        "which setting certifies stands below."
    )
    long = (
        "How long should drafts be? That depends on what a step costs, which no log tells. Ask the "
        "server with drafts and without (`python -m pipeline.ask URL`), then `python -m "
        "pipeline.engine alone.jsonl drafted.jsonl` says how much faster it is with drafts."
    )
    if StrictGreedy() in target.certificates:
        certified = target.certificates[StrictGreedy()][0] > EPS
        tokens = {n: _least(certified, target, n) for n in LENGTHS}
        each = ", ".join(f"{number_text(x)} for {n}" for n, x in tokens.items())
        long += (
            " No answer has a second token, so no tokens per call are guaranteed."
            if math.isnan(tokens[1])
            else " Guaranteed tokens per call by draft length, to a drafter within "
            f"{EPS:g} nats at every step: {each}."
        )
    sentence = (
        f"A log of {target.label} tells how much drafter error it tolerates, not whether drafting "
        "pays: the cost of a step is missing."
    )
    return Advice(target.label, UNTIMED, sentence, [relax, long])

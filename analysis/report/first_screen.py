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
from ..acceptance.verdict import Advice, method_in_words
from ..decoding.metrics import Decoded
from ..rule_config import build_range
from ..rules import StrictGreedy
from ..statistics.trajectories import count_calls
from ..topk import TopK
from .answer import in_order
from .measured import Results, Target
from .style import family
from .table import Table
from .text import UNDEFINED, interval_text, number_text, percent_text, symbol, times_text

EPSILONS = (0.05, 0.1)  # nats: the KL of the drafters that settings certify
SHARE = 0.9  # of the steps, to be certified
SEARCHED = ("additive", "multiplicative", "absolute", "typical", "mars", "tree")
GREEDY = StrictGreedy().label
RELAXED: dict[
    str, tuple[str, Callable[[float], str]]
] = {  # statistic of stage acceptance: heading and format
    "acceptance": ("accepted", percent_text),
    "certified": ("certified", percent_text),
    "measured_per_call": ("tokens per call, any γ", number_text),
    "departure": ("other tokens", percent_text),
    "probability_given_up": ("given up", percent_text),
}
Row = dict[str, Any]


def methods_table(advice: Sequence[Advice], results: Results) -> Table | None:
    """Return each drafter's fastest lossless method, with the engine that runs it; None if none.

    What strict greedy accepts of the study's drafter is of stage acceptance; other drafts were
    tested while decoding alone.
    """
    rows, cells = list[Row](), list[Row]()
    known = _statistics(results)
    for target, run in [(own.target, run) for own in advice for run in own.drafters]:
        accepted = [run[name] for name in ("rate", "rate_ci_low", "rate_ci_high")]
        if run["drafter"] == "model" and run["rule"] == GREEDY:
            accepted = known[target, GREEDY, "acceptance"]
        tokens = [run[f"tokens_per_call{end}"] for end in ("", "_ci_low", "_ci_high")]
        speed = [run["speedup"], run["ci_low"], run["ci_high"]]
        told = {"engine that runs it": run["engine"], "faster?": run["answer"]}
        printed = {
            "speed": times_text(*speed),
            "tokens per call": interval_text(*tokens),
            "accepted": _share(*accepted),
        }
        cells.append(told | printed)
        rows.append({"target": target, "method": method_in_words(run, results.drafter)} | told)
        numbers = {"speedup": speed, "tokens_per_call": tokens, "accepted": accepted}
        for name, ends in numbers.items():
            rows[-1] |= dict(zip((name, f"{name}_ci_low", f"{name}_ci_high"), ends, strict=True))
    if not rows:
        return None
    caption = (
        "Each drafter with its fastest lossless method. Speed: times as fast as the target alone, "
        "in this project's loop here; acceptance carries over to an engine, speed does not. Tokens "
        "per call: per pass of the target, its own token included. Accepted: share of drafted "
        "tokens along the target's own text. γ: drafted tokens per call."
    )
    return Table("methods", "Methods", caption, pd.DataFrame(rows), _indexed(cells, rows, "method"))


def _share(value: float, low: float, high: float) -> str:
    text = percent_text(value)
    return text if math.isnan(value) else f"{text} [{100 * low:.1f}, {100 * high:.1f}]"


def _statistics(results: Results) -> dict[tuple[str, str, str], list[float]]:
    """Return value, ci_low and ci_high of stage acceptance by target, rule and statistic."""
    return {
        (row["target"], row["rule"], row["statistic"]): [
            row[name] for name in ("value", "ci_low", "ci_high")
        ]
        for row in results["acceptance"].to_dict("records")
    }


def _indexed(cells: Sequence[Row], rows: Sequence[Row], key: str) -> pd.DataFrame:
    """Return cells below the names of their rows, and those below their targets if several."""
    names = pd.DataFrame([{"target": row["target"], key: row[key]} for row in rows])
    several = len(set(names["target"])) > 1
    index = pd.MultiIndex.from_frame(names) if several else pd.Index(names[key], name=key)
    return pd.DataFrame(cells).set_index(index)


def relax_table(
    results: Results, tried: Sequence[str], scores: Mapping[str, pd.DataFrame]
) -> Table | None:
    """Return a row for each target and rule of `_relaxed_rules`; None without a drafter.

    Args:
        results: with the frame `acceptance`.
        tried: labels of rules that were decoded with.
        scores: `analysis.decoding.answers.losses` by target.
    """
    if results["acceptance"].empty:
        return None
    rows, cells, known = list[Row](), list[Row](), _statistics(results)
    for target in results.targets:
        scored = [] if target not in scores else scores[target].to_dict("records")
        for rule in _relaxed_rules(results, [*tried, *(row["rule"] for row in scored)]):
            value = {name: known[target, rule, name][0] for name in RELAXED}
            rows.append({"target": target, "rule": rule} | value)
            cells.append({heading: text(value[name]) for name, (heading, text) in RELAXED.items()})
            for row in [row for row in scored if row["rule"] == rule][:1]:
                right = f"{row['right']} of {row['items']}, {row['alone']} without"
                cells[-1]["right answers"] = right
    caption = (
        "Along the target's own text. Certified: the share of steps at which the drafter's KL "
        "alone guarantees acceptance. Other tokens: the share at which the accepted token is not "
        "the target's choice; given up: what this costs of the target's probability, per step."
    )
    names = [{**row, "rule": results.names[row["rule"]]} for row in rows]
    shown = _indexed(cells, names, "rule").fillna(UNDEFINED)
    return Table("relax", "Should I relax the rule?", caption, pd.DataFrame(rows), shown)


def _relaxed_rules(results: Results, tried: Sequence[str]) -> list[str]:
    """Return strict greedy and, of each family that judges tokens, the rules tried, else one."""
    judged = set(results["acceptance"]["rule"])
    families: dict[str, list[str]] = {}
    for rule in in_order([*results.rules.values()]):
        if rule.judges_tokens and rule.label in judged:
            families.setdefault(rule.name, []).append(rule.label)
    return [
        label
        for labels in families.values()
        for label in [x for x in labels if x in tried] or [labels[(len(labels) - 1) // 2]]
    ]


def settings_table(
    results: Results, targets: Sequence[Target], dists: Sequence[TopK]
) -> Table | None:
    """Return what strict greedy certifies, and the strictest settings that certify `SHARE`.

    None if the study has neither strict greedy nor a family whose setting can be searched.

    Args:
        results: with the frame `acceptance` if there is a drafter.
        targets: with their steps.
        dists: their distributions.
    """
    rows = list[Row]()
    for target, dist in zip(targets, dists, strict=True):
        for eps in EPSILONS:
            found = [*_guaranteed(target, eps, results), *_solved(target, dist, eps)]
            rows += [{"target": target.label, "eps": eps} | row for row in found]
    if not rows:
        return None
    data = pd.DataFrame(rows)
    shown = data.pivot(index=["target", "quantity"], columns="eps", values="text")
    shown = shown.loc[pd.MultiIndex.from_frame(data[["target", "quantity"]].drop_duplicates())]
    shown.columns = [f"any drafter within {eps:g} nats" for eps in shown.columns]
    caption = (
        "What holds for every drafter whose KL is at most so large at every step, and the "
        f"strictest settings that certify {100 * SHARE:g} % of the steps (–: none does)."
    )
    if results.drafter:
        caption += (
            f" {results.drafter} is not within that KL at every step, so what it reaches may lie "
            "below the guarantee."
        )
    title = f"Which setting certifies {100 * SHARE:g} % of the steps?"
    shown = shown.rename_axis(index=["target", "guarantee"])
    shown = shown if len(targets) > 1 else shown.droplevel("target")
    return Table("settings", title, caption, data.drop(columns="text"), shown)


def _guaranteed(target: Target, eps: float, results: Results) -> list[Row]:
    """Return what strict greedy certifies at a KL, beside what was measured of the drafter."""
    rule = next((rule for rule in target.certificates if rule.label == GREEDY), None)
    if rule is None:
        return []
    certified = target.certificates[rule][0] > eps
    made = count_calls(certified, target.trajectories, None)
    least = made.tokens.sum() / made.calls.sum() if made.calls.sum() else math.nan
    share, per_call = "{} of the steps", "{} tokens per call, any γ"
    rows = [
        ("Strict greedy certifies", certified.mean(), share),
        ("and guarantees", least, per_call),
    ]
    if target.kl is not None:
        reached = _statistics(results)[target.label, GREEDY, "measured_per_call"][0]
        within = (target.kl <= eps).mean()
        rows += [(f"{results.drafter} is within that KL at", within, share)]
        rows += [("and reaches", reached, per_call)]
    return [
        {"quantity": name, "value": float(value)}
        | {"text": text.format((percent_text if text == share else number_text)(value))}
        for name, value, text in rows
    ]


def _solved(target: Target, dist: TopK, eps: float) -> list[Row]:
    """Return the strictest setting of each family of the target's rules that certifies `SHARE`."""
    rows = list[Row]()
    names = {rule.name for rule in target.certificates}
    for searched in [build_range({"rule": name}) for name in SEARCHED if name in names]:
        if max(rule.minimum_k for rule in searched.rules) > dist.k:
            continue  # an engine's log has too few log-probabilities
        steps = target.bootstrap, target.trajectories
        (found,) = solve(dist, searched, eps, [Goal(SHARE)], *steps)
        (rule, last), parameter = searched.rules, searched.parameter
        fixed = [f", {symbol(x)} = {y:g}" for x, y in rule.parameters.items() if x != parameter]
        grows = searched.value(last) > searched.value(rule)
        name = f"{family(rule.name)[0]}{''.join(fixed)}: {symbol(parameter)} at "
        digits = 0 if isinstance(rule.parameters[parameter], int) else 4
        value, low, high = found.value, found.ci_low, found.ci_high
        text = number_text(value, digits)
        if low < high:  # else a limit lies beyond the range
            text = interval_text(value, low, high, digits)
        rows.append({"quantity": name + ("least" if grows else "most"), "text": text})
        rows[-1] |= {"value": value, "ci_low": low, "ci_high": high}
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
    """Return a paragraph for each target, and the table of methods in Markdown, to paste."""
    blocks = ["\n".join([own.sentence, *(f"- {text}" for text in own.beside)]) for own in advice]
    if methods is not None:
        flat = methods.shown.reset_index()
        rows = [list(flat.columns), ["---"] * flat.shape[1], *flat.to_numpy().tolist()]
        blocks.append("\n".join(f"| {' | '.join(map(str, row))} |" for row in rows))
    return "\n\n".join(blocks) + "\n"

"""Numbers of the page's first screen, and its rows for rules and methods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..acceptance.verdict import Advice, Run, drafter_in_words, method_in_words
from ..report.measured import Results, Target
from ..report.records import records_of
from ..report.sections.acceptance_figures import GREEDY, row_of, rules_in
from ..report.style import family
from ..report.text import FORMATS, UNDEFINED, share_text
from ..rules import StrictGreedy
from .grid import strictest
from .steps import KL, LEVELS, digits, in_order

Row = dict[str, Any]
EPS, SHARE_WANTED = 0.1, 0.95  # nats, and the share of steps, of the first screen without a drafter
SHOWN = {"model": "drafter", "prompt_lookup": "prompt look-up"}
assert EPS in LEVELS


def method_row(run: Run, drafter: str) -> Row:
    """Return a drafter's row of the first screen: one method, and all its numbers.

    Args:
        run: one of `Advice.drafters`.
        drafter: printed name of the study's drafter.
    """
    ends = {name: run[f"rate_{name}"] for name in ("ci_low", "ci_high")}
    tokens = (run[f"tokens_per_call{end}"] for end in ("", "_ci_low", "_ci_high"))
    return {
        "name": drafter_in_words(run, drafter),
        "answer": run["answer"],
        "speed": FORMATS["times"](run["speedup"], run["ci_low"], run["ci_high"]),
        "tokens": FORMATS["interval"](*tokens),
        "rate": _share({"value": run["rate"], **ends}),
        "length": f"{run['draft_length']}",
    }


def method_table(targets: Sequence[str], methods: Sequence[Sequence[Row]]) -> str:
    """Return the rows of the first screen as a Markdown table to paste; empty without rows.

    Args:
        targets: printed names.
        methods: by target, rows of `method_row`.
    """
    rows = [
        f"| {target} | {row['name']} | {row['length']} | {row['answer']} | {row['speed']} "
        f"| {row['tokens']} | {row['rate']} |"
        for target, of_target in zip(targets, methods, strict=True)
        for row in of_target
    ]
    head = "| target | drafter | γ | faster | times as fast | tokens a call | drafts accepted |"
    return "\n".join([head, "|---" * 7 + "|", *rows]) if rows else ""


def drafted_length(advice: Advice) -> int | None:
    """Return the draft length of the study's drafter in its fastest lossless method."""
    lengths = [run["draft_length"] for run in advice.drafters if run["drafter"] == "model"]
    return int(lengths[0]) if lengths else None


def facts_of_pair(results: Results, target: Target) -> list[Row]:
    """Return a drafter's accepted and certified shares, each with its name, value and meaning."""
    accepted, certified = (
        row_of(results, target.label, GREEDY, name) for name in ("acceptance", "certified")
    )
    along = "strict greedy along the target's own text, share of steps"
    below = f"surely accepted: its {KL[target.completed]} is below the step's certificate"
    return [
        _fact("Accepted", _share(accepted), f"{results.drafter}, {along}"),
        _fact("Certified", _share(certified), f"{results.drafter}, the same steps; {below}"),
    ]


def facts_of_target(target: Target) -> list[Row]:
    """Return the numbers shown without a drafter: certified for any drafter within `EPS`."""
    within = f"certified: any drafter within {EPS:g} nats at every step"
    lower, _ = target.certificates.get(StrictGreedy(), (None, None))
    facts = []
    if lower is not None:
        shown = share_text(float(np.mean(lower > EPS)))
        facts = [_fact(StrictGreedy().title, shown, f"{within}, share of steps")]
    best = strictest(target, "additive", EPS, SHARE_WANTED)
    setting = "none" if best is None else f"t = {best:.3g}"
    meaning = f"the strictest setting with {100 * SHARE_WANTED:g} % of the steps {within}"
    return [*facts, _fact("Additive", setting, meaning)]


def _fact(name: str, value: str, means: str) -> Row:
    return {"name": name, "value": value, "means": means}


def _share(row: Mapping[Any, Any]) -> str:
    """Return a share with its interval, as the page's script prints them."""
    value, low, high = (100 * row[name] for name in ("value", "ci_low", "ci_high"))
    if math.isnan(value):
        return UNDEFINED
    return f"{value:.1f} %" + (f" [{low:.1f}, {high:.1f}]" if low < high else "")


def rule_rows(results: Results, target: str) -> list[Row]:
    """Return a row for every token rule: its acceptance, departures and nats given up."""
    labels = rules_in(results, "baseline", "criteria", "preset", "range")
    rules = [results.rules[label] for label in labels if results.rules[label].judges_tokens]
    rows = []
    for rule in in_order(rules):
        accepted, certified, departure, given_up = (
            row_of(results, target, rule.label, name)
            for name in ("acceptance", "certified", "departure", "probability_given_up")
        )
        preset = f", {results.presets[rule.label]}" if rule.label in results.presets else ""
        rows.append(
            {
                "label": rule.label,
                "title": rule.title + preset,
                "family": family(rule.name)[0],
                "accepted": digits(accepted["value"], 4),
                "low": digits(accepted["ci_low"], 4),
                "high": digits(accepted["ci_high"], 4),
                "accepted_text": _share(accepted),
                "certified_text": _share(certified),
                "departure_text": _share(departure),
                "given_up": digits(given_up["value"], 3),
                "given_up_text": f"{given_up['value']:.2g}",
            }
        )
    return [row for row in rows if row["accepted"] is not None]


def speed_rows(speeds: pd.DataFrame, drafter: str) -> list[Row]:
    """Return a row for every timed method, fastest first; `drafter` is the printed name."""
    rows = [
        {
            "name": method_in_words(run, drafter)
            + (f", T = {run['temperature']:g}" if run["temperature"] else ""),
            "drafter": SHOWN.get(run["drafter"], run["drafter"]),
            "rule": run["rule"] if isinstance(run["rule"], str) else None,  # sampling has none
            "gamma": int(run["draft_length"]),
            "lossless": bool(run["lossless"]),
            "speedup": digits(run["speedup"], 6),
            "low": digits(run["ci_low"], 6),
            "high": digits(run["ci_high"], 6),
            "predicted": digits(run["predicted"]),
            "tokens": digits(run["tokens_per_call"]),
            "rate": digits(run["rate"]),
            "least": digits(run["least"]),
        }
        for run in records_of(speeds[speeds["drafter"] != "none"])
    ]
    return sorted(rows, key=lambda row: -(row["speedup"] or 0))

"""What the page says beside its charts: numbers of the first screen, a row a rule or method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ..acceptance.summary import UNION
from ..acceptance.verdict import name_of
from ..report.measured import Target
from ..report.records import Results, records_of, select
from ..report.sections.acceptance_figures import GREEDY, row_of, rules_in
from ..report.text import UNDEFINED, number_text, share_text
from ..rules import Additive, StrictGreedy
from .steps import LEVELS, digits, family, in_order

Row = dict[str, Any]
EPS, WANTED = 0.1, 0.95  # nats, and the share of steps, of the first screen without a drafter
NAMES = {"kl": "KL", "tv": "total variation", "hellinger": "Hellinger", "reverse_kl": "reverse KL"}
SHOWN = {"model": "drafter", "prompt_lookup": "prompt look-up", "lookup_first": "look-up first"}
assert EPS in LEVELS


def facts_of_pair(results: Results, target: str, run: Mapping[str, Any] | None) -> list[Row]:
    """Return the four numbers behind a verdict: name, value, what it means.

    Args:
        results: what was measured of the drafter.
        target: its printed name.
        run: the fastest lossless method, a row of `speed`; None where nothing was timed.
    """
    facts = []
    if run is not None:
        times = f"{run['speedup']:.2f}× [{run['ci_low']:.2f}, {run['ci_high']:.2f}]"
        facts = [
            _fact("Speed", times, f"measured: {name_of(run, results.drafter)}"),
            _fact("Tokens a call", number_text(run["tokens_per_call"]), "the same, decoded"),
        ]
    accepted = row_of(results, target, GREEDY, "acceptance")
    certified, name = most_certified(results, target)
    return [
        *facts,
        _fact("Accepted", _share(accepted), f"{results.drafter}, strict greedy, share of steps"),
        _fact("Certified", _share(certified), f"{results.drafter}, at its own distance ({name})"),
    ]


def most_certified(results: Results, target: str) -> tuple[Row, str]:
    """Return the share that strict greedy certifies by the divergence that certifies most."""
    breakdown = results["breakdown"]
    rows: list[Row] = [{**row_of(results, target, GREEDY, "certified"), "divergence": "kl"}]
    if not breakdown.empty:
        wanted = {"target": target, "depth": 0, "statistic": "certified", "rule": GREEDY}
        rows += records_of(select(breakdown[breakdown["divergence"] != UNION], **wanted))
    best = max(rows, key=lambda row: float(row["value"]))
    name = str(best["divergence"])
    return best, NAMES.get(name, name)


def facts_of_target(target: Target) -> list[Row]:
    """Return what is certified of any drafter within `EPS` nats at every step."""
    shares = {rule: float(np.mean(lower > EPS)) for rule, lower in target.lower.items()}
    enough = [r for r, share in shares.items() if share >= WANTED and isinstance(r, Additive)]
    best = min(enough, key=lambda rule: rule.t, default=None)
    within = f"any drafter within {EPS:g} nats at every step"
    facts = [
        _fact(rule.title, share_text(shares[rule]), f"certified: {within}, share of steps")
        for rule in shares
        if isinstance(rule, StrictGreedy) or rule == best
    ]
    setting = "none of this study" if best is None else best.title
    told = f"the strictest t that certifies {100 * WANTED:g} %: {within}"
    return [*facts, _fact("Setting", setting, told)]


def _fact(name: str, value: str, means: str) -> Row:
    return {"name": name, "value": value, "means": means}


def _share(row: Mapping[Any, Any]) -> str:
    """Return a share with its interval, all with as many decimals."""
    value, low, high = (100 * row[name] for name in ("value", "ci_low", "ci_high"))
    if math.isnan(value):
        return UNDEFINED
    places = 0 if high - low >= 2 else 1 if high - low >= 0.2 else 2
    ends = f" [{low:.{places}f}, {high:.{places}f}]" if low < high else ""
    return f"{value:.{places}f} %{ends}"


def rule_rows(results: Results, target: str) -> list[Row]:
    """Return every rule that judges tokens: what it accepts and what it costs."""
    presets = select(results["listing"], group="preset")
    known = dict(zip(presets["rule"], presets["name"], strict=True))
    labels = rules_in(results, "baseline", "criteria", "preset", "dial")
    rules = [results.rules[label] for label in labels if results.rules[label].judges_tokens]
    rows = []
    for rule in in_order(rules):
        found = {
            name: row_of(results, target, rule.label, name)
            for name in ("acceptance", "certified", "departure", "given_up")
        }
        accepted = found.pop("acceptance")
        preset = f", {known[rule.label]}" if rule.label in known else ""
        texts = {f"{name}_text": _share(row) for name, row in found.items() if name != "given_up"}
        rows.append(
            {
                "label": rule.label,
                "title": rule.title + preset,
                "family": family(rule),
                "accepted": digits(accepted["value"], 4),
                "low": digits(accepted["ci_low"], 4),
                "high": digits(accepted["ci_high"], 4),
                "accepted_text": _share(accepted),
                "given_up": digits(found["given_up"]["value"], 3),
                "given_up_text": f"{found['given_up']['value']:.2g}",
                **texts,
            }
        )
    return [row for row in rows if row["accepted"] is not None]


def speed_rows(speeds: pd.DataFrame, drafter: str) -> list[Row]:
    """Return every method that was timed, the fastest first; `drafter` is the printed name."""
    rows = [
        {
            "name": name_of(run, drafter)
            + (f", T = {run['temperature']:g}" if run["temperature"] else ""),
            "drafter": SHOWN.get(run["drafter"], run["drafter"]),
            "rule": run["rule"] if isinstance(run["rule"], str) else None,  # sampling has none
            "gamma": int(run["draft_length"]),
            "lossless": bool(run["lossless"]),
            "speedup": digits(run["speedup"], 4),
            "low": digits(run["ci_low"], 4),
            "high": digits(run["ci_high"], 4),
            "predicted": digits(run["predicted"]),
            "tokens": digits(run["tokens_per_call"]),
            "rate": digits(run["rate"]),
            "least": digits(run["least"]),
        }
        for run in records_of(speeds[speeds["drafter"] != "none"])
    ]
    return sorted(rows, key=lambda row: -(row["speedup"] or 0))

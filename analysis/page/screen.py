"""Numbers of the page's first screen, and its rows for rules and methods."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ..acceptance.verdict import method_in_words
from ..report.measured import Results, Target
from ..report.records import records_of
from ..report.sections.acceptance_figures import GREEDY, row_of, rules_in
from ..report.style import family
from ..report.text import UNDEFINED, number_text, share_text
from ..rules import Additive, StrictGreedy
from .steps import DIVERGENCES, LEVELS, digits, in_order

Row = dict[str, Any]
EPS, SHARE_WANTED = 0.1, 0.95  # nats, and the share of steps, of the first screen without a drafter
SHOWN = {"model": "drafter", "prompt_lookup": "prompt look-up", "lookup_first": "look-up first"}
assert EPS in LEVELS


def facts_of_pair(results: Results, target: str, run: Mapping[str, Any] | None) -> list[Row]:
    """Return the four numbers behind a verdict, each with its name, value and meaning.

    Args:
        results: the study's results with a drafter.
        target: the target's printed name.
        run: the fastest lossless method, a row of `speed`; None where nothing was timed.
    """
    facts = []
    if run is not None:
        times = f"{run['speedup']:.2f}× [{run['ci_low']:.2f}, {run['ci_high']:.2f}]"
        facts = [
            _fact("Speed", times, f"measured: {method_in_words(run, results.drafter)}"),
            _fact("Tokens a call", number_text(run["tokens_per_call"]), "the same, decoded"),
        ]
    accepted = row_of(results, target, GREEDY, "acceptance")
    certified = most_certified(results, target)
    name, _ = DIVERGENCES[certified["divergence"]]
    return [
        *facts,
        _fact("Accepted", _share(accepted), f"{results.drafter}, strict greedy, share of steps"),
        _fact("Certified", _share(certified), f"{results.drafter}, by its own {name}"),
    ]


def most_certified(results: Results, target: str) -> Row:
    """Return the row of strict greedy's certified share in the divergence that certifies most."""
    rows = [certified_in(results, target, GREEDY, name) for name in DIVERGENCES]
    return max(rows, key=lambda row: np.nan_to_num(row["value"], nan=-1.0))


def certified_in(results: Results, target: str, rule: str, divergence: str) -> Row:
    """Return the row of a rule's certified share in a divergence; NaN if it was not measured."""
    if divergence == "kl":
        row = row_of(results, target, rule, "certified")
    else:
        keys = ("target", "rule", "divergence", "depth", "statistic")
        rows = results.rows("breakdown", *keys) if "breakdown" in results else {}
        unknown = dict.fromkeys(("value", "ci_low", "ci_high"), math.nan)
        row = rows.get((target, rule, divergence, 0, "certified"), unknown)
    return {**row, "divergence": divergence}


def facts_of_target(target: Target) -> list[Row]:
    """Return the numbers shown without a drafter: certified shares of any drafter within `EPS`."""
    shares = {rule: float(np.mean(lower > EPS)) for rule, (lower, _) in target.certificates.items()}
    enough = [r for r, share in shares.items() if share >= SHARE_WANTED and isinstance(r, Additive)]
    best = min(enough, key=lambda rule: rule.t, default=None)
    within = f"any drafter within {EPS:g} nats at every step"
    facts = [
        _fact(rule.title, share_text(shares[rule]), f"certified: {within}, share of steps")
        for rule in shares
        if isinstance(rule, StrictGreedy) or rule == best
    ]
    setting = "none of this study" if best is None else best.title
    meaning = f"the strictest t of this study that certifies {100 * SHARE_WANTED:g} %: {within}"
    return [*facts, _fact("Setting", setting, meaning)]


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
    divergence = most_certified(results, target)["divergence"]
    rows = []
    for rule in in_order(rules):
        accepted, departure, given_up = (
            row_of(results, target, rule.label, name)
            for name in ("acceptance", "departure", "probability_given_up")
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
                "certified_text": _share(certified_in(results, target, rule.label, divergence)),
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

"""What the charts of a drafter and of decoding draw, as plain rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..decoding.metrics import Decoded
from ..decoding.predicted import call_costs
from ..report.records import Results, select
from ..report.sections.acceptance import LENGTH
from ..report.sections.acceptance_figures import GREEDY, row_of, rules_in
from ..report.text import number_text, share_text, symbol
from ..statistics.run_lengths import censored_ends
from .packing import digits
from .steps import family, in_order

Row = dict[str, Any]
MEASURES = {
    "acceptance": "accepted, share of steps",
    "certified": "certified, share of steps",
    LENGTH: "tokens a call, drafts of any length",
    "departure": "departs, share of steps",
    "given_up": "target probability given up a step",
}

LIFTS = (8, 23, 38)  # how far a name stands above its point, in pixels


def rule_rows(pairs: Results, target: str, marked: str) -> list[Row]:
    """Return every rule that judges tokens: what it gains and what it costs.

    Args:
        pairs: what was measured.
        target: its printed name.
        marked: label of the recommended rule, which the chart names.
    """
    presets = select(pairs["listing"], group="preset")
    known = dict(zip(presets["rule"], presets["name"], strict=True))
    labels = rules_in(pairs, "baseline", "criteria", "preset", "dial")
    rules = [rule for rule in map(pairs.rules.get, labels) if rule is not None]
    rows = []
    for rule in in_order([rule for rule in rules if rule.judges_tokens]):
        label = rule.label
        length = row_of(pairs, target, label, LENGTH)
        if not math.isfinite(length["value"]):
            continue
        named = label in (marked, GREEDY) or label in known or rule.name == "mars"
        title = rule.title + (f", {known[label]}" if label in known else "")
        bound = "≥ " if censored_ends(length)[0] else ""
        rows.append(
            {
                "label": label,
                "title": title,
                "family": family(rule),
                "name": known.get(label, rule.title) if named else "",
                "marked": label == marked,
                "tokens": digits(length["value"], 4),
                "low": digits(length["ci_low"], 4),
                "high": digits(length["ci_high"], 4),
                "tokens_text": f"{bound}{number_text(length['value'])} "
                f"[{number_text(length['ci_low'])}, {number_text(length['ci_high'])}]",
                **_shares(pairs, target, label),
            }
        )
    most = max((row["departure"] for row in rows), default=0)
    beside = sorted((row["departure"], row["label"]) for row in rows if row["name"])
    lifts = {label: LIFTS[at % len(LIFTS)] for at, (_, label) in enumerate(beside)}
    # names stand beside their points where there is room, those of neighbours one above the other
    return [
        row
        | {"side": -1 if row["departure"] > 0.6 * most else 1, "lift": lifts.get(row["label"], 0)}
        for row in rows
    ]


def _shares(pairs: Results, target: str, label: str) -> Row:
    found: Row = {}
    for name in ("acceptance", "certified", "departure", "given_up"):
        value = row_of(pairs, target, label, name)["value"]
        key = "accepted" if name == "acceptance" else name
        found |= {key: digits(value, 4), f"{key}_text": share_text(value)}
    return found


def dial_rows(pairs: Results, target: str) -> list[Row]:
    """Return every setting of every dial: a row a measure."""
    rows = []
    for setting in select(pairs["listing"], group="dial").to_dict("records"):
        for measure in MEASURES:
            row = row_of(pairs, target, setting["rule"], measure)
            if math.isnan(row["value"]):
                continue
            length = measure == LENGTH
            shown = number_text if length else share_text
            low, high = (row[name] for name in ("ci_low", "ci_high"))
            rows.append(
                {
                    "dial": setting["name"],
                    "title": pairs.names[setting["rule"]],
                    "measure": MEASURES[measure],
                    "setting": f"{symbol(setting['parameter'])} = {setting['setting']:g}",
                    "value": digits(row["value"], 4),
                    "low": digits(low, 4),
                    "high": digits(high, 4),
                    "text": f"{shown(row['value'])} [{shown(low)}, {shown(high)}]",
                }
            )
    return rows


def profile_rows(profile: pd.DataFrame, target: str, rules: Sequence[str]) -> list[Row]:
    """Return shares of accepted and certified steps by position and by margin, for some rules."""
    mine = profile[
        (profile["target"] == target) & profile["rule"].isin(rules) & (profile["steps"] > 0)
    ]
    rows = []
    for row in mine.to_dict("records"):
        by_position = row["by"] == "position"
        shown = f"{row['begin']:g} to {row['end']:g}"
        place = {
            "rule": row["rule"],
            "by": row["by"],
            "x": digits((row["begin"] + row["end"]) / 2 if by_position else row["bin"] + 1),
            "bin": shown if by_position else f"p₀ − p₁ from {shown}",
            "steps": int(row["steps"]),
        }
        rows += [
            place | {"kind": kind, "share": digits(row[kind])} for kind in ("accepted", "certified")
        ]
    return rows


def speed_rows(speeds: pd.DataFrame) -> list[Row]:
    """Return the measured speed of every method."""
    shown = {"model": "drafter", "prompt_lookup": "prompt look-up", "lookup_first": "look-up first"}
    rows = [
        {
            "name": f"{run['method']}, γ = {run['draft_length']}, T = {run['temperature']:g}",
            "drafter": shown.get(run["drafter"], run["drafter"]),
            "speedup": digits(run["speedup"]),
            "low": digits(run["ci_low"]),
            "high": digits(run["ci_high"]),
            "tokens": digits(run["tokens_per_call"]),
        }
        for run in speeds[speeds["drafter"] != "none"].to_dict("records")
    ]
    return sorted(rows, key=lambda row: -(row["speedup"] or 0))


def costs(decoded: Decoded, speeds: pd.DataFrame) -> Row | None:
    """Return what calls cost, in calls of the target alone; None where no chain was drafted.

    Returns:
        `calls`, the cost of a call with 0, 1, ... drafted tokens, of the method with the most
        draft lengths at the lowest temperature; `rho`, that of a drafted token; `verify`, that of a
        verification.
    """
    chains = speeds[(speeds["drafter"] == "model") & ~decoded.of_trees.reindex(speeds.index)]
    if chains.empty:
        return None
    coldest = chains[chains["temperature"] == chains["temperature"].min()]
    counts = coldest.groupby("method", sort=True)["draft_length"].nunique()
    method = str(counts.idxmax())
    group = coldest[coldest["method"] == method]
    seconds = np.array(call_costs(decoded, group))
    longest = group.iloc[int(group["draft_length"].to_numpy().argmax())]
    return {
        "method": method,
        "calls": [digits(cost, 4) for cost in seconds / seconds[0]],
        "rho": digits(longest["rho"]),
        "verify": digits(longest["verify_ratio"]),
        "gamma": int(longest["draft_length"]),
    }


def published_rows(compared: pd.DataFrame, target: str) -> list[Row]:
    """Return the numbers of the paper's Table 2 beside a target's, by model of the paper."""
    mine = compared[(compared["target"] == target) & (compared["table"] == "2")]
    rows = []
    for row in mine.to_dict("records"):
        key = {"paper": row["paper"], "name": row["name"], "statistic": row["statistic"]}
        rows += [
            key
            | {
                "kind": f"this study, temperature {row['temperature']:g}",
                "value": digits(row["matched"]),
                "low": digits(row["ci_low"]),
                "high": digits(row["ci_high"]),
            },
            key | {"kind": "the paper", "value": digits(row["published"])},
        ]
    return rows

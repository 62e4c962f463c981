"""How far a rule may be relaxed: where a loss of answers is excluded, and where one is measured.

A margin is fixed before anything is measured: the loss of accuracy that matters. A threshold
*excludes* it where the one-sided lower bound of the paired difference of accuracies lies above
minus the margin. Accuracy *falls* where the one-sided upper bound lies below 0.

The thresholds of one rule are tested in a fixed order, each only if those before it passed: from
strict to relaxed for the margin, from relaxed to strict for a fall. So each claim holds at the
confidence of one test, however many thresholds there are (Maurer, Hothorn and Lehmacher 1995).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..rules.rule import Rule
from ..statistics.paired import difference
from .answers import ALL


@dataclass(frozen=True)
class Family:
    """The runs of one rule that differ in one parameter.

    Attributes:
        name: of the rule, with the parameters that stay.
        parameter: that is turned; empty where the rule has none.
        runs: from strict to relaxed.
        values: of the parameter.
    """

    name: str
    parameter: str
    runs: tuple[int, ...]
    values: tuple[float, ...]


def families(runs: pd.DataFrame) -> list[Family]:
    """Return the relaxed rules of runs, each with its thresholds from strict to relaxed.

    Args:
        runs: as of `Answered`, with rule (or None) and exact.
    """
    relaxed = [
        (run, rule)
        for run, rule, exact in zip(runs.index, runs["rule"], runs["exact"], strict=True)
        if rule is not None and not exact
    ]
    groups: dict[tuple[object, ...], list[tuple[float, int]]] = {}
    for run, rule in relaxed:
        parameter = _turned(rule, [other for _, other in relaxed])
        fixed = {key: value for key, value in rule.parameters.items() if key != parameter}
        shown = [f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
                 for key, value in fixed.items()]  # fmt: skip
        setting = tuple(runs.loc[run, ["drafter", "draft_length", "temperature"]])
        key = (" ".join([rule.name, *shown]), parameter, rule.relaxes.get(parameter, 1), *setting)
        value = float(rule.parameters[parameter]) if parameter else 0.0
        groups.setdefault(key, []).append((value, run))
    found = []
    for (name, dial, sign, *_), members in groups.items():
        ordered = sorted(members, key=lambda member: sign * member[0])  # type: ignore[operator]
        values, places = zip(*ordered, strict=True)
        found.append(Family(str(name), str(dial), places, values))
    return found


def _turned(rule: Rule, others: Sequence[Rule]) -> str:
    """Return the parameter in which a rule differs from others alone, else its first."""
    dials = [key for key in rule.relaxes if key in rule.parameters]
    for key in dials:
        rest = [{**other.parameters, key: None} for other in others if other.name == rule.name]
        if rest.count({**rule.parameters, key: None}) > 1:
            return key
    return dials[0] if dials else ""


def decide(
    table: pd.DataFrame, runs: pd.DataFrame, margin: float, confidence: float
) -> pd.DataFrame:
    """Decide of every threshold whether a loss above the margin is excluded, or accuracy falls.

    Args:
        table: of `answers.accuracy`; the rows of all tasks together are taken.
        runs: of the same answers.
        margin: the loss of accuracy that matters, fixed beforehand.
        confidence: of each one-sided bound.

    Returns:
        One row a relaxed run, families one after the other and each from strict to relaxed:
        family, parameter, value, run, items, lost, won, difference, worst and best (the one-sided
        bounds of the difference), excluded and falls (this threshold alone), up_to and down_to
        (with all that are stricter, with all that are more relaxed).
    """
    totals = table[table["task"] == ALL].set_index("run")
    rows = []
    for family in families(runs):
        tested = []
        for run, value in zip(family.runs, family.values, strict=True):
            counted: Any = totals.loc[run]
            lost, won, items = (int(counted[name]) for name in ("lost", "won", "items"))
            worst, best = difference(lost, won, items, 2 * confidence - 1)
            tested.append(
                {
                    "family": family.name,
                    "parameter": family.parameter,
                    "value": value,
                    "run": run,
                    "method": counted["method"],
                    "draft_length": counted["draft_length"],
                    "temperature": counted["temperature"],
                    "items": items,
                    "lost": lost,
                    "won": won,
                    "difference": (won - lost) / items,
                    "worst": worst,
                    "best": best,
                    "excluded": worst > -margin,
                    "falls": best < 0,
                }
            )
        for at, row in enumerate(tested):
            row["up_to"] = all(one["excluded"] for one in tested[: at + 1])
            row["down_to"] = all(one["falls"] for one in tested[at:])
        rows += tested
    names = ["family", "parameter", "value", "run", "method", "draft_length", "temperature"]
    names += ["items", "lost", "won", "difference", "worst", "best", "excluded", "falls"]
    return pd.DataFrame(rows, columns=[*names, "up_to", "down_to"])


def limits(decided: pd.DataFrame) -> pd.DataFrame:
    """Return of every family the run of the largest excluded threshold, and of the first fall.

    Returns:
        One row a family: family, parameter, draft_length, temperature, largest and its worst, first
        and its best: values of the parameter and bounds, NaN where there is none.
    """
    keys = ["family", "parameter", "draft_length", "temperature"]
    rows = []
    for key, part in decided.groupby(keys, sort=False):
        safe, falling = part[part["up_to"]], part[part["down_to"]]
        rows.append(
            {
                **dict(zip(keys, key, strict=True)),
                "largest": float(safe["value"].iloc[-1]) if len(safe) else float("nan"),
                "worst": float(safe["worst"].iloc[-1]) if len(safe) else float("nan"),
                "first": float(falling["value"].iloc[0]) if len(falling) else float("nan"),
                "best": float(falling["best"].iloc[0]) if len(falling) else float("nan"),
            }
        )
    return pd.DataFrame(rows, columns=[*keys, "largest", "worst", "first", "best"])


def verdicts(decided: pd.DataFrame) -> dict[int, str]:
    """Return of every run what was decided, in a word or two."""
    found = {}
    for run, up_to, down_to in decided[["run", "up_to", "down_to"]].to_numpy().tolist():
        words = ["excluded"] * bool(up_to) + ["falls"] * bool(down_to)
        found[int(run)] = " and ".join(words) or "open"
    return found

"""Ours beside the published: a target, and the target where its p0 is nearest to the paper's.

The paper's models and prompts are not at hand for every study, but certificates depend on the
distributions alone. So a target is held against the paper at the temperature at which its p0 has
the statistics of Table 1. Where p0 then matches and certificates do not, no model is to blame.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ...rules import Rule, TopMAdditive
from ...statistics.bootstrap import Floats, point_statistics
from .. import published
from ..measured import Measured
from ..published import CAP, EPS, STATISTICS

PAPERS = tuple(published.TOP_PROBABILITY)
RULES: tuple[Rule, ...] = tuple(dict.fromkeys([*published.TABLE2, *published.P5[PAPERS[0]]]))
RUNS = "5 and 6"  # tables of one layout, one a model of the paper
TABLES = ("1", "2", "3", "4", RUNS)
HALF_DIGIT = {RUNS: 0.005}  # half a unit of the last printed digit
HALF_DIGIT |= dict.fromkeys(TABLES[:-1], 0.0005)


@dataclass(frozen=True)
class Match:
    """A target at the temperature at which its p0 is nearest to that of a model of the paper.

    Attributes:
        target: its printed name.
        paper: the model's, a key of the tables in `published`.
        own: temperature of the study's certificates.
        temperature: the nearest one.
        least, most: the temperatures that were looked at reach so far.
        measured: the target alone, at `temperature`, its run lengths at `published.EPS`.
    """

    target: str
    paper: str
    own: float
    temperature: float
    least: float
    most: float
    measured: Measured


def nearest_temperature(p0: Mapping[float, Floats], paper: str) -> float:
    """Return the temperature at which p0 is nearest to a model of the paper.

    Distance is the root of the summed squares over mean, median, p5 and p25 of p0, Table 1's row
    k = 1.

    Args:
        p0: by temperature, the (N,) probability of the most probable token.
        paper: a key of `published.TOP_PROBABILITY`.

    Example:
        >>> at = {0.5: np.array([0.3, 0.9, 1.0]), 1.0: np.array([0.1, 0.4, 0.8])}
        >>> nearest_temperature(at, "Qwen3-1.7B")
        0.5
    """
    wanted = np.array(published.TOP_PROBABILITY[paper][1])
    distance = {}
    for temperature, values in p0.items():
        found = point_statistics(values)
        distance[temperature] = float(
            np.linalg.norm(np.array([found[name] for name in STATISTICS]) - wanted)
        )
    return min(distance, key=lambda temperature: distance[temperature])


def compare(ours: Measured, matches: Sequence[Match]) -> pd.DataFrame:
    """Return every number that the paper prints of what a study has, beside the study's.

    Returns:
        One number a row: `target`, `paper`, `table` (of `TABLES`), `row` (a rule's label, or k),
        `name` (as printed), `statistic` (or ε), `value` and `optimistic` of the study itself,
        `temperature`, `matched`, `matched_optimistic`, `ci_low` and `ci_high` at it, `published`,
        `difference` (matched less published; 0 within the two ends of an interval), and `outside`:
        whether the published number, up to its rounding, lies outside the interval over prompts.
        Empty regions stand as the ceiling of their rule, run lengths above the paper's cap as it.
    """
    rules = [rule for rule in RULES if rule in ours.rules]
    rows = []
    for match in matches:
        own, found = _Found(ours, match.target), _Found(match.measured, match.target)
        for cell in _printed(match.paper, rules):
            mine = found.get(cell)
            if mine is None:
                continue
            asked = own.get(cell) or {"value": math.nan, "optimistic": math.nan}
            rows.append(
                {
                    "target": match.target,
                    "paper": match.paper,
                    "table": cell.table,
                    "row": cell.row.label if isinstance(cell.row, Rule) else str(cell.row),
                    "name": cell.row.title if isinstance(cell.row, Rule) else f"k = {cell.row}",
                    "statistic": cell.column,
                    "value": asked["value"],
                    "optimistic": asked["optimistic"],
                    "temperature": match.temperature,
                    "matched": mine["value"],
                    "matched_optimistic": mine["optimistic"],
                    "ci_low": mine["ci_low"],
                    "ci_high": mine["ci_high"],
                    "published": cell.published,
                    **_held_against(mine, cell),
                }
            )
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class _Printed:
    """A number of the paper; `column` is a statistic, or ε."""

    table: str
    row: Rule | int
    column: str | float
    published: float

    @property
    def ceiling(self) -> float:
        """What a number can't exceed, and is cut at."""
        if self.table == RUNS:
            return CAP
        return self.row.ceiling if isinstance(self.row, Rule) else 1.0


def _printed(paper: str, rules: Sequence[Rule]) -> Iterator[_Printed]:
    """Yield what the paper prints of one of its models, of some rules, table by table."""
    for k, cells in published.TOP_PROBABILITY[paper].items():
        yield from (_Printed("1", k, *pair) for pair in zip(STATISTICS, cells, strict=True))
    for rule in rules:
        cells = published.CERTIFICATES[paper].get(rule, ())
        yield from (_Printed("2", rule, *pair) for pair in zip(STATISTICS, cells, strict=False))
    for rule, value in published.P5[paper].items():
        if rule in rules:
            yield _Printed("4" if isinstance(rule, TopMAdditive) else "3", rule, "p5", value)
    for rule in rules:
        cells = published.RUN_LENGTHS[paper].get(rule, ())
        for eps, value in zip(EPS, cells, strict=False):
            yield _Printed(RUNS, rule, eps, min(value, CAP))


class _Found:
    """What was measured of one target, by the cells of the paper's tables."""

    def __init__(self, measured: Measured, target: str) -> None:
        self._measured, self._target = measured, target
        self._top = {
            (row["k"], row["statistic"]): row
            for row in measured.top.to_dict("records")
            if row["target"] == target
        }
        self._runs = {
            (row["rule"], row["eps"]): row
            for row in measured.runs.to_dict("records")
            if row["target"] == target and row["estimator"] == "per_call"
        }

    def get(self, cell: _Printed) -> dict[str, float] | None:
        """Return value, optimistic, ci_low and ci_high, cut at the ceiling; None if not there."""
        row: dict[Any, Any] | None
        if not isinstance(cell.row, Rule):
            row = self._top.get((cell.row, cell.column))
        elif cell.table == RUNS:
            row = self._runs.get((cell.row.label, cell.column))
        else:
            row = self._measured.row(self._target, cell.row.label, str(cell.column))
        if row is None:
            return None
        names = ("value", "optimistic", "ci_low", "ci_high")
        return {name: float(np.minimum(row[name], cell.ceiling)) for name in names}


def _held_against(found: Mapping[str, float], cell: _Printed) -> dict[str, float | bool]:
    """Return the difference to the published number, and whether that is outside the interval."""
    half, printed = HALF_DIGIT[cell.table], cell.published
    difference = min(found["optimistic"] - printed, 0.0) or max(found["value"] - printed, 0.0)
    within = found["ci_low"] - half <= printed <= found["ci_high"] + half
    known = not math.isnan(found["ci_low"] + found["ci_high"])
    return {"difference": difference, "outside": known and not within}

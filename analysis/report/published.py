"""The tables printed in the paper (arXiv 2606.30265v1, Tables 1 to 6).

`published.toml` has them as printed. They are for comparison only; nothing is fitted to them. The
dictionaries are keyed by the label of a target, then by a rule or a parameter.
"""

from __future__ import annotations

import math
import pkgutil
import tomllib
from collections.abc import Mapping
from typing import Any

from ..rule_config import build
from ..rules import Rule, TopMAdditive

STATISTICS = ("mean", "median", "p5", "p25")
LEVELS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.69)
RUNS = "5 and 6"  # two tables with the same layout, one for each model
DIGITS = {"1": 3, "2": 3, "3": 3, "4": 3, RUNS: 2}  # decimals of the paper's tables
ByRule = dict[str, dict[Rule, tuple[float, ...]]]

_READ = tomllib.loads((pkgutil.get_data(__package__, "published.toml") or b"").decode())


def _rule(label: str) -> Rule:
    """Return the rule of a label, for instance "additive t=0.1"."""
    name, *settings = label.split()
    pairs = (setting.split("=") for setting in settings)
    return build({"rule": name} | {key: float(x) if "." in x else int(x) for key, x in pairs})


def _by_rule(table: str) -> ByRule:
    return {
        model: {_rule(label): tuple(cells) for label, cells in rows.items()}
        for model, rows in _READ[table].items()
    }


# Table 1: probability of the k most probable tokens, by k: STATISTICS
TOP_PROBABILITY: dict[str, dict[int, tuple[float, ...]]] = {
    model: {int(k): tuple(cells) for k, cells in rows.items()}
    for model, rows in _READ["table1"].items()
}
CERTIFICATES = _by_rule("table2")  # Table 2, in nats: STATISTICS
P5: ByRule = {  # Tables 3 and 4, in nats
    model: rows
    | {
        TopMAdditive(m, float(t)): (value,)
        for t, cells in _READ["table4"][model].items()
        for m, value in zip((2, 4, 6, 8), cells, strict=True)
    }
    for model, rows in _by_rule("table3").items()
}
RUN_LENGTHS = _by_rule("table5")  # Tables 5 and 6, mean acceptance length in tokens: LEVELS
PAPER_MODELS = tuple(TOP_PROBABILITY)
TABLE2 = tuple(CERTIFICATES[PAPER_MODELS[0]])  # its rules, which Tables 5 and 6 show as well


def printed_rows(model: str) -> list[tuple[str, Rule | int, str | float, float]]:
    """Return every number printed for a model: table, row (rule or k), column, value."""
    tables: list[tuple[str, Mapping[Any, tuple[float, ...]], tuple[Any, ...]]] = [
        ("1", TOP_PROBABILITY[model], STATISTICS),
        ("2", CERTIFICATES[model], STATISTICS),
        ("", P5[model], ("p5",)),
        (RUNS, RUN_LENGTHS[model], LEVELS),
    ]
    return [
        (table or _sensitivity_table(row), row, column, value)
        for table, cells_by_row, columns in tables
        for row, cells in cells_by_row.items()
        for column, value in zip(columns, cells, strict=True)
    ]


def _sensitivity_table(row: Rule) -> str:
    return "4" if type(row) is TopMAdditive else "3"


_BY_CELL = {
    (model, row, column): value
    for model in PAPER_MODELS
    for _, row, column, value in printed_rows(model)
}


def printed(target: str, row: Rule | int, column: str | float) -> float:
    """Return the number that the paper prints for a target; NaN if it has none.

    A row is a rule or the k of Table 1; a column a statistic, or ε in Tables 5 and 6 (inf above
    their cap).

    >>> printed("Qwen3-4B", 3, "p5"), printed("mini", 3, "p5"), printed("Qwen3-4B", TABLE2[6], 0.01)
    (0.787, nan, 64.57)
    """
    return _BY_CELL.get((target, row, column), math.nan)

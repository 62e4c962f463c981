"""The tables printed in the paper (arXiv 2606.30265v1, Tables 1 to 6), and a study beside them.

They are transcribed in `published.toml` as printed, for comparison only; nothing is fitted to them.
Keys are the label of a target, then a rule or a parameter.
"""

from __future__ import annotations

import math
import pkgutil
import tomllib
from collections.abc import Mapping
from typing import Any

import pandas as pd

from ..rule_config import build
from ..rules import Rule, TopMAdditive
from ..statistics.run_lengths import with_censored
from .results import Results
from .table import Section, Table
from .text import CAP, UNDEFINED, number_text, run_text

PRINTED = ("mean", "median", "p5", "p25")
EPS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.69)
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


# Table 1: probability of the k most probable tokens, by k: PRINTED
TOP_PROBABILITY: dict[str, dict[int, tuple[float, ...]]] = {
    model: {int(k): tuple(cells) for k, cells in rows.items()}
    for model, rows in _READ["table1"].items()
}
CERTIFICATES = _by_rule("table2")  # Table 2, in nats: PRINTED
P5: ByRule = {  # Tables 3 and 4, in nats
    model: rows
    | {
        TopMAdditive(m, float(t)): (value,)
        for t, cells in _READ["table4"][model].items()
        for m, value in zip((2, 4, 6, 8), cells, strict=True)
    }
    for model, rows in _by_rule("table3").items()
}
RUN_LENGTHS = _by_rule("table5")  # Tables 5 and 6, mean acceptance length in tokens: EPS
PAPERS = tuple(TOP_PROBABILITY)  # the models
TABLE2 = tuple(CERTIFICATES[PAPERS[0]])  # its rules, which Tables 5 and 6 show as well


def printed_rows(paper: str) -> list[tuple[str, Rule | int, str | float, float]]:
    """Return every number printed for a model: table, row (rule or k), column, value."""
    tables: list[tuple[str, Mapping[Any, tuple[float, ...]], tuple[Any, ...]]] = [
        ("1", TOP_PROBABILITY[paper], PRINTED),
        ("2", CERTIFICATES[paper], PRINTED),
        ("", P5[paper], ("p5",)),
        (RUNS, RUN_LENGTHS[paper], EPS),
    ]
    return [
        (table or ("4" if type(row) is TopMAdditive else "3"), row, column, value)
        for table, cells_by_row, columns in tables
        for row, cells in cells_by_row.items()
        for column, value in zip(columns, cells, strict=True)
    ]


_BY_CELL = {
    (paper, row, column): value for paper in PAPERS for _, row, column, value in printed_rows(paper)
}


def printed(target: str, row: Rule | int, column: str | float) -> float:
    """Return the number that the paper prints for a target; NaN if it has none.

    A row is a rule or the k of Table 1; a column a statistic, or ε in Tables 5 and 6 (inf above
    their cap).

    >>> printed("Qwen3-4B", 3, "p5"), printed("mini", 3, "p5"), printed("Qwen3-4B", TABLE2[6], 0.01)
    (0.787, nan, 64.57)
    """
    return _BY_CELL.get((target, row, column), math.nan)


def published_section(results: Results) -> Section | None:
    """Return the section that compares targets with the paper; None if none is the paper's."""
    compared = compare(results)
    if compared.empty:
        return None
    return Section("Beside the published", [published_table(compared)], outside(compared))


def compare(results: Results) -> pd.DataFrame:
    """Return the paper's numbers for the rules of a study, with the study's own.

    Returns:
        One row for each number of a target that the paper has: `target`, `table` (of `DIGITS`),
        `row` (a rule's label, or k), `name` (as printed), `statistic` (or ε); `value`, `ci_low` and
        `ci_high` of the study; `published`; `difference` (value minus published); `outside`,
        whether the published number, up to its rounding, is outside the interval over prompts.
        Empty regions count as the rule's ceiling, run lengths above the paper's cap as the cap.
        `censored`: whether the length is a lower bound below the cap. A lower bound has no
        difference and is not outside.
    """
    frames = []
    for target in [target for target in results.targets if target in PAPERS]:
        rows = [
            {
                "table": table,
                "row": row.label if isinstance(row, Rule) else str(row),
                "name": row.title if isinstance(row, Rule) else f"k = {row}",
                "statistic": statistic,
                "published": min(value, CAP),
                "ceiling": CAP if table == RUNS else row.ceiling if isinstance(row, Rule) else 1.0,
            }
            for table, row, statistic, value in printed_rows(target)
            if row in results.certified_rules or not isinstance(row, Rule)
        ]
        ours = _ours(results, target)
        frames.append(pd.DataFrame(rows).merge(ours, on=["row", "statistic"]))
        frames[-1]["target"] = target
    if not frames:
        return pd.DataFrame()
    data = pd.concat(frames, ignore_index=True)
    for name in ("value", "ci_low", "ci_high"):
        data[name] = data[name].clip(upper=data["ceiling"])
    published, bound = data["published"], data["censored"].eq(True) & (data["value"] < CAP)
    half = 0.5 * 10.0 ** -data["table"].map(DIGITS)
    within = (data["ci_low"] - half <= published) & (published <= data["ci_high"] + half)
    has_interval = (data["ci_low"] + data["ci_high"]).notna()
    data = data.assign(
        difference=(data["value"] - published).mask(bound),
        outside=has_interval & ~within & ~bound,
        censored=bound,
    )
    first = ["target", "table", "row", "name", "statistic", "value", "ci_low", "ci_high"]
    return data[[*first, "published", "difference", "outside", "censored"]]


def _ours(results: Results, target: str) -> pd.DataFrame:
    """Return the results of one target, by row and statistic of the paper's tables."""
    top = results.select("top", target=target)
    runs = results.select("runs", target=target, estimator="per_call")
    parts = [
        top.assign(row=top["k"].astype(str)),
        results.select("certificates", target=target).rename(columns={"rule": "row"}),
        runs.rename(columns={"rule": "row", "eps": "statistic"}),
    ]
    names = ["row", "statistic", "value", "ci_low", "ci_high", "cut"]
    filled = [
        part.reindex(columns=names).astype({"statistic": object}) for part in parts if len(part)
    ]
    return with_censored(pd.concat(filled)).drop(columns="cut")


def outside(compared: pd.DataFrame) -> list[str]:
    """Return a line a target: how many published numbers, lower bounds aside, are outside."""
    lines = []
    for target, numbers in compared.groupby("target", sort=False):
        counts = ", ".join(
            f"{_heading(str(table))} {part['outside'].sum()} of {part['difference'].count()}"
            for table, part in numbers.groupby("table", sort=False)
        )
        lines.append(f"{target}: published numbers outside our intervals over prompts: {counts}.")
    return lines


def published_table(compared: pd.DataFrame) -> Table:
    """Return all numbers of the paper: ours, published, and the difference."""
    lines = []
    for row in compared.to_dict("records"):
        table, at = row["table"], row["statistic"]
        ends = ", ".join(_number(table, row[end]) for end in ("ci_low", "ci_high"))
        difference = f"{row['difference']:+z.{DIGITS[table]}f}".replace("-", "−")
        difference += " ≠" * row["outside"]
        lines.append(
            {
                "target": row["target"],
                "table": _heading(table),
                "Row": f"{row['name']}, {at if isinstance(at, str) else f'ε = {at:g}'}",
                "ours": f"{_number(table, row['value'], row['censored'])} [{ends}]",
                "published": _number(table, row["published"]),
                "difference": UNDEFINED if math.isnan(row["difference"]) else difference,
            }
        )
    return Table(
        "published",
        "The paper's tables beside the published",
        "Ours: as certified in this study, with bootstrap intervals over prompts. Difference: ours "
        "less published (arXiv 2606.30265v1); ≠: the published number lies outside the interval. "
        "≥: a lower bound, as the ends of answers cut many calls; it has no difference.",
        compared,
        pd.DataFrame(lines).set_index(["target", "table", "Row"]),
    )


def _heading(table: str) -> str:
    return f"Table{'s' * (table == RUNS)} {table}"


def _number(table: str, value: float, censored: bool = False) -> str:
    if table == RUNS:
        return run_text(math.inf if value >= CAP else value, censored)
    return number_text(value, DIGITS[table])

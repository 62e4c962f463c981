"""A study's numbers beside those that the paper prints (`published`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ..acceptance.target import Target
from ..rules import Rule
from ..statistics.estimate import interval_columns
from ..statistics.run_lengths import with_censored
from .published import DIGITS, PAPER_MODELS, RUNS, printed_rows
from .published_claims import claims_table
from .results import Results
from .table import Section, Table
from .text import CAP, UNDEFINED, number_text, run_text


def published_section(results: Results, targets: Sequence[Target] = ()) -> Section | None:
    """Return the section that compares targets with the paper; None if the paper has none of them.

    `targets` have the steps of those in `results`, for the paper's claims about single steps.
    """
    compared = compare_with_paper(results)
    if compared.empty:
        return None
    items = [claims_table(compared, targets), published_table(compared)]
    return Section("Beside the published", items, outside_sentences(compared))


def compare_with_paper(results: Results) -> pd.DataFrame:
    """Return the numbers that the paper prints for a study's targets and rules, with the study's.

    Returns:
        One row for each number of a target that the paper has: `target`, `table` (of `DIGITS`),
        `row` (a rule's label, or k), `name` (as printed), `statistic` (or ε); `value`, `ci_low` and
        `ci_high` of the study; `published`; `difference` (value minus published); `outside`,
        whether the published number, up to its rounding, is outside the interval over prompts;
        `censored`, whether the study's run length is only a lower bound, below the paper's cap. A
        lower bound has no difference and is not outside. Certificates of empty rejection regions
        count as the rule's ceiling, and run lengths above the paper's cap as the cap.
    """
    targets = [target for target in results.targets if target in PAPER_MODELS]
    if not targets:
        return pd.DataFrame()
    data = pd.concat([_paired_cells(results, target) for target in targets], ignore_index=True)
    published = data["published"]
    is_bound = data["censored"].eq(True) & (data["value"] < CAP)
    rounding = 0.5 * 10.0 ** -data["table"].map(DIGITS)
    above_low = data["ci_low"] - rounding <= published
    below_high = published <= data["ci_high"] + rounding
    has_interval = (data["ci_low"] + data["ci_high"]).notna()
    data = data.assign(
        difference=(data["value"] - published).mask(is_bound),
        outside=has_interval & ~(above_low & below_high) & ~is_bound,
        censored=is_bound,
    )
    first = ["target", "table", "row", "name", "statistic", "value", "ci_low", "ci_high"]
    return data[[*first, "published", "difference", "outside", "censored"]]


def _paired_cells(results: Results, target: str) -> pd.DataFrame:
    """Return the printed cells of a target with the study's values, which are at most the ceiling.

    Cells of rules that the study lacks are left out.
    """
    rows = [
        {"target": target, "table": table, "statistic": statistic, "published": min(value, CAP)}
        | _row_keys(table, row)
        for table, row, statistic, value in printed_rows(target)
        if row in results.certified_rules or not isinstance(row, Rule)
    ]
    cells = pd.DataFrame(rows).merge(_study_values(results, target), on=["row", "statistic"])
    for name in ("value", "ci_low", "ci_high"):
        cells[name] = cells[name].clip(upper=cells["ceiling"])
    return cells


def _row_keys(table: str, row: Rule | int) -> dict[str, Any]:
    """Return the key, the printed name and the largest value of a row of the paper's tables."""
    if isinstance(row, Rule):
        ceiling = CAP if table == RUNS else row.ceiling
        return {"row": row.label, "name": row.title, "ceiling": ceiling}
    return {"row": str(row), "name": f"k = {row}", "ceiling": 1.0}


def _study_values(results: Results, target: str) -> pd.DataFrame:
    """Return the results of one target, by row and statistic of the paper's tables."""
    top = results.select("top", target=target)
    runs = results.select("run_lengths", target=target, estimator="per_call")
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


def outside_sentences(compared: pd.DataFrame) -> list[str]:
    """Return a line for each target: how many published numbers are outside the intervals."""
    lines = []
    for target, numbers in compared.groupby("target", sort=False):
        counts = ", ".join(
            f"{_heading(str(table))} {part['outside'].sum()} of {part['difference'].count()}"
            for table, part in numbers.groupby("table", sort=False)
        )
        lines.append(f"{target}: published numbers outside our intervals over prompts: {counts}.")
    return lines


def published_table(compared: pd.DataFrame) -> Table:
    """Return the table of all numbers that the paper prints: ours, published, the difference."""
    lines = []
    for row in compared.to_dict("records"):
        table = row["table"]
        statistic = row["statistic"]
        column = statistic if isinstance(statistic, str) else f"ε = {statistic:g}"
        ends = ", ".join(_number(table, row[end]) for end in interval_columns("value"))
        lines.append(
            {
                "target": row["target"],
                "table": _heading(table),
                "Row": f"{row['name']}, {column}",
                "ours": f"{_number(table, row['value'], row['censored'])} [{ends}]",
                "published": _number(table, row["published"]),
                "difference": _difference(table, row["difference"], row["outside"]),
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
    return f"Tables {table}" if table == RUNS else f"Table {table}"


def _difference(table: str, difference: float, outside: bool) -> str:
    if math.isnan(difference):
        return UNDEFINED
    text = f"{difference:+z.{DIGITS[table]}f}".replace("-", "−")
    return f"{text} ≠" if outside else text


def _number(table: str, value: float, censored: bool = False) -> str:
    if table == RUNS:
        return run_text(math.inf if value >= CAP else value, censored)
    return number_text(value, DIGITS[table])

"""Comparison with the paper's tables, where a target is one of the paper's models."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from ..rules import Rule
from ..statistics.run_lengths import with_censored
from .measured import Results
from .published import CAP, PAPERS, RUNS, printed_rows
from .table import Section, Table
from .text import UNDEFINED, number_text, run_text

DIGITS = {"1": 3, "2": 3, "3": 3, "4": 3, RUNS: 2}  # decimals of the paper's tables
DIFFERS = "≠"


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
    frames = [
        _published(target, results.certified)
        .merge(_measured(results, target), on=["row", "statistic"])
        .assign(target=target)
        for target in results.targets
        if target in PAPERS
    ]
    if not frames:
        return pd.DataFrame()
    data = pd.concat(frames, ignore_index=True)
    for name in ("value", "ci_low", "ci_high"):
        data[name] = data[name].clip(upper=data["ceiling"])
    published, bound = data["published"], data["censored"].eq(True) & (data["value"] < CAP)
    half = data["table"].map({table: 0.5 * 10**-digits for table, digits in DIGITS.items()})
    within = (data["ci_low"] - half <= published) & (published <= data["ci_high"] + half)
    has_interval = (data["ci_low"] + data["ci_high"]).notna()
    data = data.assign(
        difference=(data["value"] - published).mask(bound),
        outside=has_interval & ~within & ~bound,
        censored=bound,
    )
    first = ["target", "table", "row", "name", "statistic", "value", "ci_low", "ci_high"]
    return data[[*first, "published", "difference", "outside", "censored"]]


def _published(paper: str, rules: Sequence[Rule]) -> pd.DataFrame:
    """Return the paper's numbers for one of its models and some rules, table by table."""
    return pd.DataFrame(
        [
            {
                "table": table,
                "row": row.label if isinstance(row, Rule) else str(row),
                "name": row.title if isinstance(row, Rule) else f"k = {row}",
                "statistic": statistic,
                "published": min(value, CAP),
                "ceiling": CAP if table == RUNS else row.ceiling if isinstance(row, Rule) else 1.0,
            }
            for table, row, statistic, value in printed_rows(paper)
            if row in rules or not isinstance(row, Rule)
        ]
    )


def _measured(results: Results, target: str) -> pd.DataFrame:
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
    """Return a line for each target: how many published numbers are outside our intervals.

    Lengths that are only lower bounds are not counted.
    """
    lines = []
    for target, numbers in compared.groupby("target", sort=False):
        of_table = {table: numbers[numbers["table"] == table] for table in DIGITS}
        parts = {"p₀": of_table["1"][of_table["1"]["row"] == "1"]}
        parts |= {f"Table{'s' * (table == RUNS)} {table}": of for table, of in of_table.items()}
        counts = [
            f"{name} {part['outside'].sum()} of {part['difference'].count()}"
            for name, part in parts.items()
            if len(part)
        ]
        lines.append(
            f"{target}: published numbers outside our intervals over prompts: {', '.join(counts)}."
        )
    return lines


def published_table(compared: pd.DataFrame) -> Table:
    """Return all numbers of the paper: ours, published, and the difference."""
    lines = []
    for _, row in compared.iterrows():
        table, value, at = row["table"], row["value"], row["statistic"]
        ends = ", ".join(_number(table, row[end]) for end in ("ci_low", "ci_high"))
        difference = f"{row['difference']:+z.{DIGITS[table]}f}".replace("-", "−")
        lines.append(
            {
                "target": row["target"],
                "table": f"Table{'s' * (table == RUNS)} {table}",
                "Row": f"{row['name']}, {at if isinstance(at, str) else f'ε = {at:g}'}",
                "ours": f"{_number(table, value, row['censored'])} [{ends}]",
                "published": _number(table, row["published"]),
                "difference": UNDEFINED
                if math.isnan(row["difference"])
                else f"{difference} {DIFFERS}"[: None if row["outside"] else -2],
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


def _number(table: str, value: float, censored: bool = False) -> str:
    if table == RUNS:
        return run_text(math.inf if value >= CAP else value, censored)
    return number_text(value, DIGITS[table])

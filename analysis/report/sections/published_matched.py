"""Comparison with the paper: a target as it is, and at the temperature that matches the paper's p0.

The paper's models and prompts are not available in every study, but certificates depend on the
distributions alone. So a target is compared with the paper at the temperature at which the
statistics of its p0 are nearest to Table 1. If p0 then matches and certificates differ, the model
is not the cause.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from ...rules import Rule
from ...statistics.bootstrap import Floats, point_statistics
from ...statistics.run_lengths import MARKS, with_censored
from ..measured import Results
from ..published import CAP, P5_RULES, PAPERS, RUNS, STATISTICS, TABLE2, printed, printed_rows
from ..records import Column, Section, Table, across, select, worded
from ..text import digits_text, few_notes, number_text, range_text, run_text

RULES: tuple[Rule, ...] = tuple(dict.fromkeys([*TABLE2, *P5_RULES]))
DIGITS = {"1": 3, "2": 3, "3": 3, "4": 3, RUNS: 2}  # decimals of the paper's tables
DIFFERS = "≠"
CENSORED = tuple(MARKS.values())  # whether value and value_upper are lower bounds
# A match is the `Results` of one target at the temperature at which its p0 is nearest to that of a
# model of the paper. Its facts: `paper`, the model's name; `own`, the temperature of the study's
# certificates; `temperature`, the nearest one; `least` and `most` of the stored temperatures.
OPENING = (
    "The paper's Tables 1 to 6 are of its own models on its own prompts. Here each target is "
    "compared with them twice: as it is, and at the temperature at which the probability of its "
    "most probable token is distributed most like the paper's."
)


def nearest_temperature(p0: Mapping[float, Floats], paper: str) -> float:
    """Return the temperature at which p0 is nearest to that of a model of the paper.

    The distance is Euclidean over mean, median, p5 and p25 of p0, Table 1's row k = 1.

    Args:
        p0: by temperature, the (N,) probability of the most probable token.
        paper: one of `published.PAPERS`.

    Examples:
        >>> import numpy as np
        >>> at = {0.5: np.array([0.3, 0.9, 1.0]), 1.0: np.array([0.1, 0.4, 0.8])}
        >>> nearest_temperature(at, "Qwen3-1.7B")
        0.5
    """

    def distance(temperature: float) -> float:
        statistics = point_statistics(p0[temperature])
        return math.hypot(*(statistics[name] - printed(paper, 1, name) for name in STATISTICS))

    return min(p0, key=distance)


def compare(results: Results, matches: Sequence[Results]) -> pd.DataFrame:
    """Return the paper's numbers for the rules of a study, with the study's own.

    Returns:
        One row for each number: `target`, `paper`, `table` (of `DIGITS`), `row` (a rule's label, or
        k), `name` (as printed), `statistic` (or ε); `value` and `value_upper` of the study itself;
        `temperature`, and `matched`, `matched_upper`, `ci_low`, `ci_high` at this temperature;
        `published`; `difference` (matched minus published; 0 between the two ends of an interval);
        `outside`, whether the published number, up to its rounding, is outside the interval over
        prompts. Empty regions count as the rule's ceiling, run lengths above the paper's cap as the
        cap. `censored`, `censored_upper`, and the same with `matched_`: whether the length is
        a lower bound below the cap. A lower bound has no difference and is not outside.
    """
    frames = []
    for match in matches:
        (target,), paper = match.targets, match.facts["paper"]
        matched = _measured(match, target).rename(
            columns={
                "value": "matched",
                "value_upper": "matched_upper",
                **{name: f"matched_{name}" for name in CENSORED},
            }
        )
        own = _measured(results, target)[["row", "statistic", "value", "value_upper", *CENSORED]]
        frame = _published(paper, results.certified).merge(matched, on=["row", "statistic"])
        frame = frame.merge(own, on=["row", "statistic"], how="left")
        frames.append(frame.assign(target=target, temperature=match.facts["temperature"]))
    data = pd.concat(frames, ignore_index=True)
    for name in ("value", "value_upper", "matched", "matched_upper", "ci_low", "ci_high"):
        data[name] = data[name].clip(upper=data["ceiling"])
    for value, mark in zip(
        ("value", "value_upper", "matched", "matched_upper"),
        (*CENSORED, *(f"matched_{name}" for name in CENSORED)),
        strict=True,
    ):
        data[mark] = data[mark].eq(True) & (data[value] < CAP)
    bound = data["matched_censored"] | data["matched_censored_upper"]
    published = data["published"]
    half = data["table"].map({table: 0.5 * 10**-digits for table, digits in DIGITS.items()})
    below = (data["matched_upper"] - published).clip(upper=0)
    above = (data["matched"] - published).clip(lower=0)
    within = (data["ci_low"] - half <= published) & (published <= data["ci_high"] + half)
    has_interval = (data["ci_low"] + data["ci_high"]).notna()
    difference = below.where(below < 0, above).mask(bound)
    data = data.assign(difference=difference, outside=has_interval & ~within & ~bound)
    first = ["target", "paper", "table", "row", "name", "statistic", "value", "value_upper"]
    then = ["temperature", "matched", "matched_upper", "ci_low", "ci_high", "published"]
    marks = [*CENSORED, *(f"matched_{name}" for name in CENSORED)]
    return data[[*first, *then, "difference", "outside", *marks]]


def _published(paper: str, rules: Sequence[Rule]) -> pd.DataFrame:
    """Return the paper's numbers for one of its models and some rules, table by table."""
    return pd.DataFrame(
        [
            {
                "paper": paper,
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
    names = ["row", "statistic", "value", "value_upper", "ci_low", "ci_high", *MARKS]
    filled = [
        part.reindex(columns=names).astype({"statistic": object}) for part in parts if len(part)
    ]
    return with_censored(pd.concat(filled)).drop(columns=[*MARKS])


def published_section(compared: pd.DataFrame, matches: Sequence[Results]) -> Section:
    """Return the section that compares targets with the paper, from the frame of `compare`."""
    tables = [agreement_table(compared, matches), numbers_table(compared, matches)]
    return Section("Beside the published", tables, [OPENING])


def agreement_table(compared: pd.DataFrame, matches: Sequence[Results]) -> Table:
    """Return the number of published values outside our intervals, for each table of the paper.

    Lengths that are only lower bounds are not counted.
    """
    rows, notes = [], []
    for match in matches:
        (target,), facts = match.targets, match.facts
        numbers = select(compared, target=target, paper=facts["paper"])
        parts = {"p0": select(numbers, table="1", row="1")}
        parts |= {table: select(numbers, table=table) for table in DIGITS}
        counts = {
            name: f"{part['outside'].sum()} of {part['difference'].count()}" if len(part) else ""
            for name, part in parts.items()
        }
        pair, temperature = f"{target} beside {facts['paper']}", facts["temperature"]
        row = {"target": target, "paper": facts["paper"], "temperature": temperature}
        rows.append({"pair": pair, **row, **counts})
        if facts["least"] < facts["most"] and temperature in (facts["least"], facts["most"]):
            notes.append(
                f"{pair}: {temperature:g} is an end of distributions.temperatures: a temperature "
                "beyond it may be nearer."
            )
    return Table(**worded("published_agreement"), data=pd.DataFrame(rows), notes=notes)


def numbers_table(compared: pd.DataFrame, matches: Sequence[Results]) -> Table:
    """Return all tables of the paper: ours, ours matched, published, and the difference."""
    certified: dict[str, float] = {}
    temperatures: dict[str, list[str]] = {}
    for match in matches:
        (target,), facts = match.targets, match.facts
        certified[target] = facts["own"]
        temperatures.setdefault(target, []).append(f"{facts['temperature']:g} for {facts['paper']}")
    headings = [
        f"{target}, {_named(table)}: ours at temperature {certified[target]:g}, "
        f"matched at {', '.join(temperatures[target])}"
        for target, table in zip(compared["target"], compared["table"], strict=True)
    ]
    lines = [
        f"{name}, {column if isinstance(column, str) else f'ε = {column:g}'}"
        for name, column in zip(compared["name"], compared["statistic"], strict=True)
    ]
    limits = ("matched", "matched_upper", "ci_low", "ci_high")
    marks = tuple(f"matched_{name}" for name in CENSORED)
    columns = [
        Column("matched", _matched, ("table", *limits, *marks)),
        Column("published", _printed_text, ("table", "theirs")),
        Column("difference", _difference, ("difference", "table", "outside")),
    ]
    own = ("table", "value", "value_upper", *CENSORED)
    own_column = Column("ours", _number, own, {"paper": PAPERS[0]})
    shown = compared.assign(heading=headings, line=lines).rename(columns={"published": "theirs"})
    return Table(
        **worded("published", more=[own_column, *across(PAPERS, columns, key="paper")]),
        data=compared,
        shown=shown,
        notes=few_notes(prompts for match in matches for prompts in match["top"]["prompts"]),
    )


def _named(table: str) -> str:
    return f"Tables {table}" if table == RUNS else f"Table {table}"


def _number(table: str, value: float, value_upper: float, *censored: bool) -> str:
    if table == RUNS:
        value, value_upper = (math.inf if end >= CAP else end for end in (value, value_upper))
        return run_text(value, value_upper, censored or (False, False))
    return range_text(digits_text(value), digits_text(value_upper))


def _matched(
    table: str, value: float, value_upper: float, low: float, high: float, *censored: bool
) -> str:
    ends = ", ".join(_number(table, end, end) for end in (low, high))
    return f"{_number(table, value, value_upper, *censored)} [{ends}]"


def _printed_text(table: str, value: float) -> str:
    """Return a number of the paper with the paper's digits."""
    return _number(table, value, value) if table == RUNS else number_text(value, 3)


def _difference(difference: float, table: str, outside: bool) -> str:
    text = f"{difference:+z.{DIGITS[table]}f}".replace("-", "−")
    return f"{text} {DIFFERS}" if outside else text

"""The paper's Tables 1 to 6 for any targets and rules, and a table of the other rules.

Every function takes `Results` and returns a `Table`, or None if the study has none of its rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from ...rules import Additive, Multiplicative, Rule, TopMAdditive
from ...statistics.run_lengths import RANDOM, RANDOM_CAP, with_censored
from ..measured import Results
from ..published import STATISTICS, TABLE2, printed
from ..records import Column, Row, Table, records_of, select, sentence, worded
from ..text import FORMATS, certificate_text, run_text, symbol

FAMILIES: Mapping[type[Rule], tuple[str, str]] = {  # of Table 3: title and parameter
    Additive: ("Additive certificate", "t"),
    Multiplicative: ("Multiplicative certificate", "alpha"),
}
RUN = ("value", "censored")  # of frame `runs`
WORDINGS = {  # estimators of Tables 5 and 6: as the printed cells decode, the text, the captions
    "per_call": "tokens a call, which the published cells decode as",
    "mean_run": "mean certified run, as the paper's text says",
    RANDOM: f"mean certified run from a random position, at most {RANDOM_CAP}, as its captions say",
}
FIRST_EXTRA = 8  # the table of a third target, after those of the paper and Table 7
COMPARED_AT = 0.1  # nats: what is shown at one level is at the nearest to it


def table1(results: Results) -> Table:
    """Table 1: cumulative probability of the k most probable tokens."""
    top = results["top"]
    cells = [printed(row["target"], row["k"], row["statistic"]) for row in records_of(top)]
    return results.table("table1", top.assign(published=cells))


def table2(results: Results) -> Table | None:
    """Table 2: certificates under the paper's criteria."""
    return _statistics_table(results, "table2", lambda rule: rule in TABLE2)


def table7(results: Results) -> Table | None:
    """Table 7: certificates of the rules that are in no table of the paper."""
    return _statistics_table(
        results,
        "table7",
        lambda rule: rule not in TABLE2 and type(rule) not in FAMILIES and not _in_table4(rule),
    )


def _statistics_table(results: Results, name: str, shown: Callable[[Rule], bool]) -> Table | None:
    """Return a table of every statistic of the certificates, a row for each rule."""
    rules = list(filter(shown, results.certified))
    if not rules:
        return None
    return _table(results, name, rules, STATISTICS)


def table3(results: Results) -> Table | None:
    """Table 3: p5 of the additive and multiplicative certificates over t and alpha."""
    shown = {
        title: {
            rule.label: f"{symbol(parameter)} = {rule.parameters[parameter]:g}"
            for rule in results.certified
            if type(rule) is family
        }
        for family, (title, parameter) in FAMILIES.items()
    }
    rules = [results.rules[label] for labels in shown.values() for label in labels]
    if not rules:
        return None
    return _table(results, "table3", rules, ["p5"], order=shown)


def table4(results: Results) -> Table | None:
    """Table 4: p5 of the top-m + additive certificate over t and m."""
    rules = [rule for rule in results.certified if isinstance(rule, TopMAdditive)]
    rules = list(filter(_in_table4, rules))
    if not rules:
        return None
    columns = [
        Column(f"m = {m}", certificate_text, ("value", "ceiling"), {"m": m})
        for m in sorted({rule.m for rule in rules})
    ]
    return _table(results, "table4", rules, ["p5"], columns, sorted({rule.t for rule in rules}))


def run_length_table(results: Results, index: int) -> Table:
    """Tables 5 and 6, then 8 and up: certifiable run lengths of target number `index`, from 0."""
    target = results.targets[index]
    data = _with_shares(results, results.select("runs", target=target))
    cells = [
        _printed_run(row, results.rules[row["rule"]]) if row["estimator"] == "per_call" else ""
        for row in records_of(data)
    ]
    columns = [
        Column(f"{eps:.2f}", FORMATS["run"], RUN, {"eps": eps}, "ε") for eps in data["eps"].unique()
    ]
    data = data.assign(published=cells)
    number = index + 5 if index < 2 else index - 2 + FIRST_EXTRA
    return Table(
        **worded("run_lengths", more=columns, number=number, target=target),
        data=data,
        shown=select(data, estimator=list(WORDINGS)),
        order=_shown(results),
        names={**results.names, **WORDINGS},
        notes=_coverage(data, _shown(results)),
    )


def _coverage(runs: pd.DataFrame, rules: Sequence[str]) -> list[str]:
    shown = select(runs, rule=rules)
    return coverage_notes(shown["empty"], shown["inexact"], "empty_at_every_eps")


def coverage_notes(empty: pd.Series, inexact: pd.Series, meaning: str) -> list[str]:
    """Return footnotes on empty rejection regions and on interval certificates, if there are any.

    The notes contain no numbers, so a page prints a note shared by several tables once.

    Args:
        empty: share of steps with an empty rejection region, for each rule of the table.
        inexact: share of steps with an interval certificate, for each rule of the table.
        meaning: key, in texts.toml, of the sentence about the value of an empty region.
    """
    return [
        *[sentence("empty"), sentence(meaning)] * bool((empty > 0).any()),
        *[sentence("inexact")] * bool((inexact > 0).any()),
    ]


def compared_level(levels: Iterable[float]) -> float:
    """Return the level of eps nearest to `COMPARED_AT`."""
    return min(sorted(set(levels)), key=lambda level: abs(level - COMPARED_AT))


def _in_table4(rule: Rule) -> bool:
    return type(rule) is TopMAdditive and rule.convention == "rank"


def _table(
    results: Results,
    name: str,
    rules: Sequence[Rule],
    statistics: Iterable[str],
    columns: Sequence[Column] = (),
    order: Any = None,
) -> Table:
    """Return a table of certificate statistics with the published ones below."""
    rows = [
        results.row(target, rule.label, statistic) | {"published": printed(target, rule, statistic)}
        for target in results.targets
        for rule in rules
        for statistic in statistics
    ]
    data = pd.DataFrame(rows)
    if not any(rule.undefined_means for rule in rules):
        data = data.drop(columns="undefined")
    row_rules = [results.rules[label] for label in data["rule"]]
    parameters = pd.DataFrame([{**rule.parameters, "ceiling": rule.ceiling} for rule in row_rules])
    shown = data.join(parameters.reindex(columns=["ceiling", "m", "t"]))
    notes = coverage_notes(data["empty"], data["inexact"], "empty_in_statistics")
    return results.table(name, data, columns, notes, order, shown)


def _shown(results: Results) -> list[str]:
    """Return the rules of the paper's tables and the user's own; if there are none, all."""
    paper = {rule for rule in results.certified if rule in TABLE2}
    return [rule.label for rule in results.certified if not paper or rule in paper or rule.own]


def _printed_run(row: Row, rule: Rule) -> str:
    value = printed(row["target"], rule, row["eps"])
    return "" if math.isnan(value) else run_text(value)


def _with_shares(results: Results, runs: pd.DataFrame) -> pd.DataFrame:
    """Add the shares of empty rejection regions and of intervals to rows of `runs`."""
    means = [results.row(row["target"], row["rule"], "mean") for row in records_of(runs)]
    shares = {name: [row[name] for row in means] for name in ("empty", "inexact")}
    return with_censored(runs).assign(**shares)

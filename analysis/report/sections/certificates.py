"""The paper's Tables 1 to 6 for any targets and rules, and a table of the rules beyond them.

Every function takes what was measured and returns a `Table`, or None where the study has none
of its rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from ...rules import Additive, Multiplicative, Rule, TopMAdditive
from ...statistics.run_lengths import censored_ends, with_censored
from ..notes import coverage_notes, few_notes
from ..published import TABLE2, printed
from ..records import Column, Results, Row, Table, across, by_rule, records_of, select, worded
from ..text import certificate_text, interval_text, run_text, symbol

STATISTICS = {"mean": "Mean", "median": "Med", "p5": "p5", "p25": "p25"}
FAMILIES: Mapping[type[Rule], tuple[str, str]] = {  # of Table 3: title and parameter
    Additive: ("Additive certificate", "t"),
    Multiplicative: ("Multiplicative certificate", "alpha"),
}
FIRST_EXTRA = 8  # the table of a third target, after those of the paper and Table 7
COMPARED_AT = 0.1  # nats: the estimators are compared at the level nearest to it


def table1(results: Results) -> Table:
    """Cumulative probability of the k most probable tokens."""
    top = results["top"]
    cells = [printed(row["target"], row["k"], row["statistic"]) for row in records_of(top)]
    columns = [
        Column(heading, "{:.3f}".format, where={"statistic": name}, published=_printed)
        for name, heading in STATISTICS.items()
    ]
    return Table(
        **worded("table1"),
        data=top.assign(published=cells),
        row="k",
        columns=across(results.targets, columns),
        stub="k",
        notes=few_notes(top["prompts"]),
    )


def table2(results: Results) -> Table | None:
    """Certificates under the criteria of the paper's Table 2."""
    return _statistics_table(results, "table2", lambda rule: rule in TABLE2)


def table7(results: Results) -> Table | None:
    """Certificates under the rules that no table of the paper shows."""
    return _statistics_table(
        results,
        "table7",
        lambda rule: rule not in TABLE2 and type(rule) not in FAMILIES and not _in_table4(rule),
    )


def _statistics_table(results: Results, name: str, shown: Callable[[Rule], bool]) -> Table | None:
    """Lay out every statistic of the certificates, a row for each rule."""
    rules = list(filter(shown, results.certified))
    if not rules:
        return None
    data = _data(results, rules, STATISTICS)
    columns = [_column(results, statistic) for statistic in STATISTICS]
    return Table(
        **worded(name), **by_rule(results, columns, "Criterion"), data=data, notes=_notes(data)
    )


def table3(results: Results) -> Table | None:
    """The p5 of the additive and multiplicative certificates over t and alpha."""
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
    data = _data(results, rules, ["p5"])
    layout = by_rule(results, [_column(results, "p5")], "Parameter")
    return Table(**worded("table3"), **layout, data=data, order=shown, notes=_notes(data))


def table4(results: Results) -> Table | None:
    """The p5 of the top-m + additive certificate over t and m."""
    rules = [rule for rule in results.certified if _in_table4(rule)]
    if not rules:
        return None
    data = _data(results, rules, ["p5"])
    parameters = pd.DataFrame([results.rules[rule].parameters for rule in data["rule"]])
    columns = [
        replace(_column(results, "p5"), heading=f"m = {m}", where={"m": m})
        for m in sorted(parameters["m"].unique())
    ]
    return Table(
        **worded("table4"),
        data=data,
        row="t",
        columns=across(results.targets, columns),
        stub="t",
        order=sorted(parameters["t"].unique()),
        notes=_notes(data),
        shown=data.assign(m=parameters["m"], t=parameters["t"]),
    )


def run_length_table(results: Results, at: int) -> Table:
    """Certifiable run lengths of the target number `at`: Tables 5, 6, then 8 and on."""
    target = results.targets[at]
    data = _with_shares(results, results.select("runs", target=target))
    cells = [
        _printed_run(row, results.rules[row["rule"]]) if row["estimator"] == "per_call" else ""
        for row in records_of(data)
    ]
    columns = [
        Column(f"{eps:.2f}", _run, (), {"estimator": "per_call", "eps": eps}, "ε", str)
        for eps in data["eps"].unique()
    ]
    number = at + 5 if at < 2 else at - 2 + FIRST_EXTRA
    return Table(
        **worded("run_lengths", number=number, target=target),
        data=data.assign(published=cells),
        row="rule",
        columns=columns,
        stub="Criterion",
        order=_shown(results),
        names=results.names,
        notes=_notes(select(data, rule=_shown(results)), "empty_at_every_eps"),
    )


def estimator_table(results: Results) -> Table:
    """Compare the estimators of the run length at one level, with their intervals."""
    eps = compared_level(results["runs"]["eps"])
    data = _with_shares(results, results.select("runs", eps=eps, rule=_shown(results)))
    names = list(data["estimator"].unique())
    columns = [Column(name, _run_interval, (), {"estimator": name}) for name in names]
    of = ("failing_prompts", "prompts")
    columns.append(Column("failing", "{}/{}".format, of, {"estimator": names[0]}))
    return Table(
        **worded("estimators", eps=eps),
        **by_rule(results, columns, "Criterion"),
        data=data,
        order=_shown(results),
        notes=_notes(data, "empty_at_every_eps"),
    )


def compared_level(levels: Iterable[float]) -> float:
    """Return the level of eps that is nearest to `COMPARED_AT`."""
    return min(sorted(set(levels)), key=lambda level: abs(level - COMPARED_AT))


def _column(results: Results, statistic: str) -> Column:
    """Return the column of a statistic of certificates, in nats."""

    def text(rule: str, value: float, optimistic: float) -> str:
        return certificate_text(value, optimistic, results.rules[rule].ceiling)

    of = ("rule", "value", "optimistic")
    return Column(STATISTICS[statistic], text, of, {"statistic": statistic}, published=_printed)


def _run(row: Row) -> str:
    return run_text(row["value"], row["optimistic"], censored_ends(row))


def _run_interval(row: Row) -> str:
    low, high = row["ci_low"], row["ci_high"]
    return interval_text(row["value"], row["optimistic"], low, high, censored_ends(row))


def _in_table4(rule: Rule) -> bool:
    return type(rule) is TopMAdditive and rule.convention == "rank"


def _data(results: Results, rules: Sequence[Rule], statistics: Iterable[str]) -> pd.DataFrame:
    """Return the tidy certificates of some rules beside the published ones."""
    rows = [
        results.row(target, rule.label, statistic) | {"published": printed(target, rule, statistic)}
        for target in results.targets
        for rule in rules
        for statistic in statistics
    ]
    data = pd.DataFrame(rows)
    counted = any(rule.undefined_means for rule in rules)
    return data if counted else data.drop(columns="undefined")


def _notes(data: pd.DataFrame, meaning: str = "empty_in_statistics") -> list[str]:
    return [*coverage_notes(data["empty"], data["inexact"], meaning), *few_notes(data["prompts"])]


def _printed(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"


def _shown(results: Results) -> list[str]:
    """Return the rules of the paper's tables and a user's own; all where the paper has none."""
    paper = {rule for rule in results.certified if rule in TABLE2}
    return [rule.label for rule in results.certified if not paper or rule in paper or rule.own]


def _printed_run(row: Row, rule: Rule) -> str:
    value = printed(row["target"], rule, row["eps"])
    return "" if math.isnan(value) else run_text(value, value)


def _with_shares(results: Results, runs: pd.DataFrame) -> pd.DataFrame:
    """Add the share of steps with an empty region and with an interval to rows of `runs`."""
    found = [results.row(row["target"], row["rule"], "mean") for row in records_of(runs)]
    shares = {name: [row[name] for row in found] for name in ("empty", "inexact")}
    return with_censored(runs).assign(**shares)

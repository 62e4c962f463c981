"""The paper's Tables 1 to 4 for any targets and rules, and a table of the rules beyond them.

Every function takes what was measured and returns a `Table`, or None where the study has none
of its rules. Tables 5 and 6 are in `analysis.report.paper_run_lengths`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from ..rules import Additive, Multiplicative, Rule, TopMAdditive
from . import published
from .measured import Measured
from .notes import coverage_notes, few_notes, undefined_notes
from .table import Cell, Section, Table
from .text import MARK, certificate_text, symbol

STATISTICS = {"mean": "Mean", "median": "Med", "p5": "p5", "p25": "p25"}
FAMILIES: Mapping[type[Rule], tuple[str, str]] = {  # of Table 3: title and parameter
    Additive: ("Additive certificate", "t"),
    Multiplicative: ("Multiplicative certificate", "alpha"),
}

CEILINGS = (
    "Where something can be rejected, a single-token certificate stays below log 2 = 0.693 "
    "(Theorem 4.6), a tree's below log(m+1) (Theorem 5.3); both are reached only in the limit."
)
TOP_M = (
    "Top-m keeps the tokens of rank at most m; read literally, the paper's gate keeps m-1, "
    "and m = 2 would be strict greedy."
)
EMPTY = (
    f"Means take the ceiling for it, quantiles rank it at the top; {MARK} marks a ceiling "
    "printed for it."
)


def table1(measured: Measured) -> Table:
    """Cumulative probability of the k most probable tokens."""
    data = measured.top.assign(
        published=[
            published.printed_top_probability(row["target"], row["k"], row["statistic"])
            for row in measured.top.to_dict("records")
        ]
    )
    cells = {
        (row["k"], row["target"], row["statistic"]): Cell(
            f"{row['value']:.3f}", _printed(row["published"])
        )
        for row in data.to_dict("records")
    }
    rows = [
        (str(k), [cells[k, target, s] for target in measured.targets for s in STATISTICS])
        for k in data["k"].unique()
    ]
    return Table.side_by_side(
        "table1",
        "Table 1: probability of the k most probable tokens",
        "Probability of the k most probable target tokens over decoding steps.",
        "k",
        measured.targets,
        list(STATISTICS.values()),
        [Section("", rows)],
        data,
        few_notes(data["prompts"]),
    )


def table2(measured: Measured) -> Table | None:
    """Certificates under the criteria of the paper's Table 2."""
    rules = [rule for rule in measured.rules if rule in published.TABLE2]
    return _certificate_table(
        "table2",
        "Table 2: certificates, rule by rule",
        "Exact KL certificates over decoding steps in nats: the least KL(p‖q) at which "
        f"the criterion can reject. Higher tolerates more drafter error. {CEILINGS}",
        measured,
        rules,
    )


def table7(measured: Measured) -> Table | None:
    """Certificates under the rules that no table of the paper shows."""
    rules = [
        rule
        for rule in measured.rules
        if rule not in published.TABLE2 and type(rule) not in FAMILIES and not _in_table4(rule)
    ]
    table = _certificate_table(
        "table7",
        "Table 7: certificates of rules beyond the paper's tables",
        "KL certificates in nats under criteria beyond the paper's tables. "
        f"{CEILINGS} {TOP_M} MARS tests the ratio of the two largest raw logits; where the "
        "largest is not positive only the argmax is accepted.",
        measured,
        rules,
    )
    if table is None:
        return None
    return replace(table, notes=[*table.notes, *undefined_notes(measured, rules)])


def _certificate_table(
    name: str, title: str, caption: str, measured: Measured, rules: Sequence[Rule]
) -> Table | None:
    """Lay out every statistic of the certificates, a row for each rule."""
    if not rules:
        return None
    rows = [
        (
            rule.title,
            [
                _cell(measured, rule, target, statistic)
                for target in measured.targets
                for statistic in STATISTICS
            ],
        )
        for rule in rules
    ]
    return Table.side_by_side(
        name,
        title,
        caption,
        "Criterion",
        measured.targets,
        list(STATISTICS.values()),
        [Section("", rows)],
        _data(measured, rules, list(STATISTICS)),
        _notes(measured, rules),
    )


def table3(measured: Measured) -> Table | None:
    """The p5 of the additive and multiplicative certificates over t and alpha."""
    sections, shown = [], []
    for family, (title, parameter) in FAMILIES.items():
        rules = [rule for rule in measured.rules if type(rule) is family]
        rows = [
            (
                f"{symbol(parameter)} = {rule.parameters[parameter]:g}",
                [_cell(measured, rule, target, "p5") for target in measured.targets],
            )
            for rule in rules
        ]
        if rows:
            sections.append(Section(title, rows))
            shown += rules
    if not sections:
        return None
    return Table(
        "table3",
        "Table 3: small certificates over t and α",
        "Sensitivity of the additive and multiplicative certificates to their "
        "parameters: 5th percentile over decoding steps, in nats.",
        "Parameter",
        [("", len(measured.targets))],
        [f"p5 ({target})" for target in measured.targets],
        sections,
        _data(measured, shown, ["p5"]),
        _notes(measured, shown),
    )


def table4(measured: Measured) -> Table | None:
    """The p5 of the top-m + additive certificate over t and m."""
    rules = {
        (rule.parameters["t"], rule.parameters["m"]): rule
        for rule in measured.rules
        if _in_table4(rule)
    }
    if not rules:
        return None
    ts, ms = sorted({t for t, _ in rules}), sorted({m for _, m in rules})

    def cell(t: float, m: int, target: str) -> Cell:
        return _cell(measured, rules[t, m], target, "p5") if (t, m) in rules else Cell("")

    rows = [(f"{t:g}", [cell(t, m, target) for target in measured.targets for m in ms]) for t in ts]
    shown = list(rules.values())
    return Table.side_by_side(
        "table4",
        "Table 4: small certificates of Top-m rules",
        "Top-m additive relaxed acceptance: 5th percentile of the certificate over "
        f"decoding steps, in nats. {TOP_M}",
        "t",
        [f"p5 ({target})" for target in measured.targets],
        [f"m = {m}" for m in ms],
        [Section("", rows)],
        _data(measured, shown, ["p5"]),
        _notes(measured, shown),
    )


def _in_table4(rule: Rule) -> bool:
    return type(rule) is TopMAdditive and rule.convention == "rank"


def _cell(measured: Measured, rule: Rule, target: str, statistic: str) -> Cell:
    row = measured.row(target, rule.label, statistic)
    return Cell(
        certificate_text(row["value"], row["optimistic"], rule.ceiling),
        _printed(published.printed_certificate(target, rule, statistic)),
    )


def _data(measured: Measured, rules: Sequence[Rule], statistics: Sequence[str]) -> pd.DataFrame:
    """Return the tidy certificates of some rules beside the published ones."""
    rows = [
        measured.row(target, rule.label, statistic)
        | {"published": published.printed_certificate(target, rule, statistic)}
        for target in measured.targets
        for rule in rules
        for statistic in statistics
    ]
    data = pd.DataFrame(rows)
    counted = any(rule.undefined_means for rule in rules)
    return data if counted else data.drop(columns="undefined")


def _notes(measured: Measured, rules: Sequence[Rule]) -> list[str]:
    prompts = measured.certificates["prompts"]
    return [*coverage_notes(measured, rules, measured.targets, EMPTY), *few_notes(prompts)]


def _printed(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"

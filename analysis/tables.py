"""The paper's Tables 1 to 6 for any targets and rules, and a table of the rules beyond them.

Every function takes what was measured and returns a `Table`, or None where the study has none
of its rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis import published
from analysis.criteria import Rule
from analysis.layout import Cell, Section, Table
from analysis.measured import Measured
from analysis.printing import MARK, certificate_text, interval_text, rule_text, run_text, share_text

STATISTICS = {"mean": "Mean", "median": "Med", "p5": "p5", "p25": "p25"}
TABLE2 = tuple(published.CERTIFICATES["Qwen3-1.7B"])
FIRST_EXTRA = 8  # run lengths of a third target and on, after the tables of the paper and Table 7

CEILINGS = (
    "A single-token certificate stays below log 2 = 0.693 (Theorem 4.6), a tree's below "
    "log(m+1) (Theorem 5.3); both are reached only in the limit."
)
TOP_M = (
    "Top-m keeps the tokens of rank at most m; read literally, the paper's gate keeps m-1, "
    "and m = 2 would be strict greedy."
)
PER_CALL = (
    "Tokens per verification call (accepted ones and the corrected or bonus token) for "
    "drafts of unlimited length, a position being accepted if its certificate exceeds ε: "
    "all steps over uncertified steps plus trajectories that end certified. The paper "
    "does not state this estimator; its printed cells decode consistently as it."
)


def all_tables(measured: Measured) -> list[Table]:
    """Return every table that the study's rules fill, in order."""
    runs = [run_length_table(measured, at) for at in range(len(measured.targets))]
    tables = [
        table1(measured),
        table2(measured),
        table3(measured),
        table4(measured),
        *runs[:2],
        estimator_table(measured),
        table7(measured),
        *runs[2:],
    ]
    return [table for table in tables if table is not None]


def table1(measured: Measured) -> Table:
    """Cumulative probability of the k most probable tokens."""
    records = measured.top.to_dict("records")
    look = {(row["k"], row["target"], row["statistic"]): row["value"] for row in records}

    def known(k: int, target: str, statistic: str) -> float:
        return _of(published.TOP_PROBABILITY, target, k, published.STATISTICS, statistic)

    def cell(*key: Any) -> Cell:
        return Cell(f"{look[key]:.3f}", _printed(known(*key), 3))

    data = measured.top.assign(
        published=[known(row["k"], row["target"], row["statistic"]) for row in records]
    )
    rows = [
        (str(k), [cell(k, target, s) for target in measured.targets for s in STATISTICS])
        for k in data["k"].unique()
    ]
    return Table(
        "table1",
        "Probability of the k most probable target tokens over decoding steps.",
        "k",
        [(target, len(STATISTICS)) for target in measured.targets],
        list(STATISTICS.values()) * len(measured.targets),
        [Section("", rows)],
        [],
        data,
    )


def table2(measured: Measured) -> Table | None:
    """Certificates under the criteria of the paper's Table 2."""
    rules = [rule for rule in measured.rules if rule.label in TABLE2]
    return _certificate_table(
        "table2",
        "Exact KL certificates over decoding steps in nats: the least KL(p‖q) at which "
        f"the criterion can reject. Higher tolerates more drafter error. {CEILINGS}",
        measured,
        rules,
    )


def table7(measured: Measured) -> Table | None:
    """Certificates under the rules that no table of the paper shows."""
    paper = {"additive", "multiplicative"}
    rules = [
        rule
        for rule in measured.rules
        if rule.label not in TABLE2 and rule.name not in paper and not _in_table4(rule)
    ]
    return _certificate_table(
        "table7",
        "KL certificates in nats under criteria beyond the paper's tables. "
        f"{CEILINGS} {TOP_M} MARS tests the ratio of the two largest raw logits; where the "
        "largest is not positive only the argmax is accepted.",
        measured,
        rules,
    )


def _certificate_table(
    name: str, caption: str, measured: Measured, rules: Sequence[Rule]
) -> Table | None:
    rows = [
        (
            rule_text(rule),
            [
                _certificate_cell(measured, rule, target, statistic)
                for target in measured.targets
                for statistic in STATISTICS
            ],
        )
        for rule in rules
    ]
    return (
        None
        if not rows
        else Table(
            name,
            caption,
            "Criterion",
            [(target, len(STATISTICS)) for target in measured.targets],
            list(STATISTICS.values()) * len(measured.targets),
            [Section("", rows)],
            _notes(measured, rules),
            _certificate_data(measured, rules),
        )
    )


def table3(measured: Measured) -> Table | None:
    """The p5 of the additive and multiplicative certificates over t and alpha."""
    families = {
        "additive": ("Additive certificate", "t"),
        "multiplicative": ("Multiplicative certificate", "alpha"),
    }
    sections, shown = [], []
    for name, (title, parameter) in families.items():
        rules = [rule for rule in measured.rules if rule.name == name]
        symbol = {"alpha": "α"}.get(parameter, parameter)
        rows = [
            (
                f"{symbol} = {rule.parameters[parameter]:g}",
                [_certificate_cell(measured, rule, target, "p5") for target in measured.targets],
            )
            for rule in rules
        ]
        if rows:
            sections.append(Section(title, rows))
            shown += rules
    return (
        None
        if not sections
        else Table(
            "table3",
            "Sensitivity of the additive and multiplicative certificates to their "
            "parameters: 5th percentile over decoding steps, in nats.",
            "Parameter",
            [("", len(measured.targets))],
            [f"p5 ({target})" for target in measured.targets],
            sections,
            _notes(measured, shown),
            _certificate_data(measured, shown, ["p5"]),
        )
    )


def table4(measured: Measured) -> Table | None:
    """The p5 of the top-m + additive certificate over t and m."""
    rules = {
        (rule.parameters["t"], rule.parameters["m"]): rule
        for rule in measured.rules
        if _in_table4(rule)
    }
    ts, ms = sorted({t for t, _ in rules}), sorted({m for _, m in rules})
    rows = [
        (
            f"{t:g}",
            [
                _certificate_cell(measured, rules.get((t, m)), target, "p5")
                for target in measured.targets
                for m in ms
            ],
        )
        for t in ts
    ]
    shown = list(rules.values())
    return (
        None
        if not rows
        else Table(
            "table4",
            "Top-m additive relaxed acceptance: 5th percentile of the certificate over "
            f"decoding steps, in nats. {TOP_M}",
            "t",
            [(f"p5 ({target})", len(ms)) for target in measured.targets],
            [f"m = {m}" for m in ms] * len(measured.targets),
            [Section("", rows)],
            _notes(measured, shown),
            _certificate_data(measured, shown, ["p5"]),
        )
    )


def _in_table4(rule: Rule) -> bool:
    return rule.name == "topm_additive" and rule.parameters.get("convention", "rank") == "rank"


def run_length_table(measured: Measured, at: int) -> Table | None:
    """Certifiable run lengths of the target number `at`: Tables 5, 6, then 8 and on."""
    target = measured.targets[at]
    rules = _shown_in_runs(measured)
    data = measured.runs[measured.runs["target"] == target]
    records = data.to_dict("records")
    look = {(row["rule"], row["eps"]): row for row in records if row["estimator"] == "per_call"}
    levels = list(dict.fromkeys(row["eps"] for row in records))

    def known(rule: str, eps: float) -> str:
        value = _of(published.RUN_LENGTHS, target, rule, published.EPS, eps)
        return "" if math.isnan(value) else run_text(value, value)

    def cell(rule: Rule, eps: float) -> Cell:
        row = look[rule.label, eps]
        return Cell(run_text(row["value"], row["optimistic"]), known(rule.label, eps))

    data = _with_shares(measured, data).assign(
        published=[
            known(row["rule"], row["eps"]) if row["estimator"] == "per_call" else ""
            for row in records
        ]
    )
    rows = [(rule_text(rule), [cell(rule, eps) for eps in levels]) for rule in rules]
    return (
        None
        if not rows
        else Table(
            f"table{at + 5 if at < 2 else at - 2 + FIRST_EXTRA}",
            f"Mean certifiable acceptance length of {target}, by the bound ε on the KL in nats. "
            f"{PER_CALL}",
            "Criterion",
            [("ε", len(levels))],
            [f"{eps:.2f}" for eps in levels],
            [Section("", rows)],
            _run_notes(measured, rules, [target]),
            data,
        )
    )


def estimator_table(measured: Measured) -> Table:
    """Compare the estimators of the run length at one level, with their intervals."""
    rules = _shown_in_runs(measured)
    levels = sorted(measured.runs["eps"].unique())
    eps = min(levels, key=lambda level: abs(level - 0.1))
    data = measured.runs[
        (measured.runs["eps"] == eps) & measured.runs["rule"].isin([rule.label for rule in rules])
    ]
    names = list(dict.fromkeys(data["estimator"]))
    look = {(row["target"], row["rule"], row["estimator"]): row for row in data.to_dict("records")}

    def cells(rule: Rule, target: str) -> list[Cell]:
        rows = [look[target, rule.label, name] for name in names]
        shown = [
            interval_text(row["value"], row["optimistic"], row["low"], row["high"]) for row in rows
        ]
        return [*map(Cell, shown), Cell(f"{rows[0]['failing_prompts']}/{rows[0]['prompts']}")]

    rows = [
        (rule_text(rule), [cell for target in measured.targets for cell in cells(rule, target)])
        for rule in rules
    ]
    return Table(
        "estimators",
        f"Four estimators of the certifiable run length at ε = {eps:g}, in tokens, "
        "with bootstrap intervals over prompts, and the prompts with at least one uncertified "
        "step. per_call: all steps over uncertified steps plus trajectories that end certified. "
        "mean_run: certified steps over maximal certified runs. long_run: all steps over "
        "uncertified steps; without one, a one-sided bound. residual: mean certified run from a "
        "start, capped at the window, over the starts with a whole window left.",
        "Criterion",
        [(target, len(names) + 1) for target in measured.targets],
        [*names, "failing"] * len(measured.targets),
        [Section("", rows)],
        _run_notes(measured, rules),
        _with_shares(measured, data),
    )


def _with_shares(measured: Measured, runs: pd.DataFrame) -> pd.DataFrame:
    """Add the share of steps with an empty region and with an interval to rows of `runs`."""
    found = [measured.row(row["target"], row["rule"], "mean") for row in runs.to_dict("records")]
    return runs.assign(**{name: [row[name] for row in found] for name in ("empty", "inexact")})


def _shown_in_runs(measured: Measured) -> list[Rule]:
    return [rule for rule in measured.rules if rule.label in TABLE2] or list(measured.rules)


def _certificate_cell(measured: Measured, rule: Rule | None, target: str, statistic: str) -> Cell:
    if rule is None:
        return Cell("")
    row = measured.row(target, rule.label, statistic)
    return Cell(
        certificate_text(row["value"], row["optimistic"], rule.ceiling),
        _printed(_published_certificate(target, rule.label, statistic), 3),
    )


def _certificate_data(
    measured: Measured, rules: Sequence[Rule], statistics: Sequence[str] = tuple(STATISTICS)
) -> pd.DataFrame:
    rows = [
        measured.row(target, rule.label, statistic)
        for target in measured.targets
        for rule in rules
        for statistic in statistics
    ]
    return pd.DataFrame(
        [
            row
            | {"published": _published_certificate(row["target"], row["rule"], row["statistic"])}
            for row in rows
        ]
    )


def _published_certificate(target: str, rule: str, statistic: str) -> float:
    known = _of(published.CERTIFICATES, target, rule, published.STATISTICS, statistic)
    if math.isnan(known) and statistic == "p5":
        return published.P5.get(target, {}).get(rule, math.nan)
    return known


def _of(
    table: Mapping[str, Mapping[Any, tuple[float, ...]]],
    target: str,
    row: str | int,
    columns: Sequence[Any],
    column: str | float,
) -> float:
    """Look a published number up; NaN where the paper has none."""
    cells = table.get(target, {}).get(row)
    if cells is None or column not in columns:
        return math.nan
    return cells[list(columns).index(column)]


def _printed(value: float, digits: int) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def _notes(measured: Measured, rules: Sequence[Rule]) -> list[str]:
    """Say which share of the steps has an empty region, and which is known as an interval."""
    return _coverage(
        measured,
        rules,
        measured.targets,
        "Means take the ceiling for it, quantiles rank it at "
        f"the top; {MARK} marks a ceiling printed for it.",
    )


def _run_notes(
    measured: Measured, rules: Sequence[Rule], targets: Sequence[str] | None = None
) -> list[str]:
    return _coverage(
        measured,
        rules,
        measured.targets if targets is None else targets,
        "Such a step is certified at every ε.",
    )


def _coverage(
    measured: Measured, rules: Sequence[Rule], targets: Sequence[str], meaning: str
) -> list[str]:
    empty = _shares(measured, rules, targets, "empty")
    inexact = _shares(measured, rules, targets, "inexact")
    notes = []
    if empty:
        notes.append(
            f"Steps with an empty rejection region, whose certificate is +∞: {empty}. " + meaning
        )
    if inexact:
        notes.append(
            "Steps whose certificate is known as an interval, the first rejected token "
            f"lying beyond the stored ones: {inexact}. A range gives the statistic at "
            "both ends where they print differently."
        )
    return notes or ["Every certificate is exact and no rejection region is empty."]


def _shares(measured: Measured, rules: Sequence[Rule], targets: Sequence[str], column: str) -> str:
    parts = []
    for rule in rules:
        values = [measured.row(target, rule.label, "mean")[column] for target in targets]
        if any(values):
            parts.append(f"{rule_text(rule)} " + " / ".join(share_text(v) for v in values))
    names = f" ({' / '.join(targets)})" if parts and len(targets) > 1 else ""
    return ", ".join(parts) + names

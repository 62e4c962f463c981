"""Tables of certifiable run lengths: the paper's Tables 5 and 6, and a comparison of estimators."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from ..rules import Rule
from ..statistics.run_lengths import censored_ends, with_censored
from . import published
from .measured import Measured
from .notes import AT_LEAST, coverage_notes, few_notes
from .table import Cell, Section, Table
from .text import interval_text, run_text

FIRST_EXTRA = 8  # the table of a third target, after those of the paper and Table 7
COMPARED_AT = 0.1  # nats: the estimators are compared at the level nearest to it
PER_CALL = (
    "Tokens per verification call (accepted ones and the corrected or bonus token) for "
    "drafts of unlimited length, a position being accepted if its certificate exceeds ε: "
    "all steps over uncertified steps plus trajectories that end certified. The paper "
    "does not state this estimator; its printed cells decode consistently as it. "
    f"{AT_LEAST}"
)
ESTIMATORS = (
    "per_call: all steps over uncertified steps plus trajectories that end certified. "
    "mean_run: certified steps over maximal certified runs; its range is the least and the most "
    "that certificates known as intervals allow. long_run: all steps over uncertified steps, "
    "which no end cuts; without one, a one-sided bound. residual: mean certified run from a "
    f"start, capped at the window, over the starts with a whole window left. {AT_LEAST}"
)
EMPTY = "Such a step is certified at every ε."


def run_length_table(measured: Measured, at: int) -> Table:
    """Certifiable run lengths of the target number `at`: Tables 5, 6, then 8 and on."""
    target = measured.targets[at]
    rules, by_label = _shown(measured), {rule.label: rule for rule in measured.rules}
    data = measured.runs[measured.runs["target"] == target]
    data = _with_shares(measured, data).assign(
        published=[_published(row, by_label[row["rule"]]) for row in data.to_dict("records")]
    )
    cells = {
        (row["rule"], row["eps"]): Cell(
            run_text(row["value"], row["optimistic"], censored_ends(row)), row["published"]
        )
        for row in data.to_dict("records")
        if row["estimator"] == "per_call"
    }
    levels = list(dict.fromkeys(data["eps"]))
    rows = [(rule.title, [cells[rule.label, eps] for eps in levels]) for rule in rules]
    number = at + 5 if at < 2 else at - 2 + FIRST_EXTRA
    return Table(
        f"table{number}",
        f"Table {number}: certified tokens a call, {target}",
        f"Mean certifiable acceptance length of {target}, by the bound ε on the KL in nats. "
        f"{PER_CALL}",
        "Criterion",
        [("ε", len(levels))],
        [f"{eps:.2f}" for eps in levels],
        [Section("", rows)],
        data,
        [*coverage_notes(measured, rules, [target], EMPTY), *few_notes(data["prompts"])],
    )


def estimator_table(measured: Measured) -> Table:
    """Compare the estimators of the run length at one level, with their intervals."""
    rules = _shown(measured)
    levels = sorted(measured.runs["eps"].unique())
    eps = min(levels, key=lambda level: abs(level - COMPARED_AT))
    data = measured.runs[
        (measured.runs["eps"] == eps) & measured.runs["rule"].isin([rule.label for rule in rules])
    ]
    names = list(dict.fromkeys(data["estimator"]))
    look = {(row["target"], row["rule"], row["estimator"]): row for row in data.to_dict("records")}

    def cells(rule: Rule, target: str) -> list[Cell]:
        found = [look[target, rule.label, name] for name in names]
        shown = [
            interval_text(
                row["value"], row["optimistic"], row["ci_low"], row["ci_high"], censored_ends(row)
            )
            for row in found
        ]
        return [*map(Cell, shown), Cell(f"{found[0]['failing_prompts']}/{found[0]['prompts']}")]

    rows = [
        (rule.title, [cell for target in measured.targets for cell in cells(rule, target)])
        for rule in rules
    ]
    return Table.side_by_side(
        "estimators",
        "Four estimators of the certified length",
        f"Four estimators of the certifiable run length at ε = {eps:g}, in tokens, "
        "with bootstrap intervals over prompts, and the prompts with at least one uncertified "
        f"step. {ESTIMATORS}",
        "Criterion",
        measured.targets,
        [*names, "failing"],
        [Section("", rows)],
        _with_shares(measured, data),
        [*coverage_notes(measured, rules, measured.targets, EMPTY), *few_notes(data["prompts"])],
    )


def _shown(measured: Measured) -> list[Rule]:
    """Return the rules of the paper's tables and a user's own; all where the paper has none."""
    paper = {rule for rule in measured.rules if rule in published.TABLE2}
    return [rule for rule in measured.rules if not paper or rule in paper or rule.own]


def _published(row: dict[Any, Any], rule: Rule) -> str:
    """Return what the paper prints for a row of `Measured.runs`; it has one estimator only."""
    value = published.printed_run_length(row["target"], rule, row["eps"])
    return "" if row["estimator"] != "per_call" or math.isnan(value) else run_text(value, value)


def _with_shares(measured: Measured, runs: pd.DataFrame) -> pd.DataFrame:
    """Add the share of steps with an empty region and with an interval to rows of `runs`."""
    found = [measured.row(row["target"], row["rule"], "mean") for row in runs.to_dict("records")]
    shares = {name: [row[name] for row in found] for name in ("empty", "inexact")}
    return with_censored(runs).assign(**shares)

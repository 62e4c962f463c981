"""Printed tables against the numbers they were made from."""

from __future__ import annotations

import io
import math
import re

import numpy as np
import pandas as pd
import pytest

from analysis.report import published
from analysis.report.escape import latex, macro
from analysis.report.measured import certificate_statistics, top_statistics
from analysis.report.notes import shared_notes
from analysis.report.records import Column, Results, Table
from analysis.report.render import csv_text, html_table, latex_table, lines, notes
from analysis.report.sections.certificates import (
    estimator_table,
    run_length_table,
    table1,
    table2,
    table3,
    table4,
    table7,
)
from analysis.report.text import certificate_text, digits_text, run_text
from analysis.rules import Rule, expand
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.statistics.run_lengths import run_lengths
from analysis.statistics.trajectories import Trajectories

TARGETS = ["Qwen3-1.7B", "mini_large & co"]
RULES = expand(
    [
        {"rule": "greedy"},
        {"rule": "additive", "t": [0.1, 0.3, 0.45]},
        {"rule": "topm_additive", "m": [2, 4], "t": [0.1]},
        {"rule": "mars", "theta": 0.9},
        {"rule": "tree", "m": [2]},
    ]
)
EMPTY, INEXACT = "additive t=0.3", "additive t=0.45"


def certificates(target: str, rule: str) -> tuple[np.ndarray, np.ndarray]:
    """Values of 4 prompts of 70 steps: three in four empty for one rule, open for another."""
    rng = np.random.default_rng(len(target) + sum(map(ord, rule)))
    lower = rng.beta(2, 2, size=280) * 0.69
    if rule == EMPTY:
        lower[np.arange(280) % 4 > 0] = np.inf
    upper = np.where(np.arange(280) % 10 == 0, np.inf, lower) if rule == INEXACT else lower
    return lower, upper


@pytest.fixture(scope="module")
def measured() -> Results:
    return measure(RULES)


def measure(rules: list[Rule]) -> Results:
    trajectories = Trajectories.from_positions(np.tile(np.arange(70), 4))
    bootstrap = PromptBootstrap(trajectories.prompts, 40, 0.95, 0)
    top, certified, runs = [], [], []
    for target in TARGETS:
        probabilities = np.sort(np.random.default_rng(0).random((280, 3)))
        top.append(top_statistics(target, probabilities, [1, 3, 5], bootstrap))
        for rule in rules:
            lower, upper = certificates(target, rule.label)
            undefined = 3 if rule.name == "mars" else math.nan
            certified.append(
                certificate_statistics(target, rule, lower, upper, bootstrap, undefined)
            )
            runs.append(
                run_lengths(lower, upper, [0.01, 0.1, 0.69], trajectories, bootstrap).assign(
                    rule=rule.label, target=target
                )
            )
    frames = {"top": top, "certificates": certified, "runs": runs}
    named = {rule.label: rule for rule in rules}
    return Results(TARGETS, named, {name: pd.concat(parts) for name, parts in frames.items()})


def all_tables(measured: Results) -> list[Table]:
    found = [make(measured) for make in (table1, table2, table3, table4)]
    found += [run_length_table(measured, at) for at in range(2)]
    found += [estimator_table(measured), table7(measured)]
    return [table for table in found if table is not None]


def cells(table: Table, row: str, published: bool = False) -> list[str]:
    every = {name: (ours, theirs) for _, rows in lines(table) for name, ours, theirs in rows}
    return every[row][published]


def test_the_cells_of_table_2(measured: Results) -> None:
    table = {table.name: table for table in all_tables(measured)}["table2"]
    lower, _ = certificates(TARGETS[0], "greedy")
    ordered = np.sort(lower)
    expected = [lower.mean(), ordered[139], ordered[13], ordered[69]]  # ranks 280 q
    assert cells(table, "Strict greedy")[:4] == [digits_text(x) for x in expected]
    assert cells(table, "Strict greedy", True)[:4] == ["0.438", "0.559", "0.006", "0.160"]
    finite = np.sort(certificates(TARGETS[1], EMPTY)[0])
    mean = (finite[np.isfinite(finite)].sum() + 210 * math.log(2)) / 280
    assert cells(table, "Additive (t = 0.3)")[4:] == [
        digits_text(mean),
        "0.693*",
        digits_text(finite[13]),
        digits_text(finite[69]),
    ]
    assert "At some steps nothing can be rejected" in table.notes[0]


def test_an_open_certificate_prints_a_range(measured: Results) -> None:
    table = {table.name: table for table in all_tables(measured)}["table3"]
    lower, upper = certificates(TARGETS[0], INEXACT)
    low, high = np.sort(lower)[13], np.sort(upper)[13]
    assert cells(table, "t = 0.45")[0] == f"{digits_text(low)}–{digits_text(high)}"
    assert "both ends of certificates known as intervals" in table.notes[-2]


def test_a_table_shows_published_values_of_matching_targets_only(measured: Results) -> None:
    tables = {table.name: table for table in all_tables(measured)}
    for name, key, row in (("table2", "mean", published.CERTIFICATES), ("table5", 0.1, None)):
        data = pd.read_csv(io.StringIO(csv_text(tables[name].data)), keep_default_na=False)
        ours = data[(data["target"] == TARGETS[0]) & (data["rule"] == "greedy")]
        printed = ours[ours[{"table2": "statistic", "table5": "eps"}[name]] == key].iloc[0]
        assert str(printed["published"]) == ("4.83" if row is None else "0.438")
        assert set(data[data["target"] == TARGETS[1]]["published"]) <= {""}
    assert "as published" not in html_table(tables["table6"])  # of the other target


def test_a_run_length_near_the_number_of_steps_is_printed_as_a_lower_bound(
    measured: Results,
) -> None:
    tables = {table.name: table for table in all_tables(measured)}
    table = tables["table5"]
    data = table.data[table.data["estimator"] == "per_call"].set_index(["rule", "eps"])
    shown = [rule for rule in RULES if rule in published.TABLE2]
    printed = {rule.label: cells(table, rule.title) for rule in shown}
    marked = 0
    for (rule, eps), row in data.iterrows():
        lower, upper = certificates(TARGETS[0], rule)
        for values, mark in ((lower, "censored"), (upper, "censored_optimistic")):
            ends = np.sum(values[69::70] > eps)  # 4 trajectories of 70 steps
            assert row[mark] == (ends / (ends + np.sum(values <= eps)) > 0.1)
        if rule in printed:
            cell = printed[rule][[0.01, 0.1, 0.69].index(eps)]
            assert ("≥" in cell) == row["censored_optimistic"]
            assert cell.startswith(f"≥ {row['value']:.2f}") or not row["censored"]
            marked += row["censored"]
    assert 0 < marked < 3 * len(printed)
    assert r"$\ge$" in latex_table(table)
    for of in tables.values():
        assert re.fullmatch(r"(Table \d: )?\w[^:]{10,}", of.title)
    estimators = tables["estimators"]
    assert set(estimators.data.loc[estimators.data["censored"], "estimator"]) <= {
        "per_call",
        "mean_run",
    }


def test_tables_with_intervals_warn_of_few_prompts(measured: Results) -> None:
    for table in all_tables(measured):
        assert any("from 4 prompts, fewer than 30" in note for note in table.notes), table.name
        assert table.data["few_prompts"].all()
        assert "few_prompts" in csv_text(table.data).splitlines()[0]


def test_csv_gives_intervals_shares_and_estimators(measured: Results) -> None:
    tables = {table.name: table for table in all_tables(measured)}
    data = pd.read_csv(io.StringIO(csv_text(tables["table2"].data)))
    assert (data["ci_low"] <= data["value"]).all()
    assert (data["value"] <= data["ci_high"]).all()
    assert data.groupby("rule")["empty"].max().to_dict() == {
        "additive t=0.1": 0,
        EMPTY: 0.75,
        "greedy": 0,
        "tree m=2": 0,
    }
    runs = pd.read_csv(io.StringIO(csv_text(tables["table6"].data)))
    assert set(runs["estimator"]) == {"per_call", "mean_run", "long_run", "residual_64"}
    assert set(runs["target"]) == {TARGETS[1]}
    assert {"failing_prompts", "empty", "inexact", "optimistic"} <= set(runs)


def test_rules_beyond_the_paper_are_in_table_7_and_missing_tables_are_left_out(
    measured: Results,
) -> None:
    tables = {table.name: table for table in all_tables(measured)}
    assert set(tables["table7"].data["rule"]) == {"mars theta=0.9"}
    assert (
        "is not positive, where MARS accepts the argmax only: 3 of 280 / 3 of 280"
        in (tables["table7"].notes[-1])
    )
    assert not any("MARS" in note for note in tables["table2"].notes)
    assert set(tables["table4"].data["rule"]) == {
        "topm_additive m=2 t=0.1",
        "topm_additive m=4 t=0.1",
    }
    only = expand([{"rule": "mars", "theta": 0.5}])
    assert [table.name for table in all_tables(measure(only))] == [
        "table1",
        "table5",
        "table6",
        "estimators",
        "table7",
    ]


def test_latex_has_as_many_cells_as_columns_and_balanced_braces(measured: Results) -> None:
    for table in all_tables(measured):
        text = latex_table(table)
        columns = re.search(r"\\begin{tabular}{l(r+)}", text)
        assert columns is not None
        for line in text.splitlines():
            bare = line.replace(r"\{", "").replace(r"\}", "")
            assert bare.count("{") == bare.count("}")
            assert bare.replace(r"\$", "").count("$") % 2 == 0
            if line.endswith(r"\\") and "multicolumn" not in line:
                assert len(re.findall(r"(?<!\\)&", line)) == len(columns[1])
        assert text.isascii()
        assert r"mini\_large \& co" in text or table.name == "table5"


def test_rows_of_rules_that_print_alike_are_one() -> None:
    """Top-4 and Top-6 differ by one in the last digit, Top-2 does not; nothing else is folded."""
    rows = [
        (f"Top-{m} + {rest}", a, b)
        for m, a, b in ((2, "0.190", "1.2e-4"), (4, "0.194", "1.4e-4"), (6, "0.195", "1.4e-4"))
        for rest in ("additive (t = 0.1)", "additive (t = 0.2)")
    ]
    rows.append(("Strict greedy", "0.195", "1.4e-4"))
    data = pd.DataFrame(rows, columns=["rule", "x", "y"]).assign(published="1")
    columns = [Column("x", str, "x"), Column("y", str, "y")]
    table = Table("a", "Title", "Why?", "", data, "rule", columns)
    ((_, printed),) = lines(table)
    assert [(name, cells[0]) for name, cells, _ in printed] == [
        ("Top-2 + additive (t = 0.1)", "0.190"),
        ("Top-2 + additive (t = 0.2)", "0.190"),
        ("Top-4, 6 + additive (t = 0.1)", "0.194"),
        ("Top-4, 6 + additive (t = 0.2)", "0.194"),
        ("Strict greedy", "0.195"),
    ]
    assert "share a row" in notes(table)[-1]
    assert len(csv_text(table.data).splitlines()) == 8
    published = [Column("x", str, "x", published=str), columns[1]]
    whole = Table("a", "T", "Why?", "", data, "rule", published)
    assert len(lines(whole)[0][1]) == 7
    assert notes(whole) == []


def test_a_note_of_several_tables_is_said_once(measured: Results) -> None:
    tables = all_tables(measured)
    shared = shared_notes(tables)
    assert len(shared) == len(set(shared)) > 1
    for note in {note for table in tables for note in table.notes}:
        assert (note in shared) == (sum(note in table.notes for table in tables) > 1)


def test_symbols_in_latex() -> None:
    assert latex(RULES[1].title) == "Additive ($t=0.1$)"
    assert latex("R > 50 %, ε₀ = 0.1–0.2*") == r"R $>$ 50 \%, $\epsilon_0=0.1$--0.2$^{*}$"
    assert latex("+∞") == r"$+\infty$"


def test_numbers_print_like_the_papers() -> None:
    assert run_text(17.414, 17.414) == "17.41"
    assert run_text(100.004, math.inf) == ">100"
    assert certificate_text(math.inf, math.inf, math.log(9)) == "2.197*"
    assert certificate_text(0.12341, 0.12349, 0.69) == "0.123"  # no range where both print alike


def test_macro_names_are_letters_and_differ_within_the_papers_grid() -> None:
    names = [
        macro(target, rule.label, statistic)
        for target in published.P5
        for rule in {**published.CERTIFICATES[target], **published.P5[target]}
        for statistic in published.STATISTICS
    ]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[A-Za-z]+", name) for name in names)

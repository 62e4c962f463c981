"""The renderer, and printed tables against the numbers they were made from."""

from __future__ import annotations

import io
import math

import numpy as np
import pandas as pd
import pytest

from analysis.report import published
from analysis.report.escape import latex
from analysis.report.measured import Results, certificate_statistics, top_statistics
from analysis.report.records import Column, Table, across
from analysis.report.render import csv_text, latex_table, lines, spans
from analysis.report.sections.certificates import (
    run_length_table,
    table1,
    table2,
    table3,
    table4,
    table7,
)
from analysis.report.text import certificate_text, digits_text, run_text
from analysis.rule_config import expand
from analysis.rules import Rule
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
EPS = [0.01, 0.1, 0.69]


def certificates(target: str, rule: str) -> tuple[np.ndarray, np.ndarray]:
    """Values of 4 prompts of 70 steps: three in four empty for one rule, open for another."""
    rng = np.random.default_rng(len(target) + sum(map(ord, rule)))
    lower = rng.beta(2, 2, size=280) * 0.69
    if rule == EMPTY:
        lower[np.arange(280) % 4 > 0] = np.inf
    upper = np.where(np.arange(280) % 10 == 0, np.inf, lower) if rule == INEXACT else lower
    return lower, upper


def measure(rules: list[Rule]) -> Results:
    trajectories = Trajectories.from_positions(np.tile(np.arange(70), 4))
    bootstrap = PromptBootstrap(trajectories.prompts, 40, 0.95, 0)
    top, certified, runs = [], [], []
    probabilities = np.sort(np.random.default_rng(0).random((280, 3))).T.copy()
    for target in TARGETS:
        shares = dict(zip((1, 3, 5), probabilities, strict=True))
        top.append(top_statistics(target, shares, bootstrap))
        for rule in rules:
            lower, upper = certificates(target, rule.label)
            undefined = 3 if rule.name == "mars" else math.nan
            certified.append(
                certificate_statistics(target, rule, lower, upper, bootstrap, undefined)
            )
            frame = run_lengths(lower, EPS, trajectories, bootstrap)
            runs.append(frame.assign(rule=rule.label, target=target))
    frames = {"top": top, "certificates": certified, "runs": runs}
    named = {rule.label: rule for rule in rules}
    return Results(TARGETS, named, {name: pd.concat(parts) for name, parts in frames.items()})


def tables_of(measured: Results) -> dict[str, Table]:
    found = [make(measured) for make in (table1, table2, table3, table4)]
    found += [run_length_table(measured, at) for at in range(2)]
    found += [table7(measured)]
    return {table.name: table for table in found if table is not None}


@pytest.fixture(scope="module")
def tables() -> dict[str, Table]:
    return tables_of(measure(RULES))


def cells(table: Table, row: str, published: bool = False) -> list[str]:
    every = {name: (ours, theirs) for _, rows in lines(table) for name, ours, theirs in rows}
    return every[row][published]


def test_the_renderer_lays_out_sections_orders_and_missing_cells() -> None:
    """Rows of a frame that share section and row are one printed row; LaTeX has the same."""
    rows = [("x", "a", "one", 1, "1.5"), ("y", "a", "one", 2, math.nan), ("x", "b", "two", 3, 4.5),
            ("y", "c", "one", math.nan, 5.5)]  # fmt: skip
    data = pd.DataFrame(rows, columns=["target", "rule", "part", "value", "published"])
    columns = across(["x", "y"], [Column("n_%", "{:g}".format)])
    told = dict.fromkeys(("name", "title", "question", "caption"), "any")
    table = Table(**told, data=data, row="rule", columns=columns, section="part", stub="&")
    assert lines(table) == [
        ("one", [("a", ["1", "2"], ["1.5", ""]), ("c", ["–", "–"], ["", "5.500"])]),
        ("two", [("b", ["3", "–"], ["4.500", ""])]),
    ]
    assert spans(table) == [("x", 1), ("y", 1)]
    order = {"first": {"c": "C"}, "then": ["b", "a"], "none": ["d"]}
    ordered = Table(**told, data=data, row="rule", columns=columns, order=order, names={"b": "B"})
    assert [(heading, [row[0] for row in rows]) for heading, rows in lines(ordered)] == [
        ("first", ["C"]),
        ("then", ["B", "a"]),
    ]
    text = latex_table(table, "A note.").splitlines()
    assert r"\& & n\_\% & n\_\% \\" in text
    assert r"\quad\emph{as published} & 1.5 &  \\" in text
    assert r"\multicolumn{3}{l}{\emph{two}} \\" in text
    assert text[2] == r"\caption{any any A note.}"


def test_empty_regions_and_open_certificates_are_marked(tables: dict[str, Table]) -> None:
    """The cells of the fixed study's tables are in tests/results/report.json."""
    finite = np.sort(certificates(TARGETS[1], EMPTY)[0])
    mean = (finite[np.isfinite(finite)].sum() + 210 * math.log(2)) / 280
    expected = [digits_text(mean), "0.693*", digits_text(finite[13]), digits_text(finite[69])]
    assert cells(tables["table2"], "Additive (t = 0.3)")[4:] == expected
    assert "At some steps nothing can be rejected" in tables["table2"].notes[0]
    theirs = cells(tables["table2"], "Strict greedy", published=True)
    assert theirs[:4] == ["0.438", "0.559", "0.006", "0.160"]
    low = np.sort(certificates(TARGETS[0], INEXACT)[0])[13]
    assert cells(tables["table3"], "t = 0.45")[0] == digits_text(low)
    assert any("their lower ends" in note for note in tables["table3"].notes)
    # a run length near the number of steps is a lower bound
    table = tables["table5"]
    data = table.data[table.data["estimator"] == "per_call"].set_index(["rule", "eps"])
    for rule in set(published.TABLE2) & set(RULES):
        printed = next(row[1] for row in lines(table)[0][1] if row[0] == rule.title)
        for eps, cell in zip(EPS, printed, strict=False):
            row = data.loc[(rule.label, eps)]
            assert ("≥" in cell) == row["censored"]
            assert cell.startswith(f"≥ {row['value']:.2f}") or not row["censored"]


def test_csv_gives_published_values_intervals_shares_and_estimators(
    tables: dict[str, Table],
) -> None:
    read = {}
    for name, table in tables.items():
        read[name] = pd.read_csv(io.StringIO(csv_text(table.data)), keep_default_na=False)
    for name, key, row, value in (
        ("table2", "statistic", "mean", "0.438"),
        ("table5", "eps", 0.1, "4.83"),
    ):
        data = read[name]
        ours = data[(data["target"] == TARGETS[0]) & (data["rule"] == "greedy")]
        assert str(ours[ours[key] == row].iloc[0]["published"]) == value
        assert set(data[data["target"] == TARGETS[1]]["published"]) <= {""}
    assert "as published" not in latex_table(tables["table6"])  # of the other target
    sections = [heading for heading, _ in lines(tables["table5"])]  # the printed ones stand once
    assert [heading.split(",")[0] for heading in sections] == [
        *("tokens a call", "mean certified run", "mean certified run from a random position")
    ]
    has_published = [any(row[2] for row in rows) for _, rows in lines(tables["table5"])]
    assert has_published == [True, False, False]
    shares = read["table2"].groupby("rule")["empty"].max().to_dict()
    assert shares == {"additive t=0.1": 0, EMPTY: 0.75, "greedy": 0, "tree m=2": 0}
    assert set(read["table6"]["estimator"]) == {"per_call", "mean_run", "random_100"}
    # rules beyond the paper, and tables without rows
    assert set(tables["table7"].data["rule"]) == {"mars theta=0.9"}
    assert set(tables["table7"].data["undefined"]) == {3}
    assert set(tables["table4"].data["rule"]) == {f"topm_additive m={m} t=0.1" for m in (2, 4)}
    only = tables_of(measure(expand([{"rule": "mars", "theta": 0.5}])))
    assert list(only) == ["table1", "table5", "table6", "table7"]


def test_symbols_and_numbers_print_like_the_papers() -> None:
    assert latex(RULES[1].title) == "Additive ($t=0.1$)"
    assert latex("R > 50 %, ε₀ = 0.1–0.2*") == r"R $>$ 50 \%, $\epsilon_0=0.1$--0.2$^{*}$"
    assert latex("+∞") == r"$+\infty$"
    assert run_text(100.004) == ">100"
    assert certificate_text(math.inf, math.log(9)) == "2.197*"

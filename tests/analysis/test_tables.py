"""The renderer, and printed tables against the numbers they were made from."""

import io
import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest

from analysis.decoding import speed
from analysis.report import published
from analysis.report.decoding import comparison_table, speed_table
from analysis.report.paper_tables import run_length_table, table1, table2, table3, table4, table7
from analysis.report.results import Results, Target, certificate_statistics, top_statistics
from analysis.report.table import Table, csv_text, latex, pivoted
from analysis.report.text import decimals, number_text
from analysis.rule_config import expand
from analysis.rules import Cut, Rule
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.statistics.run_lengths import run_lengths
from analysis.statistics.trajectories import Trajectories

from . import test_decoding_metrics

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


def certificates(target, rule):
    """Values of 4 prompts of 70 steps: three in four empty for one rule, open for another."""
    rng = np.random.default_rng(len(target) + sum(map(ord, rule)))
    lower = rng.beta(2, 2, size=280) * 0.69
    if rule == EMPTY:
        lower[np.arange(280) % 4 > 0] = np.inf
    upper = np.where(np.arange(280) % 10 == 0, np.inf, lower) if rule == INEXACT else lower
    return lower, upper


def measure(rules):
    trajectories = Trajectories.from_positions(np.tile(np.arange(70), 4))
    bootstrap = PromptBootstrap(trajectories.prompts, 40, 0.95, 0)
    top, certified, runs = [], [], []
    probabilities = np.sort(np.random.default_rng(0).random((280, 3))).T.copy()
    for label in TARGETS:
        target = Target(
            label,
            {rule: certificates(label, rule.label) for rule in rules},
            bootstrap,
            np.zeros(280, np.int32),
            [],
            top=dict(zip((1, 3, 5), probabilities, strict=True)),
            undefined={rule.label: 3 for rule in rules if rule.name == "mars"},
        )
        top.append(top_statistics(target))
        certified.append(certificate_statistics(target))
        for rule, (lower, _) in target.certificates.items():
            frame = run_lengths(lower, EPS, trajectories, bootstrap)
            runs.append(frame.assign(rule=rule.label, target=label))
    frames = {"top": top, "certificates": certified, "runs": runs}
    named = {rule.label: rule for rule in rules}
    return Results(TARGETS, named, {name: pd.concat(parts) for name, parts in frames.items()})


def tables_of(measured):
    found = [make(measured) for make in (table1, table2, table3, table4)]
    found += [run_length_table(measured, at) for at in range(2)]
    found += [table7(measured)]
    return {table.name: table for table in found if table is not None}


@pytest.fixture(scope="module")
def tables():
    return tables_of(measure(RULES))


def test_rows_and_columns_keep_their_order_and_missing_cells_are_marked():
    """LaTeX and HTML have the same cells; names are text."""
    rows = [("x", "b", "1"), ("y", "b", "2"), ("x", "<a>", "3 %")]
    data = pd.DataFrame(rows, columns=["target", "rule", "cell"]).assign(n="n_%")
    shown = pivoted(data, "rule", ["target", "n"], data["cell"])
    table = Table("one", "any", "A & B", data, shown.rename_axis(index="#"))
    assert shown.index.tolist() == ["b", "<a>"]
    assert shown.columns.tolist() == [("x", "n_%"), ("y", "n_%")]
    text = table.latex().splitlines()
    assert text[1:4] == [r"\caption{A \& B}", r"\label{tab:one}", r"\begin{tabular}{lrr}"]
    assert text[5:7] == [
        r" & x & y \\", r"\# & n\_\% & n\_\% \\",
    ]  # fmt: skip
    assert r"$<$a$>$ & 3 \% & -- \\" in text
    page = table.html()
    assert "<th>&lt;a&gt;</th>\n      <td>3 %</td>\n      <td>–</td>" in page
    long = Table("two", "any", "any", data, pd.DataFrame({"text": [99 * "x"] * 99}))
    assert long.html().count(99 * "x") == 99


def test_empty_regions_and_open_certificates_are_marked(tables):
    """The cells of the fixed study's tables are in tests/results/report.json."""
    two = tables["table2"]
    finite = np.sort(certificates(TARGETS[1], EMPTY)[0])
    mean = (finite[np.isfinite(finite)].sum() + 210 * math.log(2)) / 280
    values = two.data.groupby("statistic")["value"].agg(decimals)
    printed = zip((mean, finite[13], finite[69]), ("mean", "p5", "p25"), strict=True)
    expected = [number_text(value, values[name]) for value, name in printed]
    row = two.shown.loc["Additive (t = 0.3)", TARGETS[1]]
    assert row[["Mean", "p5", "p25"]].tolist() == expected
    assert row["Med"] == f"{number_text(math.log(2), values['median'])}*"
    assert row["empty"] == "75.0 %"
    assert "*: the ceiling" in two.caption
    digits = decimals(tables["table3"].data["value"])
    low = np.sort(certificates(TARGETS[0], INEXACT)[0])[13]
    three = tables["table3"].shown
    assert three.loc[("Additive certificate", "t = 0.45"), TARGETS[0]] == number_text(low, digits)
    assert "lower ends count" in tables["table3"].caption
    # a run length near the number of steps is a lower bound
    table = tables["table5"]
    data = table.data[table.data["estimator"] == "per_call"].set_index(["rule", "eps"])
    for rule in set(published.TABLE2) & set(RULES):
        for eps, cell in zip(EPS, table.shown.loc["Tokens per call", :].loc[rule.title],
                             strict=True):  # fmt: skip
            row = data.loc[(rule.label, eps)]
            assert ("≥" in cell) == row["censored"]
            assert cell.startswith(f"≥ {row['value']:.2f}") or not row["censored"]


def test_csv_gives_published_values_intervals_shares_and_estimators(tables):
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
    wordings = tables["table5"].shown.index.get_level_values(0).unique().tolist()
    assert wordings == [
        *("Tokens per call", "Mean certified run", "From a random position, at most 100")
    ]
    shares = read["table2"].groupby("rule")["empty"].max().to_dict()
    assert shares == {"additive t=0.1": 0, EMPTY: 0.75, "greedy": 0, "tree m=2": 0}
    assert set(read["table6"]["estimator"]) == {"per_call", "mean_run", "random_100"}
    # rules beyond the paper, and tables without rows
    assert set(tables["table7"].data["rule"]) == {"mars theta=0.9"}
    assert set(tables["table7"].data["undefined"]) == {3}
    assert set(tables["table4"].data["rule"]) == {f"topm_additive m={m} t=0.1" for m in (2, 4)}
    only = tables_of(measure(expand([{"rule": "mars", "theta": 0.5}])))
    assert list(only) == ["table1", "table2", "table5", "table6"]  # all that there is


class Confident(Rule):
    """A user's rule with a limit on ranks, whose printed name does not tell its settings apart."""

    shown: ClassVar[str] = "Confident"
    alpha: float
    m: int

    def cut(self, _: object) -> Cut:
        return Cut(slope=self.alpha, offset=0.0, max_rank=self.m)


def test_a_users_rule_stands_beside_the_papers_in_every_table():
    """Two of one printed name have a row each."""
    found = tables_of(measure([*RULES, Confident(alpha=0.3, m=4), Confident(alpha=0.2, m=4)]))
    for name, count in (("table2", 2), ("table3", 2), ("table5", 6), ("table6", 6), ("table7", 0)):
        assert found[name].shown.index.get_level_values(-1).tolist().count("Confident") == count
    four = found["table4"].shown
    name = next(name for name in four.index if name.endswith("α = 0.3"))
    assert four.index.tolist()[0] == "0.1"
    assert [four.columns[at][1] for at in range(2)] == ["m = 2", "m = 4"]
    assert pd.isna(four.loc[name, (TARGETS[0], "m = 2")])
    assert four.loc[name, (TARGETS[0], "m = 4")].startswith("0.")


def test_a_grid_of_other_values_is_shown_in_table_2():
    """Of a family without the paper's values all values, and all rules of a study without any."""
    some = expand([{"rule": "greedy"}, {"rule": "additive", "t": [0.15, 0.25]}])
    others = expand([{"rule": "additive", "t": [0.15, 0.25]}, {"rule": "mars", "theta": 0.5}])
    for rules in (some, others):
        assert tables_of(measure(rules))["table2"].shown.index.tolist() == [
            rule.title for rule in rules
        ]
    both = expand([{"rule": "additive", "t": [0.1, 0.15]}])
    assert tables_of(measure(both))["table2"].shown.index.tolist() == ["Additive (t = 0.1)"]


def test_methods_are_compared_by_the_source_of_their_prompts():
    """Two prompts; the second run emits 5 tokens in 3 calls on one, 3 in 2 on the other."""
    one = test_decoding_metrics.made()
    one = replace(one, data=one.data.assign(source=one.data["prompt_id"]))
    speeds = speed.speed(one, 20, 0.9, 0)
    table = comparison_table([one], [speeds])
    tau = table.data.set_index(["source", "run"])["tau"]
    assert [tau[source, 1] for source in ("a", "b", "all")] == pytest.approx([5 / 3, 3 / 2, 8 / 5])
    assert table.shown["a", "τ"].iloc[1] == "1.67"
    assert table.shown["all", "agreement"].tolist() == ["100.0 %", "100.0 %", "50.0 %"]
    costs = speed_table([one], [speeds]).shown
    assert costs["costs", "ρ"].tolist()[1] == "0.100"
    assert costs["a call, ms", "verify"].tolist() == ["10.00", "12.00", "12.00"]


def test_symbols_print_like_the_papers():
    assert latex("R > 50 %, ε₀ = 0.1–0.2*") == r"R $>$ 50 \%, $\varepsilon_{0}$ = 0.1--0.2*"
    assert latex(r"$α|{~^\}") == (
        r"\$$\alpha$\textbar{}\{\textasciitilde{}\textasciicircum{}\textbackslash{}\}"
    )

"""The renderer, printed tables against their numbers, and the transcription of the paper's."""

import io
import math
import re
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import yaml

from analysis.acceptance.target import Target
from analysis.acceptance.target_statistics import certificate_statistics, top_statistics
from analysis.report import paper_tables, published
from analysis.report.decoding_tables import comparison_table, speed_table
from analysis.report.paper_tables import run_length_table, table1, table2, table3, table4, table7
from analysis.report.published_claims import claims_table
from analysis.report.published_table import (
    compare_with_paper,
    outside_sentences,
    published_section,
    published_table,
)
from analysis.report.results import Results
from analysis.report.table import Table, cells_to_grid, csv_text, latex
from analysis.report.text import number_text
from analysis.rule_config import expand
from analysis.rules import Multiplicative, Rule, StrictGreedy, Threshold, Tree
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.statistics.run_lengths import run_lengths
from analysis.statistics.trajectories import Trajectories
from pipeline.core.paths import CONF

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
    bootstrap = PromptBootstrap(trajectories.answer_index, 40, 0.95, 0)
    frames = {"top": [], "certificates": [], "run_lengths": []}
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
        frames["top"].append(top_statistics(target))
        frames["certificates"].append(certificate_statistics(target))
        for rule, (lower, _) in target.certificates.items():
            frame = run_lengths(lower, EPS, trajectories, bootstrap)
            frames["run_lengths"].append(frame.assign(rule=rule.label, target=label))
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
    shown = cells_to_grid(data, "rule", ["target", "n"], data["cell"])
    table = Table("one", "any", "A & B", data, shown.rename_axis(index="#"))
    assert shown.index.tolist() == ["b", "<a>"]
    assert shown.columns.tolist() == [("x", "n_%"), ("y", "n_%")]
    text = table.latex().splitlines()
    assert latex("m₄, p₁₀") == "m$_{4}$, p$_{10}$"
    assert latex(r"ε₀ = 0.1–0.2^") == r"$\varepsilon_{0}$ = 0.1--0.2\textasciicircum{}"
    assert r"\caption{A \& B}" in text
    assert r"\# & n\_\% & n\_\% \\" in text
    assert r"$<$a$>$ & 3 \% & -- \\" in text
    assert "<th>&lt;a&gt;</th>\n      <td>3 %</td>\n      <td>–</td>" in table.html()
    long = Table("two", "any", "any", data, pd.DataFrame({"text": [99 * "x"] * 99}))
    assert long.html().count(99 * "x") == 99


def test_empty_regions_and_open_certificates_are_marked(tables):
    """The cells of the fixed study's tables are in tests/results/report.json."""
    two = tables["table2"]
    finite = np.sort(certificates(TARGETS[1], EMPTY)[0])
    mean = (finite[np.isfinite(finite)].sum() + 210 * math.log(2)) / 280
    values = paper_tables.DIGITS
    printed = zip((mean, finite[13], finite[69]), ("mean", "p5", "p25"), strict=True)
    expected = [number_text(value, values[name]) for value, name in printed]
    row = two.cells.loc["Additive (t = 0.3)", TARGETS[1]]
    assert row[["Mean", "p5", "p25"]].tolist() == expected
    assert row["Med"] == f"{number_text(math.log(2), values['median'])}*"
    assert row["empty"] == "75.0 %"
    digits = paper_tables.DIGITS["p5"]
    low = np.sort(certificates(TARGETS[0], INEXACT)[0])[13]
    three = tables["table3"].cells
    assert three.loc[("Additive certificate", "t = 0.45"), TARGETS[0]] == number_text(low, digits)
    # a run length near the number of steps is a lower bound
    table = tables["table5"]
    data = table.data[table.data["estimator"] == "per_call"].set_index(["rule", "eps"])
    for rule in set(published.TABLE2) & set(RULES):
        cells = table.cells.loc["Tokens per call", :].loc[rule.title]
        for eps, cell in zip(EPS, cells, strict=True):
            value, censored = data.loc[(rule.label, eps), ["value", "censored"]]
            assert cell.startswith(f"≥ {value:.2f}") == censored


def test_the_share_of_exact_certificates_is_what_is_no_interval():
    """One step in ten of this rule is an interval; without one there is no such column."""
    alone = tables_of(measure(expand([{"rule": "additive", "t": [0.2, 0.45]}])))["table2"].cells
    for target in TARGETS:
        assert alone.loc["Additive (t = 0.45)", (target, "exact")] == "90.0 %"
        assert alone.loc["Additive (t = 0.2)", (target, "exact")] == "100.0 %"
    exact = tables_of(measure(expand([{"rule": "additive", "t": [0.2]}])))["table2"].cells
    assert "exact" not in exact.columns.get_level_values(1)


def test_latex_has_the_papers_columns_and_the_digits_of_every_study(tables):
    """Shares of exact and empty certificates are on the page, and not in a paper's table."""
    two = tables["table2"]
    assert "empty" in two.cells.columns.get_level_values(1)
    text = two.latex().splitlines()
    assert r"Criterion & Mean & Med & p5 & p25 & Mean & Med & p5 & p25 \\" in text
    assert not re.search("exact &|empty &", two.latex())
    rows = [line for line in text if line.startswith(("Strict", "Additive", "Mult.", "Tree"))]
    assert len(rows) > 2
    for row in rows:
        found = re.findall(r"\.(\d+)", row.partition(" & ")[2])
        assert [len(digits) for digits in found] == [3, 3, 4, 4, 3, 3, 4, 4]


def test_latex_has_the_intervals_on_request():
    measured = measure(RULES)
    two = table2(measured, intervals=True)
    assert two.cells.equals(table2(measured).cells)
    lines = two.latex().splitlines()
    place = next(at for at, line in enumerate(lines) if line.startswith("Strict greedy"))
    low, high = two.data.loc[0, ["ci_low", "ci_high"]]
    assert lines[place + 1].startswith(f" & [{low:.3f}, {high:.3f}] & [")
    assert lines[place + 1].count("[") == 8


def table_of(width, columns):
    cells = pd.DataFrame({f"c{at}": ["x" * (width - 2)] for at in range(columns)}, index=["row"])
    return Table("any", "any", "any", cells, cells)


@pytest.mark.parametrize(
    ("columns", "environment", "font", "packages"),
    [
        (1, "table", "footnotesize", "booktabs"),
        (4, "table", "footnotesize", "booktabs"),
        (5, "table", "scriptsize", "booktabs"),
        (6, "table*", "footnotesize", "booktabs"),
        (10, "table*", "footnotesize", "booktabs"),
        (11, "table*", "scriptsize", "booktabs"),
        (12, "table*", "scriptsize", "booktabs,graphicx"),
    ],
)
def test_latex_takes_a_column_or_the_page(columns, environment, font, packages):
    """Columns of 9 letters: 4.2 points each and 6 between, in 234.9 or 487.8 points."""
    lines = table_of(11, columns).latex().splitlines()
    assert lines[0] == rf"% \usepackage{{{packages}}}"
    assert lines[1] == rf"\begin{{{environment}}}[t]"
    assert lines[2] == r"\centering"
    assert rf"\{font}" in lines
    assert (r"\resizebox{\textwidth}{!}{%" in lines) == ("graphicx" in packages)
    assert lines[-1] == rf"\end{{{environment}}}"


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

    def cut(self, _):
        return Threshold(slope=self.alpha, offset=0.0, max_rank=self.m)


class Windowed(Rule):
    """A user's rule with steps at which it means nothing."""

    title_format: ClassVar[str] = "Windowed {width}"
    undefined_means: ClassVar[str] = "Steps before the window is full."
    width: int

    def cut(self, _):
        return Threshold(slope=0.5, offset=0.0)


def test_what_undefined_means_is_said_by_the_rules_of_the_table_alone(tables):
    """In the words of each rule; MARS, in Table 7, says nothing in a table without it."""
    mars = RULES[-2].undefined_means
    assert f"for MARS (θ = 0.9): {mars}. " in f"{tables['table7'].caption} "
    assert not any(mars in tables[f"table{at}"].caption for at in (1, 2, 3, 4))
    own = [Windowed(width=3), Windowed(width=4)]
    found = tables_of(measure([StrictGreedy(), *own, Multiplicative(0.4)]))
    wanted = "for Windowed 3, Windowed 4: Steps before the window is full."
    for name in ("table2", "table3"):
        assert wanted in found[name].caption
        assert "undefined" in found[name].data.columns
    assert "table7" not in found or "ndefined" not in found["table7"].caption
    assert not any("MARS" in table.caption for table in found.values())


def test_a_printed_quantile_of_few_prompts_has_a_warning(monkeypatch, tables):
    """Of 4 prompts; with as many as the bound there is none."""
    quantiles = ("table1", "table2", "table3", "table4", "table7")
    warned = {name for name, table in tables.items() if "Fewer than 30 prompts" in table.caption}
    assert warned == {*quantiles}
    for bound, count in ((5, len(quantiles)), (4, 0)):
        monkeypatch.setattr(paper_tables, "FEW_PROMPTS", bound)
        captions = [table.caption for table in tables_of(measure(RULES)).values()]
        assert sum("Fewer than" in caption for caption in captions) == count


def test_a_users_rule_stands_beside_the_papers_in_every_table():
    """Two of one printed name have a row each."""
    found = tables_of(measure([*RULES, Confident(alpha=0.3, m=4), Confident(alpha=0.2, m=4)]))
    for name, count in (("table2", 2), ("table3", 2), ("table5", 6), ("table6", 6), ("table7", 0)):
        assert found[name].cells.index.get_level_values(-1).tolist().count("Confident") == count


def test_methods_are_compared_by_the_source_of_their_prompts():
    """Two prompts; the second run emits 5 tokens in 3 calls on one, 3 in 2 on the other."""
    one = test_decoding_metrics.made()
    one = replace(one, answers=one.answers.assign(source=one.answers["prompt_id"]))
    speeds = test_decoding_metrics.speeds(one)
    table = comparison_table([one], [speeds])
    tau = table.data.set_index(["source", "run"])["tau"]
    assert [tau[source, 1] for source in ("a", "b", "all")] == pytest.approx([5 / 3, 3 / 2, 8 / 5])
    assert table.cells["all", "agreement"].tolist() == ["100.0 %", "100.0 %", "50.0 %"]
    costs = speed_table([one], [speeds]).cells
    assert costs["a call, ms", "verify"].tolist() == ["10.00", "12.00", "12.00"]


PRINTED_TARGETS = ["Qwen3-1.7B", "Qwen3-4B"]
PAPER = PRINTED_TARGETS[0]


def test_every_table_is_complete_and_its_rules_are_in_the_grid():
    rules = set(expand(yaml.safe_load((CONF / "criteria/paper.yaml").read_text())["paper"]))
    for target in PRINTED_TARGETS:
        certificates, lengths = published.CERTIFICATES[target], published.RUN_LENGTHS[target]
        assert list(published.TOP_PROBABILITY[target]) == [1, 3, 5, 10, 25]
        assert len(published.P5[target]) == 6 + 6 + 4 * 4
        assert len(certificates) == 9
        assert lengths.keys() == certificates.keys()
        assert certificates.keys() | published.P5[target].keys() <= rules
        shared = certificates.keys() & published.P5[target].keys()
        assert all(certificates[rule][2] == published.P5[target][rule][0] for rule in shared)
        for row in lengths.values():
            assert list(row) == sorted(row, reverse=True)
        four = [*published.TOP_PROBABILITY[target].values(), *certificates.values()]
        assert {len(row) for row in four} == {4}
        assert {len(row) for row in lengths.values()} == {8}


def reproduced(shift=0.0, cut=0.0):
    """A study of the paper's target with its numbers of p0 and of strict greedy, plus `shift`.

    Prompts are all alike, so that intervals have no width; one rule's certificates are infinite.
    """

    def rows(values, statistics, **key):
        ends = dict.fromkeys(("value", "ci_low", "ci_high"), np.array(values) + shift)
        return pd.DataFrame({"statistic": statistics, **ends, **key, "target": PAPER})

    greedy, other = StrictGreedy(), Multiplicative(0.9)
    certificates, lengths = published.CERTIFICATES[PAPER], published.RUN_LENGTHS[PAPER]
    runs = rows(lengths[greedy], published.LEVELS, rule="greedy", estimator="per_call", cut=cut)
    frames = {
        "top": rows(published.TOP_PROBABILITY[PAPER][1], published.STATISTICS, k=1),
        "certificates": pd.concat(
            [
                rows(certificates[greedy], published.STATISTICS, rule="greedy"),
                rows([math.inf], ["p5"], rule=other.label),
            ]
        ),
        "run_lengths": runs.rename(columns={"statistic": "eps"}),
    }
    return Results([PAPER], {rule.label: rule for rule in (greedy, other)}, frames)


@pytest.mark.parametrize(("shift", "differs"), [(0.0, False), (0.0004, False), (0.0006, True)])
def test_the_rounding_of_print_is_no_difference(shift, differs):
    results = reproduced(shift)
    table = compare_with_paper(results)
    found = table[table["table"].isin(["1", "2"])]
    assert (found["outside"] == differs).all()
    np.testing.assert_allclose(found["difference"], shift, atol=1e-12)
    # an empty region stands as its ceiling: log 2 against the printed 0.008
    (other,) = table[table["row"] == "multiplicative alpha=0.9"].to_dict("records")
    assert (other["table"], other["outside"]) == ("3", True)
    assert other["difference"] == pytest.approx(math.log(2) - 0.008)
    assert table[table["table"] == "5 and 6"]["statistic"].tolist() == list(published.LEVELS)
    assert published_section(replace(results, targets=["own"])) is None


def test_a_length_that_answers_cut_is_a_bound_and_is_not_counted():
    table = compare_with_paper(reproduced(shift=-1.0, cut=0.5))
    runs = table[table["table"] == "5 and 6"]
    assert runs["censored"].all()
    assert runs["difference"].isna().all()
    assert not runs["outside"].any()
    cells = published_table(table).cells
    assert cells["ours"].str.startswith("≥ ").sum() == len(runs)
    assert cells["difference"].eq("–").sum() == len(runs)
    without = compare_with_paper(reproduced(shift=-1.0))
    (line,) = outside_sentences(without)
    count = len(without[without["table"] == "5 and 6"])
    assert f"Tables 5 and 6 {count} of {count}." in line


def paper_as_study():
    """The paper's own cells in the place of a study's."""
    cells = [
        {
            "target": PAPER,
            "row": row.label if isinstance(row, Rule) else str(row),
            "statistic": column,
            "value": value,
            "published": value,
            "censored": False,
        }
        for _, row, column, value in published.printed_rows(PAPER)
    ]
    return pd.DataFrame(cells)


def test_what_the_paper_says_in_words_stands_beside_its_own_cells():
    """Of Qwen3-1.7B: cells of Tables 2 to 5 put together by hand."""
    wanted = {
        "median, m = 2 / greedy": f"{0.962 / 0.559:.2f}",
        "p5, t = 0.05 − greedy, nats": f"{0.011 - 0.006:.3f}",
        "p5, α = 0.7 − greedy, nats": f"{0.027 - 0.006:.3f}",
        "p5, m = 2 / m = 8": f"{0.037 / 0.057:.2f}",  # the second row: t = 0.2
        "tokens, ε = 0.5, fewest of a rule": "2.16",
        "tokens, ε = 0.5, most of a rule": "4.61",
    }
    table = claims_table(paper_as_study(), [])
    cells = table.cells.reset_index("number").set_index("number")
    for column in ("ours", "by its tables"):
        assert dict(zip(cells.index, cells[column], strict=True)) == wanted
    assert cells.loc["p5, m = 2 / m = 8", "ours"].tolist() == ["0.75", "0.65"]
    assert len(table.data) == len(wanted) + 1


def test_a_sentence_without_its_rules_is_left_out_and_a_cut_length_is_a_bound():
    cells = paper_as_study()
    cells["censored"] = cells["statistic"].eq(0.5)
    cells["value"] *= 2
    table = claims_table(cells[cells["row"] != Tree(2).label], [])
    assert "median, m = 2 / greedy" not in table.data["quantity"].tolist()
    lengths = table.data[table.data["quantity"].str.startswith("tokens")]
    assert lengths["value"].tolist() == [4.32, 9.22]
    assert table.cells["ours"].str.startswith("≥ ").tolist()[-2:] == [True, True]
    assert table.cells["ours"].str.startswith("≥ ").sum() == 2
    assert claims_table(cells[cells["row"] == "1"], []) is None


def test_steps_of_figure_1_are_counted_in_its_last_bar():
    """Three of eight steps lie above 0.975; 0.975 itself does not."""
    probability = np.array([0.976, 0.99, 1.0, 0.975, 0.9, 0.5, 0.4, 0.3])
    bootstrap = PromptBootstrap(np.repeat([0, 1], 4), 40, 0.95, 0)
    target = Target(PAPER, {}, bootstrap, np.zeros(8, np.int32), [], top={1: probability})
    table = claims_table(paper_as_study(), [target, replace(target, label="another")])
    rows = table.data.set_index("quantity")
    assert rows.loc["steps with p₀ > 0.975", "value"] == 3 / 8
    assert rows.loc["steps", "value"] == 8
    assert set(table.data["target"]) == {PAPER}

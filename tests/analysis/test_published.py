"""The transcription of the paper's tables, and ours beside it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import yaml

from analysis.report import published
from analysis.report.published import compare, outside, published_section, published_table
from analysis.report.results import Results, Target, certificate_statistics, top_statistics
from analysis.report.table import together
from analysis.rule_config import expand
from analysis.rules import Additive, Multiplicative, StrictGreedy, TopMAdditive, Typical
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.statistics.run_lengths import run_lengths
from pipeline.paths import CONF

TARGETS = ["Qwen3-1.7B", "Qwen3-4B"]
PAPER = TARGETS[0]
PROMPTS, EACH = 40, 50


def test_every_table_is_complete_and_its_rules_are_in_the_grid():
    rules = set(expand(yaml.safe_load((CONF / "criteria/paper.yaml").read_text())["paper"]))
    for target in TARGETS:
        certificates, lengths = published.CERTIFICATES[target], published.RUN_LENGTHS[target]
        assert list(published.TOP_PROBABILITY[target]) == [1, 3, 5, 10, 25]
        assert len(published.P5[target]) == 6 + 6 + 4 * 4
        assert len(certificates) == 9
        assert lengths.keys() == certificates.keys()
        assert certificates.keys() | published.P5[target].keys() <= rules
        four = [*published.TOP_PROBABILITY[target].values(), *certificates.values()]
        assert {len(row) for row in four} == {4}
        assert {len(row) for row in lengths.values()} == {8}


@pytest.mark.parametrize("target", TARGETS)
def test_monotone_where_mathematics_says_so(target):
    """A slip of a digit would most likely break an order."""
    certificates, p5 = published.CERTIFICATES[target], published.P5[target]
    for row in published.RUN_LENGTHS[target].values():
        assert list(row) == sorted(row, reverse=True)
    for column in zip(*published.TOP_PROBABILITY[target].values(), strict=True):
        assert list(column) == sorted(column)
    for mean, median, low, p25 in certificates.values():
        assert 0 < low < p25 < median
        assert low < mean
    ts, ms = [0.01, 0.05, 0.1, 0.2], [2, 4, 6, 8]
    for family in (
        [Additive(t) for t in (*ts, 0.3, 0.5)],
        [Multiplicative(alpha) for alpha in (0.9, 0.7, 0.5, 0.3, 0.2, 0.1)],
        *([TopMAdditive(m, t) for t in ts] for m in ms),
        *([TopMAdditive(m, t) for m in ms] for t in ts),
    ):
        values = [p5[rule][0] for rule in family]
        assert values == sorted(values)
    shared = certificates.keys() & p5.keys()
    assert len(shared) == 4
    assert all(certificates[rule][2] == p5[rule][0] for rule in shared)
    # copied as printed, also where the paper contradicts itself
    small, medusa = published.P5["Qwen3-4B"], published.CERTIFICATES["Qwen3-1.7B"]
    assert small[TopMAdditive(2, 0.01)][0] > small[Additive(0.01)][0]  # a stricter rule
    top = published.TOP_PROBABILITY["Qwen3-1.7B"][1][2]
    assert medusa[Typical(0.1, 0.09)][2] > math.log(1 + top)  # R <= log(1 + p0)


def spread(mean, median, p5, p25, top=1.0):
    """A prompt's steps, the same for all prompts, with exactly these statistics, none above `top`.

    Of 50 steps the ranks 3, 13 and 25 are the quantiles; all others move with the mean.
    """
    low = np.repeat([0, p5, p25, median], [2, 10, 12, 26])
    high = np.repeat([p5, p25, median, top], [3, 10, 12, 25])
    low[[2, 12, 24]] = high[[2, 12, 24]] = p5, p25, median
    share = (mean - low.mean()) / (high.mean() - low.mean())
    assert 0 <= share <= 1
    return np.asarray(low + share * (high - low))


def measured(values, p0):
    bootstrap = PromptBootstrap(np.repeat(np.arange(PROMPTS), EACH), 50, 0.95, 0)
    whole = {rule: (np.tile(steps, PROMPTS),) * 2 for rule, steps in values.items()}
    tokens = np.zeros(PROMPTS * EACH, np.int32)
    target = Target(PAPER, whole, bootstrap, tokens, [], top={1: np.tile(p0, PROMPTS)})
    runs = {
        rule.label: run_lengths(lower, list(published.EPS), target.trajectories, bootstrap)
        for rule, (lower, _) in whole.items()
    }
    frames = {
        "top": top_statistics(target),
        "certificates": certificate_statistics(target),
        "runs": together(runs.items(), "rule").assign(target=PAPER),
    }
    return Results([PAPER], {rule.label: rule for rule in values}, frames)


P0 = spread(*published.TOP_PROBABILITY[PAPER][1])
PRINTED = spread(*published.CERTIFICATES[PAPER][StrictGreedy()], top=math.log(2))


def test_what_the_paper_prints_is_inside_its_own_interval():
    """Results with the paper's own statistics of p0 and of strict greedy."""
    results = measured({StrictGreedy(): PRINTED, Multiplicative(0.9): np.full(EACH, math.inf)}, P0)
    table = compare(results)
    found = table.set_index(["table", "row", "statistic"])
    p0, greedy = found.loc["1"].loc["1"], found.loc["2"].loc["greedy"]
    assert not p0["outside"].any()
    assert not greedy["outside"].any()
    assert np.allclose(greedy["difference"], 0)
    # an empty region stands as its ceiling: log 2 against the printed 0.008
    other = found.loc[("3", "multiplicative alpha=0.9", "p5")]
    assert other["outside"]
    assert other["difference"] == pytest.approx(math.log(2) - 0.008)
    runs = found.loc["5 and 6"].loc["greedy"]
    assert list(runs.index) == list(published.EPS)
    assert "multiplicative alpha=0.9" not in found.loc["5 and 6"].index
    assert set(table["table"]) == {"1", "2", "3", "5 and 6"}
    assert published_section(replace(results, targets=["own"])) is None


def test_a_length_that_answers_cut_is_a_bound_and_is_not_counted():
    """Fifty steps that are all certified advance at least 50 tokens: 100 is no contradiction."""
    table = compare(measured({Additive(0.3): np.full(EACH, 0.011)}, np.full(EACH, 0.5)))
    runs = table[table["table"] == "5 and 6"].set_index("statistic")
    least = min(published.EPS)
    assert least < 0.011 < sorted(published.EPS)[1]
    assert runs.loc[least, "value"] == EACH
    assert runs.loc[least, "published"] > EACH
    assert runs["censored"].tolist() == [eps == least for eps in runs.index]
    assert not runs.loc[least, "outside"]
    assert math.isnan(runs.loc[least, "difference"])
    assert runs["outside"].sum() == len(runs) - 1  # one token a call is certified at all others
    cells = published_table(table).shown.droplevel([0, 1])
    row = cells.loc[f"Additive (t = 0.3), ε = {least:g}"]
    assert row["ours"] == "≥ 50.00 [50.00, 50.00]"
    assert row["difference"] == "–"
    assert cells.loc["Additive (t = 0.3), ε = 0.69", "difference"].endswith(" ≠")
    (line,) = outside(table)
    assert f"Tables 5 and 6 {len(runs) - 1} of {len(runs) - 1}." in line


@pytest.mark.parametrize(("shift", "differs"), [(0.0004, False), (0.0006, True)])
def test_the_rounding_of_print_is_no_difference(shift, differs):
    """All prompts are alike, so that intervals have no width: half a digit remains."""
    table = compare(measured({StrictGreedy(): PRINTED + shift}, P0))
    greedy = table[table["table"] == "2"]
    assert (greedy["outside"] == differs).all()
    np.testing.assert_allclose(greedy["difference"], shift, atol=1e-12)

"""Printed tables and figures of a drafter's acceptance against the frames they were made from."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.report.acceptance_along import along_figure
from analysis.report.acceptance_dials import dial_figure, dials, reached
from analysis.report.acceptance_tables import LENGTH, accepted, gain, needed, stochastic
from analysis.report.pairs import Pairs
from analysis.report.table import Table
from analysis.rules import Additive, StrictGreedy, Tree

TARGET = "target"
CUT, COUNTED = ("cut", "cut_optimistic"), ("prompts", "few_prompts")
CUTS = {  # of lengths: share of calls that ends of trajectories cut
    "realised_per_call": (0.1, 0.1),
    "certified_per_call": (0.05, 0.12),
    "realised_long_run": (0.0, 0.0),
}
STATISTICS = {  # of the additive rule: value and optimistic
    "acceptance": (0.9, 0.9),
    "certified": (0.5, 0.52),
    "coverage": (0.551, 0.553),
    "slack_median": (-0.001, 0.012),
    "rank_correlation": (0.301, 0.304),
    "ordered": (-0.0, -0.0),
    "realised_per_call": (5.0, 5.0),
    "realised_long_run": (5.5, 5.5),
    "certified_per_call": (2.0, 2.51),
    "gain": (0.25, 0.25),
    "departure": (0.1, 0.1),
    "given_up": (0.01, 0.01),
    "empty": (0.25, 0.3),
    "inexact": (0.125, 0.125),
}


@pytest.fixture
def pairs() -> Pairs:
    rules = {rule.label: rule for rule in (StrictGreedy(), Additive(0.1), Additive(0.5), Tree(4))}
    exact = dict.fromkeys(("empty", "inexact", "gain"), (0.0, 0.0))
    endless = {"realised_per_call": (16.0, 16.0)}
    endless |= dict.fromkeys(("realised_long_run", "gain"), (math.inf, math.inf))
    own = {"greedy": exact, "additive t=0.1": {}, "additive t=0.5": endless}
    none = (math.nan, math.nan)
    rows = [
        (TARGET, rule, name, *ends, 8.09, math.nan, *(CUTS | cut).get(name, none), 29, True)
        for rule, cut in zip(own, ({}, {}, {"realised_per_call": (1.0, 1.0)}), strict=True)
        for name, ends in (STATISTICS | own[rule]).items()
    ]
    dial = ("dial", "additive", "t")
    listing = [
        ("baseline", "", "", math.nan, "greedy"),
        ("criteria", "", "", math.nan, "additive t=0.1"),
        ("preset", "engine", "", math.nan, "additive t=0.5"),
        (*dial, 0.1, "additive t=0.1"),
        (*dial, 0.5, "additive t=0.5"),
    ]
    needed = [
        (TARGET, "greedy", 0.95, 0.023576, 0.023576, 0.02, 0.03, 29, True),
        (TARGET, "additive t=0.1", 0.95, 0.03764, 0.03916, 0.03, 0.04, 29, True),
    ]
    reached = [
        (TARGET, "additive", "t", "realised", 3.0, 0.1, 3.1, 0.1, 3.1, 0.0),
        (TARGET, "additive", "t", "certified", 3.0, math.nan, 2.5, 0.45, 3.2, 0.34),
    ]
    ends = ["value", "optimistic", "ci_low", "ci_high"]
    return Pairs(
        "drafter",
        [TARGET],
        rules,
        pd.DataFrame(listing, columns=["group", "name", "parameter", "setting", "rule"]),
        pd.DataFrame(rows, columns=["target", "rule", "statistic", *ends, *CUT, *COUNTED]),
        pd.DataFrame(needed, columns=["target", "rule", "fraction", *ends, *COUNTED]),
        pd.DataFrame(
            reached,
            columns=[
                *("target", "dial", "parameter", "kind", "wanted", "value", "length"),
                *("optimistic", "optimistic_length", "empty"),
            ],
        ),
    )


@pytest.fixture
def tables(pairs: Pairs) -> dict[str, Table]:
    found = [make(pairs) for make in (accepted, gain, needed, dials, reached)]
    return {table.name: table for table in found if table is not None}


def cells(table: Table, row: str) -> list[str]:
    return next(
        [cell.text for cell in found]
        for section in table.sections
        for name, found in section.rows
        if name.startswith(row)
    )


def test_statistics_of_intervals_print_as_ranges_where_they_print_differently(
    tables: dict[str, Table],
) -> None:
    assert cells(tables["acceptance"], "Additive (t = 0.1)") == [
        "90 %",
        "50–52 %",
        "55 %",
        "0.00–0.01",  # no minus before a zero
        "0.30",
        "0.00",
    ]
    assert cells(tables["gain"], "Additive (t = 0.5), engine")[3] == "2.00–≥ 2.51"
    assert cells(tables["gain"], "Strict greedy")[2] == "+0 %"
    assert cells(tables["dial"], "0.5")[2] == "2.00–≥ 2.51"
    data = tables["gain"].data
    assert {"value", "optimistic"} <= set(data)
    assert {"empty", "inexact"} <= set(data["statistic"])


def test_lengths_cut_by_ends_are_printed_as_lower_bounds(tables: dict[str, Table]) -> None:
    gain = tables["gain"]
    # a tenth is cut, no more
    assert cells(gain, "Additive (t = 0.1)")[:3] == ["5.00", "5.50", "+25 %"]
    # no rejection: the gain is at least its limit
    assert cells(gain, "Additive (t = 0.5), engine")[:3] == ["≥ 16.00", "∞", "≥ +809 %"]
    assert r"$\ge$ 16.00" in gain.latex()
    assert "| ≥ 16.00 |" in gain.markdown()
    assert {"gain", "realised_long_run"} <= set(gain.data["statistic"])
    marked = gain.data.set_index(["rule", "statistic"])
    censored = marked.index[marked["censored"]]
    assert censored.tolist() == [("additive t=0.5", "realised_per_call")]
    upper = marked.index[marked["censored_optimistic"]]
    assert {name for _, name in upper} == {"realised_per_call", "certified_per_call"}


@pytest.mark.parametrize("name", ["acceptance", "gain", "dial", "kl_needed"])
def test_tables_with_intervals_warn_of_few_prompts(tables: dict[str, Table], name: str) -> None:
    assert "from 29 prompts, fewer than 30" in tables[name].notes[-1]
    assert tables[name].data["few_prompts"].all()


def test_kl_needed_is_never_printed_above_its_value(tables: dict[str, Table]) -> None:
    assert cells(tables["kl_needed"], "Strict") == ["0.023"]  # 0.023576
    assert cells(tables["kl_needed"], "Additive (t = 0.1)") == ["0.037–0.039"]
    assert list(tables["kl_needed"].columns) == ["95 %"]
    assert "below" in tables["kl_needed"].caption


def test_a_relaxation_found_by_upper_ends_only_is_shown_beside_the_certain_length(
    tables: dict[str, Table],
) -> None:
    assert cells(tables["reached"], "additive") == ["0.1", "– (2.50) to 0.45"]


@pytest.mark.parametrize("name", ["acceptance", "gain", "dial", "reached", "kl_needed"])
def test_every_table_reports_the_share_of_empty_regions(
    tables: dict[str, Table], name: str
) -> None:
    empty = "At some steps nothing can be rejected, and the certificate is +∞"
    if name == "reached":
        (empty,) = re.findall(
            "Steps with an empty rejection region.* certified 34 %", str(tables[name].notes)
        )
    assert any(empty in note for note in tables[name].notes)
    assert not any("Strict greedy" in note for note in tables[name].notes)


def test_the_lengths_of_a_dial_have_plain_numbers(pairs: Pairs) -> None:
    figure = dial_figure(pairs)
    assert figure is not None
    figure.render("png")
    axis = figure.drawing.axes[0]
    low, high = axis.get_ylim()
    labels = [
        label.get_text()
        for minor in (False, True)
        for label, at in zip(
            axis.get_yticklabels(minor=minor), axis.get_yticks(minor=minor), strict=True
        )
        if low <= at <= high
    ]
    assert {"5", "10"} <= set(labels)
    assert all(re.fullmatch(r"[\d.]*", text) for text in labels)
    assert np.isfinite([low, high]).all()


def test_stochastic_verification_is_printed_at_the_temperature_of_the_answers(pairs: Pairs) -> None:
    assert stochastic(pairs) is None
    law = "argmax drafted, speculative sampling"
    rows = [(TARGET, law, name, at, at) for name, at in (("acceptance", 0.46), (LENGTH, 1.8))]
    names = ["target", "rule", "statistic", "value", "optimistic"]
    frame = pd.DataFrame(rows, columns=names)
    sampled = replace(pairs, sampled=0.5, statistics=pd.concat([pairs.statistics, frame]))
    table = stochastic(sampled)
    assert table is not None
    assert "at temperature 0.5, at which these answers were sampled" in table.caption
    assert cells(table, "Argmax drafted") == ["46 %", "1.80"]


def test_trees_have_no_dial_of_departures_and_a_section_of_their_own(pairs: Pairs) -> None:
    """By what they are: their rows have a heading, and a dial of trees alone is not drawn."""
    tree = Tree(4).label
    listing = pairs.listing.assign(rule=tree).query("group == 'criteria' or group == 'dial'")
    statistics = pairs.statistics.assign(rule=tree).drop_duplicates(["rule", "statistic"])
    trees = replace(pairs, listing=listing, statistics=statistics)
    titles = {section.title.split(" (")[0]: section.rows for section in gain(trees).sections}
    assert [name for name, _ in titles["Trees"]] == ["Tree (m = 4)"]
    assert "Rules of the study" not in titles
    assert dial_figure(trees) is None


def test_the_numbers_of_the_dial_say_which_lengths_are_lower_bounds(pairs: Pairs) -> None:
    figure = dial_figure(pairs)
    assert figure is not None
    assert figure.data is not None
    rows = figure.data.set_index("setting")
    assert rows["realised_per_call"].tolist() == [5.0, 16.0]
    assert rows["realised_per_call_censored"].tolist() == [False, True]


def test_verdicts_are_told_by_step_and_rule_whatever_the_rule_is_called() -> None:
    verdicts = {"token": np.array([0, 2, 1]), "Strict greedy": np.array([2, 2, 2])}
    data = along_figure(verdicts, ["a", "\n", "b"], "an answer").data
    assert data is not None
    mine = data[data["rule"] == "token"]
    assert mine["token"].tolist() == ["a", "\n", "b"]
    assert mine["verdict"].tolist() == ["certified", "rejected", "accepted, not certified"]
    assert set(data.loc[data["rule"] == "Strict greedy", "verdict"]) == {"rejected"}

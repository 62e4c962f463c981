"""Tables and figures of other divergences, budgets, sampling and ranking, against their frames."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.acceptance.budgets import budget_curves, budget_of_drafter
from analysis.acceptance.coverage import coverage, finite_shares
from analysis.acceptance.ranking import ranking, scores
from analysis.acceptance.realised import judge
from analysis.acceptance.sampling import ARGMAX, SAMPLED, SPECULATIVE, sampling_statistics
from analysis.report.acceptance_budgets import budget_figure, budget_table
from analysis.report.acceptance_divergences import by_divergence, divergence_figure
from analysis.report.acceptance_ranking import PRINTED, ranking_figure, ranking_table
from analysis.report.acceptance_sampling import KINDS, sampling_figure, sampling_table
from analysis.report.pairs import Pairs
from analysis.report.table import Table
from analysis.report.text import UNDEFINED, number_text, share_text
from analysis.rules import Additive, StrictGreedy
from analysis.statistics.bootstrap import PromptBootstrap
from tests.analysis.test_coverage import NAMES, steps_of
from tests.analysis.test_sampling import sampled

RULES = [StrictGreedy(), Additive(0.1)]
LABELS = [rule.label for rule in RULES]
TARGET = "T"


def made(missing: bool) -> Pairs:
    rng = np.random.default_rng(0)
    z = (2 * rng.standard_normal((80, 12))).astype(np.float32)
    w = (z + 0.4 * rng.standard_normal(z.shape)).astype(np.float32)
    if missing:
        w[:, 3] = -np.inf
    steps, distances = steps_of(z, w, 12)
    bootstrap = PromptBootstrap(np.repeat(range(4), 20), 20, 0.9, 0)
    judged = {name: judge(steps, RULES, name, distances[name]) for name in NAMES}
    covered, budgets, ranked = [finite_shares(distances, bootstrap)], [], []
    for at in range(len(RULES)):
        found = {name: judged[name][at] for name in NAMES}
        covered.append(coverage(found, bootstrap))
        kl, tv = found["kl"], found["tv"]
        budgets += [
            budget_curves(kl, [0.01, 0.1], steps.trajectories),
            budget_of_drafter(steps, kl, bootstrap),
        ]
        ranked.append(ranking(found, scores(steps, kl, tv, distances["tv"]), bootstrap))
    few = {"target": TARGET, "prompts": 4, "few_prompts": True}
    law_steps, _ = sampled(0.4, missing=missing)
    laws = sampling_statistics(law_steps, RULES, [0.01, 0.1], PromptBootstrap(
        np.repeat(range(3), 20), 20, 0.9, 0))  # fmt: skip
    listing = [("baseline", "", "", np.nan, "greedy")]
    listing += [("criteria", "", "", np.nan, label) for label in LABELS]
    return Pairs(
        "D",
        [TARGET],
        {rule.label: rule for rule in RULES},
        pd.DataFrame(listing, columns=["group", "name", "parameter", "setting", "rule"]),
        pd.DataFrame(),
        pd.DataFrame(),
        pd.DataFrame(),
        sampled=0.5,
        divergences=pd.concat(covered, ignore_index=True).assign(**few),
        budgets=pd.concat(budgets, ignore_index=True).assign(**few),
        sampling=laws.assign(**few),
        ranking=pd.concat(ranked, ignore_index=True).assign(**few),
    )


@pytest.fixture(scope="module")
def full() -> Pairs:
    return made(missing=False)


@pytest.fixture(scope="module")
def reduced() -> Pairs:
    return made(missing=True)


def cells(table: Table) -> dict[str, list[str]]:
    return {
        name: [cell.text for cell in row]
        for section in table.sections
        for name, row in section.rows
    }


def test_coverage_is_printed_by_divergence_with_the_union_last(full: Pairs) -> None:
    table = by_divergence(full)
    assert table.columns == ["KL", "TV", "Hellinger", "reverse KL", "union"]
    value = full.divergences.set_index(["rule", "divergence", "statistic"])["value"]
    found = cells(table)
    for rule in RULES:
        wanted = [share_text(value[rule.label, name, "coverage"]) for name in (*NAMES, "union")]
        assert found[rule.title] == wanted
    assert not any("finite" in note for note in table.notes)
    assert any("Few prompts" in note for note in table.notes)
    drawn = divergence_figure(full, LABELS).data
    assert drawn is not None
    assert set(drawn["rule"]) == set(LABELS)
    assert len(drawn) == 2 * 5


def test_a_reduced_vocabulary_is_said_below_the_tables(reduced: Pairs) -> None:
    table = by_divergence(reduced)
    assert cells(table)["Strict greedy"][0] == "0 %"
    assert cells(table)["Strict greedy"][1] != "0 %"
    assert any("Steps with a finite divergence: KL 0 %. At" in note for note in table.notes)
    table = budget_table(reduced)
    assert any("The mean KL is infinite (T)" in note for note in table.notes)
    assert cells(table)["Strict greedy"][:2] == ["0 %", "0 %"]
    for figure in (divergence_figure, budget_figure, ranking_figure):
        assert figure(reduced, LABELS).render("png")  # type: ignore[union-attr]
    assert sampling_figure(reduced).render("png")  # type: ignore[union-attr]


def test_budgets_are_printed_beside_what_is_realised(full: Pairs) -> None:
    table = budget_table(full)
    own = full.budgets[full.budgets["at"] == "drafter"]
    value = own.set_index(["rule", "kind", "statistic"])["value"]
    assert f"mean KL(p‖q) is {number_text(own['eps'].iloc[0], 3)} nats" in table.caption
    for rule in RULES:
        kinds = ("uniform", "budget", "realised")
        wanted = [share_text(value[rule.label, kind, "acceptance"]) for kind in kinds]
        wanted += [number_text(value[rule.label, kind, "tokens"]) for kind in kinds]
        assert cells(table)[rule.title] == wanted
    assert budget_figure(full, LABELS).render("png")


def test_certified_probabilities_are_printed_beside_measured_ones(full: Pairs) -> None:
    table = sampling_table(full)
    assert table is not None
    own = full.sampling[full.sampling["at"] == "drafter"].set_index(["law", "kind"])["value"]
    for law, name in (
        (SPECULATIVE, "Speculative sampling"),
        (ARGMAX, "Argmax drafted, speculative sampling"),
    ):
        assert cells(table)[name] == [share_text(own[law, kind]) for kind in KINDS]
    drawn = cells(table)["Additive (t = 0.1)"]
    assert drawn[0] == share_text(own[f"{SAMPLED}additive t=0.1", "step"])
    assert drawn[-1] == UNDEFINED
    assert "at temperature 0.5" in table.caption
    assert sampling_table(replace(full, sampled=None)) is None
    assert sampling_figure(replace(full, sampled=None)) is None


def test_areas_over_uncertified_steps_are_printed_with_their_count(full: Pairs) -> None:
    table = ranking_table(full)
    assert table is not None
    found = full.ranking.set_index(["rule", "over", "score"])
    for rule in RULES:
        rows = [found.loc[(rule.label, "uncertified", name)] for name in PRINTED]
        pooled = found.loc[(rule.label, "all", "slack"), "value"]
        assert cells(table)[rule.title] == [
            str(rows[0]["steps"]),
            share_text(rows[0]["accepted"]),
            *(number_text(row["value"]) for row in rows),
            number_text(pooled),
        ]
    nothing = replace(full, ranking=pd.DataFrame())
    assert ranking_table(nothing) is None
    assert ranking_figure(nothing, LABELS) is None

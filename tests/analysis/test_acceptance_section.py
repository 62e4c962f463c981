"""The section on a drafter: its tables print what was measured, its notes what is missing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis.acceptance.budgets import budget_of_drafter
from analysis.acceptance.engine_laws import law_statistics
from analysis.acceptance.frontier import frontier
from analysis.acceptance.realised import judge
from analysis.acceptance.sampling import ARGMAX, SPECULATIVE, sampling_statistics
from analysis.acceptance.summary import (
    calibration_statistics,
    coverage,
    depth_statistics,
    finite_shares,
    rule_statistics,
    stochastic_statistics,
)
from analysis.report.measured import Results
from analysis.report.records import Table
from analysis.report.render import lines
from analysis.report.sections.acceptance import acceptance_part
from analysis.report.text import share_text
from analysis.rules import AbsoluteThreshold, Additive, Mars, Multiplicative, StrictGreedy, Tree
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.trees.several import several_statistics
from tests.analysis.cases import drafted_steps, noisy

RULES = [StrictGreedy(), Additive(0.1), AbsoluteThreshold(0.05), Tree(4)]
TURNED = [Additive(1.0), Multiplicative(0.5), Mars(0.9), Tree(2)]
LENGTHS = (20, 20, 20, 20)
DIVERGENCES = ("kl", "tv", "hellinger", "reverse_kl")
T, FEW = "target A", {"target": "target A", "prompts": 4, "few_prompts": True}


def measured(missing: bool = False, sampled: bool = True) -> Results:
    """A drafter, which lacks a token or not, of which only 5 target tokens are stored."""
    z, w = noisy(80, 12, 1.5, 0.6)
    if missing:
        w[:, 3] = -np.inf
    steps, found = drafted_steps(z, w, 5, LENGTHS)
    bootstrap = PromptBootstrap(np.repeat(range(4), LENGTHS), 20, 0.9, 0)
    distances = {name: getattr(found, name) for name in DIVERGENCES}
    every = judge(steps, [*RULES, *TURNED])
    verdicts = every[: len(RULES)]
    judged = {name: judge(steps, RULES, name, x) for name, x in distances.items()}
    covered = [
        coverage({name: judged[name][at] for name in DIVERGENCES}, bootstrap)
        for at in range(len(RULES))
    ]
    breakdown = [
        pd.concat([finite_shares(distances, bootstrap), *covered]).assign(depth=0),
        *(depth_statistics(d, steps, verdicts, bootstrap).assign(divergence="") for d in (1, 2)),
    ]
    laws = {SPECULATIVE: 1 - found.tv, ARGMAX: np.exp(found.draft_log_prob)}
    levels = [budget_of_drafter(steps, one, bootstrap, 3) for one in verdicts]
    statistics = [rule_statistics(steps, one, bootstrap, 8) for one in every]
    confidence = np.exp(w.max(axis=1) - np.logaddexp.reduce(w, axis=1))
    statistics.append(calibration_statistics(confidence, every, bootstrap))
    if sampled:
        frame = sampling_statistics(steps.target, found.kl, laws, RULES, bootstrap)
        levels.append(frame.assign(statistic="probability"))
        p, q = (np.exp(x.astype(float) - x.max(axis=1, keepdims=True)) for x in (z, w))
        p, q = (x / x.sum(axis=1, keepdims=True) for x in (p, q))
        levels += [law_statistics(p, q, np.arange(80) % 2 == 0), several_statistics(p, q)]
        four = (found.tv, found.erss_acceptance, found.harmonic_mean, laws[ARGMAX])
        statistics.append(stochastic_statistics(*four, steps.trajectories, bootstrap))
    groups = [("baseline", "", StrictGreedy()), *(("criteria", "", rule) for rule in RULES)]
    groups += [("preset", "engine", Multiplicative(0.5)), *(("dial", "d", r) for r in TURNED)]
    frames = {
        "acceptance": pd.concat(statistics).assign(**FEW),
        "breakdown": pd.concat(breakdown).assign(**FEW),
        "levels": pd.concat(levels).assign(**FEW),
        "frontier": frontier(steps, every, bootstrap).assign(**FEW),
    }
    listing = pd.DataFrame([(*group, rule.label) for *group, rule in groups])
    frames["listing"] = listing.set_axis(["group", "name", "rule"], axis=1)
    rules = {rule.label: rule for rule in (*RULES, *TURNED)}
    return Results([T], rules, frames, "D", {"sampled": 0.5 if sampled else None})


@pytest.fixture(scope="module")
def full() -> Results:
    return measured()


def tables(results: Results) -> dict[str, Table]:
    shown = acceptance_part(results).shown
    return {item.name: item for item in shown if isinstance(item, Table)}


def cells(table: Table) -> dict[str, list[str]]:
    return {name: texts for _, rows in lines(table) for name, texts, _ in rows}


def test_what_golden_files_do_not_have(full: Results) -> None:
    """The cells of the fixed study's tables are in tests/results/report.json."""
    found = tables(full)
    exact, opened = (cells(found["acceptance"])[rule.title] for rule in (RULES[0], RULES[2]))
    assert not any("–" in text for text in exact)
    assert any("–" in text for text in opened)  # certificates known as intervals
    assert any(note.startswith("Two numbers with a dash") for note in found["acceptance"].notes)
    for table in found.values():
        assert any("Few prompts: intervals come from 4 prompts" in note for note in table.notes)
    steps = full["breakdown"].set_index(["rule", "depth", "statistic"])["value"].sort_index()
    laid = lines(found["depths"])
    assert [heading for heading, _ in laid] == ["", "Accepted", "Certified"]
    name, texts, _ = laid[1][1][0]
    assert name == "Additive (t = 0.1)"
    wanted = [steps.loc[("additive t=0.1", depth, "acceptance")].item() for depth in (1, 2)]
    assert texts == [share_text(value) for value in wanted]
    best = full.select("frontier", rule="multiplicative alpha=0.5").set_index("cost")["share"]
    assert best["nats"] == 1.0  # multiplicative rules are best for nats
    share = full["levels"].query("statistic == 'share'").set_index("rule")["value"]
    assert len(share) == 9
    assert (share[:5] <= 1 + 1e-12).all()  # the last are measured by drawing: 0.01 of error
    assert (share <= 1.01).all()
    drawn = [item for item in acceptance_part(full).shown if not isinstance(item, Table)]
    assert [item.name for item in drawn] == ["acceptance_rules", "divergences", "frontier"]
    certified = drawn[0].data.set_index("rule")["certified"]
    value = full["acceptance"].set_index(["rule", "statistic"])["value"]
    assert all(certified[rule.label] == value[rule.label, "certified"] for rule in RULES)
    assert "sampling" not in tables(measured(sampled=False))


def test_a_reduced_vocabulary_is_said_below_the_tables() -> None:
    found = tables(measured(missing=True))
    assert cells(found["divergences"])["Strict greedy"][0] == "0 %"
    assert cells(found["divergences"])["Strict greedy"][1] != "0 %"
    for name in ("acceptance", "divergences", "budgets"):
        said = [note for note in found[name].notes if "can't draft" in note]
        assert [note[:43] for note in said] == [
            "Steps with a finite divergence: KL 0 %. At "[:43]
        ], name


def test_two_logs_print_both_ends() -> None:
    rows = [("greedy", "acceptance", 0.5, 0.75), ("greedy", "certified_tv", 0.25, 0.5),
            ("greedy", "certified_kl", 0.0, 0.5), ("", "kl", 0.1, np.inf), ("", "tv", 0.1, 0.2),
            ("", "acceptance", 0.8, 0.9)]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["rule", "statistic", "value", "optimistic"])
    results = Results([T], {"greedy": StrictGreedy()}, {"logged": frame.assign(target=T)}, "D")
    [table] = acceptance_part(results).shown
    assert lines(table) == [(T, [("Strict greedy", ["50–75 %", "25–50 %", "0–50 %"], [])])]
    assert table.notes == [f"{T}: mean KL(p‖q) 0.100–∞ nats, mean total variation 0.100–0.200; "
                           "speculative sampling of a drafted draw accepts 80–90 % of the tokens, "
                           "at temperature 1."]  # fmt: skip

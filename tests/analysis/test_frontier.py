"""The frontier of gain and cost, against a plain comparison of every two rules."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.acceptance.frontier import COSTS, dominates, frontier
from analysis.acceptance.realised import judge
from analysis.rules import Additive, Mars, Multiplicative, StrictGreedy, TopMMultiplicative, Tree
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.statistics.trajectories import calls_made
from tests.analysis.cases import drafted_steps, noisy

RULES = [
    StrictGreedy(),
    Additive(0.1),
    Additive(1.0),
    Multiplicative(0.5),
    TopMMultiplicative(3, 0.5),
    Mars(0.9),
    Tree(2),
    Tree(4),
]
LENGTHS = (20, 20, 20, 20)


@pytest.fixture(scope="module")
def made():
    steps, _ = drafted_steps(*noisy(80, 12, 1.5, 0.7), lengths=LENGTHS)
    verdicts = judge(steps, RULES)
    bootstrap = PromptBootstrap(np.repeat(range(4), LENGTHS), 40, 0.9, 0)
    return steps, verdicts, bootstrap, frontier(steps, verdicts, bootstrap)


def test_gain_and_cost_by_hand(made) -> None:
    steps, verdicts, _, frame = made
    found = frame.set_index(["rule", "cost"])
    p = np.exp(steps.target.log_probs)
    for verdict in verdicts:
        row = found.loc[verdict.rule.label]
        calls = calls_made(verdict.accepted[:, None], steps.trajectories, None).sum()
        assert row["tokens"].to_numpy() == pytest.approx(len(steps) / calls)
        departs = verdict.accepted & (steps.draft_rank > 1) & verdict.rule.judges_tokens
        lost = np.log(p[:, 0]) - np.log(p[np.arange(len(p)), steps.draft_rank - 1])
        assert row.loc["departure", "value"] == pytest.approx(departs.mean())
        assert row.loc["nats", "value"] == pytest.approx(np.where(departs, lost, 0).mean())
        assert (row["nodes"] == getattr(verdict.rule, "m", 1) if isinstance(verdict.rule, Tree)
                else row["nodes"] == 1).all()  # fmt: skip
        assert (row["tokens_low"] <= row["tokens"] + 1e-12).all()
    assert (found.loc[("tree m=2", slice(None)), "value"] == 0).all()


def test_the_better_rule_against_every_two(made) -> None:
    _, _, _, frame = made
    for cost in COSTS:
        part = frame[frame["cost"] == cost].to_dict("records")
        for mine in part:
            better = [
                one
                for one in part
                if one["tokens"] >= mine["tokens"]
                and one["value"] <= mine["value"]
                and one["nodes"] <= mine["nodes"]
                and (one["tokens"], -one["value"], -one["nodes"])
                != (mine["tokens"], -mine["value"], -mine["nodes"])
            ]
            assert bool(mine["better"]) == bool(better)
            if better:
                most = max(one["tokens"] for one in better)
                named = next(one for one in part if one["rule"] == mine["better"])
                assert named in better
                assert named["tokens"] == most
    greedy = frame[frame["rule"] == "greedy"]
    assert (greedy["better"] == "").all()  # nothing costs less, and a tree has more nodes
    assert (greedy["frontier"] == 1).all()


def test_who_is_as_good_is_not_better() -> None:
    tokens, cost, nodes = np.array([[2.0, 2.0, 2.0]]), np.array([[0.1, 0.1, 0.2]]), np.ones(3)
    assert not dominates(tokens, cost, nodes, 0).any()
    assert dominates(tokens, cost, nodes, 2)[0].tolist() == [True, True, False]
    assert not dominates(tokens, np.zeros((1, 3)), np.array([1, 1, 1]), 2).any()
    assert dominates(tokens, np.zeros((1, 3)), np.array([1, 1, 2]), 2)[0].tolist()[:2] == [True] * 2

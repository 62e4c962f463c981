"""Rules beside the best at their cost: against every choice of steps, and by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from analysis.acceptance.frontier import COSTS, frontier
from analysis.acceptance.judgement import judge
from analysis.rules import Additive, Multiplicative, Tree
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.statistics.trajectories import count_calls
from tests.analysis import cases
from tests.analysis.cases import drafted_steps, noisy

RULES = [*cases.RULES[:-2], Additive(1.0), Multiplicative(0.5), Tree(2)]
BEST = {"nats": Multiplicative, "probability": Additive}


def made(lengths: tuple[int, ...], seed: int = 0):
    steps, _ = drafted_steps(*noisy(sum(lengths), 12, 1.5, 0.7, seed), lengths=lengths)
    verdicts = judge(steps, RULES)
    bootstrap = PromptBootstrap(np.repeat(range(len(lengths)), lengths), 40, 0.9, 0)
    p = np.exp(steps.target.log_probs)
    drafted = p[np.arange(len(p)), steps.draft_rank - 1]
    costs = {"nats": np.log(p[:, 0] / drafted), "probability": p[:, 0] - drafted}
    return steps, verdicts, bootstrap, costs, frontier(steps, verdicts, bootstrap)


def test_gain_and_cost_by_hand() -> None:
    steps, verdicts, _, costs, frame = made((20, 20, 20, 20))
    found = frame.set_index(["rule", "cost"])
    assert "tree m=2" not in found.index
    for verdict in verdicts[:-1]:
        row = found.loc[verdict.rule.label]
        walk = count_calls(verdict.accepted[:, None], steps.trajectories, None)
        assert row["tokens"].to_numpy() == pytest.approx(walk.tokens.sum() / walk.calls.sum())
        for name in COSTS:
            given = np.where(verdict.accepted, costs[name], 0.0).mean()
            assert row.loc[name, "value"] == pytest.approx(given, abs=1e-12)
        assert (row["tokens_low"] <= row["tokens"] + 1e-12).all()
        assert (row["share_low"] <= row["share_high"]).all()


def test_a_heads_tokens_a_call_go_by_depth() -> None:
    first, *deeper = (
        drafted_steps(*noisy(40, 12, 1.5, noise), lengths=(20, 20))[0] for noise in (0.5, 1, 2)
    )
    steps = replace(first, deeper=deeper)
    verdicts = judge(steps, RULES)
    bootstrap = PromptBootstrap(np.repeat([0, 1], 20), 40, 0.9, 0)
    frame = frontier(steps, verdicts, bootstrap).set_index(["rule", "cost"])
    for verdict in verdicts[:-1]:
        flags = np.stack([deep.accepted for deep in verdict.by_depth])[..., None]
        walk = count_calls(flags, steps.trajectories, None)
        tokens = frame.loc[verdict.rule.label, "tokens"].to_numpy()
        assert tokens == pytest.approx(walk.tokens.sum() / walk.calls.sum())
    for name, rule in BEST.items():  # the curve of the best rules meets each of them
        for row in frame.loc["", name].to_dict("records")[1::8]:
            slack = 1e-9 if rule is Additive else -1e-9
            setting = min(1.0, max(1e-12, row["setting"] + slack))
            flags = judge(steps, [rule(setting)])[0].accepted_by_depth
            walk = count_calls(flags[..., None], steps.trajectories, None)
            assert row["tokens"] == pytest.approx(walk.tokens.sum() / walk.calls.sum())


@pytest.mark.parametrize("seed", range(4))
def test_no_choice_of_steps_accepts_more_at_the_cost(seed: int) -> None:
    """Every one of the 2^12 choices, also those that no rule makes."""
    steps, verdicts, _, costs, frame = made((6, 6), seed)
    found = frame.set_index(["rule", "cost"])
    choices = np.array(list(itertools.product([False, True], repeat=len(steps))))
    for name, verdict in itertools.product(COSTS, verdicts[:-1]):
        spent = choices @ costs[name]
        mine = costs[name][verdict.accepted].sum()
        most = choices[spent <= mine + 1e-9].sum(axis=1).max()
        assert found.loc[(verdict.rule.label, name), "share"] == verdict.accepted.sum() / most


def test_the_curves_are_the_best_rules() -> None:
    steps, _, _, costs, frame = made((20, 20, 20, 20), seed=1)
    for name, rule in BEST.items():
        curve = frame[(frame["rule"] == "") & (frame["cost"] == name)]
        own = frame[(frame["rule"] != "") & (frame["cost"] == name)].set_index("rule")
        for label in own.index:
            if label.startswith(rule.name + " "):
                assert own.loc[label, "share"] == 1
        assert (own["share"] <= 1).all()
        assert curve["value"].is_monotonic_increasing
        for row in curve.to_dict("records"):
            slack = 1e-9 if rule is Additive else -1e-9  # a token at the threshold is accepted
            setting = min(1.0, max(0.0, row["setting"] + slack))
            (verdict,) = judge(steps, [rule(setting) if setting > 0 else rule(1e-12)])
            walk = count_calls(verdict.accepted[:, None], steps.trajectories, None)
            assert row["tokens"] == pytest.approx(walk.tokens.sum() / walk.calls.sum())
            given = np.where(verdict.accepted, costs[name], 0.0).mean()
            assert row["value"] == pytest.approx(given, abs=1e-9)

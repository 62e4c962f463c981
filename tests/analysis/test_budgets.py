"""Mean KL of a drafter: uniform bound, budget and realised, against copies written out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from analysis.acceptance.budgets import budget_of_drafter, resampled_rejections
from analysis.acceptance.realised import Steps, judge
from analysis.beyond.budget import certified_tokens, rejections
from analysis.rules import Additive, StrictGreedy, Tree
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.statistics.trajectories import calls_made
from tests.analysis.cases import drafted_steps, noisy

LENGTHS = (9, 1, 14, 6)
RULES = [StrictGreedy(), Additive(0.2), Tree(2)]


def steps(noise: float = 0.5) -> Steps:
    return drafted_steps(*noisy(sum(LENGTHS), 10, 2.0, noise), lengths=LENGTHS)[0]


@pytest.mark.parametrize("kind", ["random", "ties and zeros", "endless"])
def test_resampled_rejections_are_those_of_copies_written_out(kind: str) -> None:
    rng = np.random.default_rng(1)
    prompts = np.repeat([0, 1, 2, 3], LENGTHS)
    costs = rng.exponential(size=len(prompts))
    if kind == "ties and zeros":
        costs = rng.integers(0, 3, len(prompts)).astype(float) / 4  # sums are exact
    if kind == "endless":
        costs[rng.random(len(costs)) < 0.4] = np.inf
    weights = rng.multinomial(4, np.full(4, 0.25), size=60).astype(float)
    endless = np.full(len(prompts), np.inf)  # no certificate
    assert not resampled_rejections(endless, prompts, weights, np.ones(len(weights))).any()
    for mean in (0.0, 0.125, 0.3, 0.75, 5.0, np.inf):
        budgets = weights @ np.array(LENGTHS) * mean
        found = resampled_rejections(costs, prompts, weights, budgets)
        for row, got in zip(weights, found, strict=True):
            copies = np.repeat(costs, row[prompts].astype(int))
            assert got == (rejections(copies, mean) if len(copies) else 0), (kind, mean)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_drafters_own_numbers(rule: object) -> None:
    drafted = steps()
    verdict = judge(drafted, [rule])[0]  # type: ignore[list-item]
    bootstrap = PromptBootstrap(drafted.trajectories.prompts, 100, 0.9, 0)
    frame = budget_of_drafter(drafted, verdict, bootstrap).set_index(["kind", "statistic"])
    value = frame["value"].to_dict()
    mean = drafted.kl.mean()
    assert (frame["eps"] == mean).all()
    assert value["uniform", "acceptance"] == pytest.approx(np.mean(verdict.lower > mean))
    share = 1 - rejections(verdict.lower, mean) / len(drafted)
    assert value["budget", "acceptance"] == pytest.approx(share)
    assert value["realised", "acceptance"] == pytest.approx(verdict.accepted.mean())
    ends = np.cumsum(LENGTHS) - 1
    assert value["budget", "tokens"] == pytest.approx(certified_tokens(verdict.lower, ends, mean))
    for name in ("acceptance", "tokens"):
        kinds = [value[kind, name] for kind in ("budget", "uniform", "realised")]
        assert kinds[0] <= min(kinds[1:]) + 1e-12
    assert (frame["ci_low"] <= frame["value"]).all()
    assert (frame["value"] <= frame["ci_high"]).all()
    # soundness of every step implies that of their mean
    assert np.sum(~verdict.accepted) <= rejections(verdict.lower, mean * (1 + 1e-9))


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("gamma", [1, 3, 40])
def test_the_drafters_own_numbers_at_a_draft_length(rule: object, gamma: int) -> None:
    drafted = steps()
    verdict = judge(drafted, [rule])[0]  # type: ignore[list-item]
    trajectories, mean = drafted.trajectories, float(drafted.kl.mean())
    bootstrap = PromptBootstrap(trajectories.prompts, 50, 0.9, 0)
    frame = budget_of_drafter(drafted, verdict, bootstrap, gamma)
    found = frame[frame["statistic"] == f"tokens_{gamma}"].set_index("kind")
    size, ends = len(drafted), np.cumsum(LENGTHS) - 1
    made = calls_made(verdict.accepted[:, None], trajectories, gamma).sum()
    most = calls_made((verdict.lower > mean)[:, None], trajectories, gamma).sum()
    assert found.loc["realised", "value"] == pytest.approx(size / made)
    assert found.loc["uniform", "value"] == pytest.approx(size / most)
    limited = certified_tokens(verdict.lower, ends, mean, gamma)
    assert found.loc["budget", "value"] == pytest.approx(limited)
    assert limited <= min(size / made, size / most) + 1e-12
    assert np.isnan(found.loc["budget", "ci_low"])
    if gamma == 40:  # as long as any trajectory: of any length but for the token behind a draft
        assert limited >= frame.set_index(["kind", "statistic"]).loc[("budget", "tokens"), "value"]


def test_an_infinite_mean_leaves_what_can_never_be_rejected() -> None:
    drafted = steps()
    endless = replace(drafted, kl=np.full(len(drafted), np.inf))
    verdict = judge(endless, [Additive(1.0)])[0]  # accepts every token
    bootstrap = PromptBootstrap(drafted.trajectories.prompts, 20, 0.9, 0)
    value = budget_of_drafter(endless, verdict, bootstrap).set_index(["kind", "statistic"])["value"]
    assert (value == [1.0, 1.0, 1.0] + [sum(LENGTHS) / len(LENGTHS)] * 3).all()
    strict = judge(endless, [StrictGreedy()])[0]
    value = budget_of_drafter(endless, strict, bootstrap).set_index(["kind", "statistic"])["value"]
    assert value["budget", "acceptance"] == value["uniform", "acceptance"] == 0.0

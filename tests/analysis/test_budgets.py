"""Mean budgets: against every set of rejected steps, copies written out, and a drafter's own."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from analysis.acceptance.budgets import budget_of_drafter, resampled_rejections
from analysis.acceptance.judgement import Steps, judge
from analysis.beyond.budget import certified_tokens, rejections
from analysis.rules import Additive, Rule, StrictGreedy, Tree
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.statistics.trajectories import count_calls
from tests.analysis.cases import drafted_steps, drafts, noisy

LENGTHS = (9, 1, 14, 6)
RULES = [StrictGreedy(), Additive(0.2), Tree(2)]


def steps(noise: float = 0.5) -> Steps:
    return drafted_steps(*noisy(sum(LENGTHS), 10, 2.0, noise), lengths=LENGTHS)[0]


@pytest.mark.parametrize("length", [1, 2, 3, None])
def test_tokens_per_call_bound_every_set_of_rejected_steps(length: int | None) -> None:
    rng = np.random.default_rng(length or 0)
    ends = [3, 4, 9]
    kept = np.array(list(itertools.product([False, True], repeat=10)))
    parts = np.split(kept, [4, 5], axis=1)
    walked = np.array(
        [sum(len(drafts(x, length or 9)) for x in row) for row in zip(*parts, strict=True)]
    )
    for _ in range(6):
        drawn, kind = np.round(rng.exponential(0.3, 10), 3), rng.choice(5, 10)
        r = np.select([kind == 0, kind == 1], [0.0, np.inf], drawn)
        spent = np.array([r[~row].sum() for row in kept])
        for eps in (0.0, 0.01, 0.05, 0.13, 0.5, np.inf):
            most = walked[(spent <= 10 * eps + 1e-12) & np.isfinite(spent)].max()
            found = certified_tokens(r, ends, eps, length)
            assert found <= 10 / most + 1e-12
            assert 10 / found <= most + (0 if length is None else 1) + 1e-9


@pytest.mark.parametrize(
    ("certificates", "mean_kl", "length", "tokens"),
    [
        # 3 eps rounds below the certificate that it is equal to
        ([0.10312224871247906, np.inf, np.inf], 0.034374082904159685, None, 1.5),
        ([0.10312224871247906, np.inf, np.inf], 0.034374082904159685, 2, 1.5),
        # the dual of a budget that is spent to the last digit is rounded below a whole call
        ([0.9, 0.9, 0.9, 0.9], 0.675, 2, 1.0),
        ([0.1, 0.4, 0.3, 0.2], 0.025, 1, 4 / 3),
    ],
)
def test_a_budget_that_is_spent_exactly_rejects(
    certificates: list[float], mean_kl: float, length: int | None, tokens: float
) -> None:
    assert certified_tokens(certificates, [len(certificates) - 1], mean_kl, length) == tokens


def test_rejections_at_exact_budgets() -> None:
    r = [0.5, np.inf, 0.25, 0.0, 1.0]
    # sorted sums: 0, 0.25, 0.75, 1.75
    levels = [0.0, 0.04, 0.05, 0.15, 0.35, 9.0, np.inf]
    assert rejections(r, levels).tolist() == [1, 1, 2, 3, 4, 4, 4]
    tenths = [0.1] * 10  # their sum in floats is below 1, that of 0.1 and 0.2 is above 0.3
    assert rejections(tenths, 0.1) == 10
    assert rejections([0.1, 0.2], 0.15) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [0], 0.1), "N >= 1"),
        (([0.1, np.nan], [1], 0.1), "at least 0"),
        (([0.1, 0.2], [1], -0.1), "mean_kl=-0.1"),
        (([0.1, 0.2], [0], 0.1), "the last 1"),
        (([0.1, 0.2], [1, 1], 0.1), "increasing"),
        (([0.1, 0.2], [1], 0.1, 0), "draft_length=0"),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        certified_tokens(*arguments)


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
@pytest.mark.parametrize("gamma", [None, 1, 3, 40])
def test_the_drafters_own_numbers(rule: Rule, gamma: int | None) -> None:
    drafted = steps()
    (verdict,) = judge(drafted, [rule])
    calls, mean, lower = drafted.trajectories, float(drafted.kl.mean()), verdict.lower
    bootstrap = PromptBootstrap(calls.prompts, 100, 0.9, 0)
    frame = budget_of_drafter(drafted, verdict, bootstrap, gamma or 3).set_index(
        ["kind", "statistic"]
    )
    value, name = frame["value"].to_dict(), f"tokens_{gamma}" if gamma else "tokens"
    assert (frame["eps"] == mean).all()
    size, starts = len(drafted), np.cumsum(LENGTHS) - LENGTHS
    tested = np.delete(lower, starts)  # the first token of an answer is not drafted
    ends = np.cumsum([n - 1 for n in LENGTHS if n > 1]) - 1
    for kind, accepted in (("uniform", lower > mean), ("measured", verdict.accepted)):
        assert value[kind, "acceptance"] == pytest.approx(accepted.mean())
        made = count_calls(accepted[:, None], calls, gamma).calls.sum()
        assert value[kind, name] == pytest.approx(len(tested) / made)
    assert value["budget", "acceptance"] == pytest.approx(1 - rejections(lower, mean) / size)
    assert value["budget", name] == pytest.approx(
        certified_tokens(tested, ends, mean * size / len(tested), gamma)
    )
    for each in ("acceptance", name):
        least = min(value["uniform", each], value["measured", each])
        assert value["budget", each] <= least + 1e-12
    known = frame[frame["ci_low"].notna()]
    assert (known["ci_low"] <= known["value"]).all()
    assert (known["value"] <= known["ci_high"]).all()
    assert np.isnan(frame.loc[("budget", name), "ci_low"]) == (gamma is not None)
    if gamma == 40:  # as long as any trajectory: of any length but for the token behind a draft
        assert value["budget", name] >= value["budget", "tokens"]
    # soundness of every step implies that of their mean
    assert np.sum(~verdict.accepted) <= rejections(lower, mean * (1 + 1e-9))


def test_a_heads_budget_bounds_the_calls_by_depth() -> None:
    """Certified at the mean of each step's largest KL: never more tokens than it gets."""
    first, second, third = (steps(noise) for noise in (0.2, 0.6, 1.0))
    head = replace(first, deeper=[second, third])
    bootstrap = PromptBootstrap(head.trajectories.prompts, 20, 0.9, 0)
    for rule in RULES:
        frame = budget_of_drafter(head, judge(head, [rule])[0], bootstrap, 3)
        value = frame.set_index(["kind", "statistic"])["value"]
        eps = frame.set_index(["kind", "statistic"])["eps"]
        largest = np.max([one.kl for one in (first, second, third)], axis=0).mean()
        assert eps["budget", "acceptance"] == first.kl.mean() < eps["budget", "tokens"] == largest
        for name in ("tokens", "tokens_3"):
            assert value["budget", name] <= value["measured", name] + 1e-12
            assert value["budget", name] <= value["uniform", name] + 1e-12


def test_an_infinite_mean_leaves_what_can_never_be_rejected() -> None:
    drafted = steps()
    endless = replace(drafted, kl=np.full(len(drafted), np.inf))
    verdict = judge(endless, [Additive(1.0)])[0]  # accepts every token
    bootstrap = PromptBootstrap(drafted.trajectories.prompts, 20, 0.9, 0)
    found = budget_of_drafter(endless, verdict, bootstrap, 40)
    tokens = sum(LENGTHS) - len(LENGTHS)  # in three calls: one answer has one token
    whole = np.where(found["statistic"] == "acceptance", 1.0, tokens / 3)
    assert found["value"].to_numpy() == pytest.approx(whole)
    strict = judge(endless, [StrictGreedy()])[0]
    found = budget_of_drafter(endless, strict, bootstrap, 40).set_index(["kind", "statistic"])
    value = found["value"]
    assert value["budget", "acceptance"] == value["uniform", "acceptance"] == 0.0

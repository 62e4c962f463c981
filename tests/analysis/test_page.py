"""The data of the page: what its scripts are given, against the arrays it stands for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from analysis.acceptance.judgement import Judgement
from analysis.acceptance.solve import Goal, solve
from analysis.certificates.certify import certify
from analysis.page import grid, screen, steps
from analysis.page.steps import LEVELS
from analysis.report.measured import Target
from analysis.report.text import share_text
from analysis.rules import Additive, Mars, Multiplicative, Rule, StrictGreedy, Tree
from analysis.rules.build import build_range
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.statistics.trajectories import Trajectories
from analysis.topk import TopK
from pipeline.paths import CONF

GREEDY, SIZE = StrictGreedy(), 40


def made(rules: tuple[Rule, ...] = (Additive(0.3), GREEDY), drafter: bool = True) -> Target:
    """Four answers of ten steps; the certificates of answer n are near n / 10 nats."""
    rng = np.random.default_rng(0)
    prompts = np.repeat(np.arange(4), SIZE // 4)
    base = prompts / 10 + rng.uniform(0.001, 0.05, SIZE)
    top = np.sort(rng.dirichlet(np.ones(6), SIZE))[:, ::-1]
    kept = {rule.label: rng.uniform(size=SIZE) < 0.2 + 0.2 * prompts for rule in rules}
    tokens = np.arange(SIZE, dtype=np.int32)
    draft = pd.DataFrame(
        {"kl": rng.exponential(0.1, SIZE), "token": tokens + 1, "q": top[:, 1]}
    ).assign(p_draft=top[:, 2])
    return Target(
        "target",
        {rule: (base * (1 + at),) * 2 for at, rule in enumerate(rules)},
        PromptBootstrap(prompts, 30, 0.9, 0),
        tokens,
        np.arange(SIZE * 6, dtype=np.int32).reshape(SIZE, 6),
        top,
        [(f"id-{at}", f"prompt {at}", "made up") for at in range(4)],
        words={0: "<b>", 1: "word"},
        draft=draft if drafter else None,
        judged={
            rule.label: Judgement(rule, base, base, *fates(kept[rule.label], tokens))
            for rule in rules
            if drafter
        },
    )


def fates(kept: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Accepted and certified steps."""
    sure = kept & (tokens % 2 == 0)
    return kept, sure


def test_a_step_is_certified_at_the_levels_below_its_certificate_and_at_no_other() -> None:
    values = [*LEVELS, *np.nextafter(LEVELS, 2), *np.nextafter(LEVELS, -1), math.inf]
    for at in range(0, len(values), SIZE):
        lower = np.resize(values[at : at + SIZE], SIZE)
        target = replace(made(), certificates={GREEDY: (lower, lower)})
        for shown in steps.answers(target, [GREEDY])["answers"]:
            for step in shown["steps"]:
                (count,) = step["within"]
                assert [count > level for level in range(len(LEVELS))] == [
                    *(lower[step["t"]] > LEVELS)
                ]
    config = yaml.safe_load((CONF / "config.yaml").read_text())
    assert {*config["run_lengths"]["eps"], config["solve"]["eps"], screen.EPS} <= set(LEVELS)
    assert np.all(np.diff(LEVELS) > 0)


def test_rules_are_ordered_by_family_from_strict_to_relaxed() -> None:
    given = [Tree(4), Multiplicative(0.1), Additive(0.3), Tree(2), Multiplicative(0.5), GREEDY]
    found = steps.in_order([*given, Additive(0.1)])
    assert found == [
        *(GREEDY, Additive(0.1), Additive(0.3)),
        *(Multiplicative(0.5), Multiplicative(0.1), Tree(2), Tree(4)),
    ]
    # a large study embeds as many rules as the page has room for
    many = [Additive(at / 1000) for at in range(300)]
    assert [len(steps.embedded(many, targets)) for targets in (1, 2, 3)] == [200, 100, 66]
    assert steps.embedded([GREEDY, Mars(0.9)], 1000) == [GREEDY]  # one in any case, the first


def most_calls(certain: list[bool], gamma: int) -> int:
    """The most calls that any drafter can cause along an answer, from its second token on."""
    certain = certain[1:]  # the prompt's pass emits the first
    size = len(certain)
    calls = [0] * (size + gamma + 2)
    for at in reversed(range(size)):
        ends = [step + 1 for step in range(at, min(at + gamma, size)) if not certain[step]]
        calls[at] = 1 + max(calls[end] for end in [*ends, at + gamma + 1])
    return calls[0]


def test_the_grid_is_of_the_worst_drafter_and_of_this_one() -> None:
    target = made()
    found = grid.grid(target, [GREEDY, Additive(0.3)])
    weights, prompts = target.bootstrap.weights, np.repeat(np.arange(4), 10)
    cut = math.ceil(0.05 * 30)

    def ends(above: list[int], below: list[int], unit: int) -> list[int]:
        draws = sorted((weights @ above) / (weights @ below))
        return [round(unit * draws[place]) for place in (cut - 1, len(draws) - cut)]

    def check(flags: np.ndarray, shares: list[int], calls: list[list[int]]) -> None:
        kept = [flags[prompts == prompt].tolist() for prompt in range(4)]
        passed = [sum(own) for own in kept]
        assert shares == [sum(passed), *ends(passed, [10] * 4, grid.SHARES)]
        for gamma in range(1, grid.LONGEST + 1):
            made_calls = [most_calls(own, gamma) for own in kept]
            value = round(grid.TOKENS * (SIZE - 4) / sum(made_calls))
            assert calls[gamma - 1] == [value, *ends([9] * 4, made_calls, grid.TOKENS)]

    assert found["steps"] == SIZE
    for rule, row in zip((GREEDY, Additive(0.3)), found["rules"], strict=True):
        for level in (0, 20, 40, len(LEVELS) - 1):
            flags = target.certificates[rule][0] > LEVELS[level]
            check(
                flags,
                [end[level] for end in row["share"]],
                [[end[gamma][level] for end in row["tokens"]] for gamma in range(grid.LONGEST)],
            )
        judged = target.judged[rule.label]
        for at, flags in enumerate((judged.accepted, judged.certified)):
            check(
                flags,
                [end[at] for end in row["shares"]],
                [[end[gamma][at] for end in row["calls"]] for gamma in range(grid.LONGEST)],
            )
    (row,) = grid.grid(made(drafter=False), [GREEDY])["rules"]
    assert row.keys() == {"share", "tokens"}


def test_a_guarantee_of_a_head_counts_steps_certified_at_all_depths_before() -> None:
    target = made()
    first = replace(target.judged["greedy"], certified=np.arange(SIZE) % 3 > 0)
    none = np.zeros(SIZE, dtype=bool)
    deep = replace(first, certified=none)
    head = replace(target, judged={"greedy": replace(first, deeper=(deep,))})
    model = replace(target, judged={"greedy": first})
    (row,), (own,) = (grid.grid(x, [GREEDY])["rules"] for x in (head, model))
    assert row["shares"] == own["shares"]  # of depth 1
    promised, once = ([one[1] for one in x["calls"][0]] for x in (row, own))
    assert promised == [once[0]] * grid.LONGEST
    assert promised[-1] < once[-1]


@pytest.mark.parametrize(
    "rule", [{"rule": "additive", "t": [0.0, 1.0]}, {"rule": "tree", "m": [1, 32]}]
)
def test_the_calculator_finds_the_setting_that_solve_finds(rule: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    dist = TopK.from_probabilities(rng.dirichlet(np.full(40, 0.1), SIZE * 10))
    prompts = np.repeat(np.arange(4), SIZE * 10 // 4)
    searched = build_range(rule)
    spread = grid.settings(searched, dist.k)
    counts = grid.certified_steps(dist, spread)
    lower = certify(dist, spread.rules).lower
    for place in (0, 7, len(LEVELS) - 1):
        np.testing.assert_array_equal(counts[:, place], (lower > LEVELS[place]).sum(axis=0))
    target = replace(made(), tokens=np.zeros(len(dist), np.int32), swept={spread: counts})
    trajectories = Trajectories.from_positions(np.tile(np.arange(SIZE * 10 // 4), 4))
    bootstrap = PromptBootstrap(prompts, 20, 0.9, 0)
    for share in (0.5, 0.9):
        exact = solve(dist, searched, 0.1, Goal(share=share), bootstrap, trajectories).value
        value = grid.strictest(target, searched.name, 0.1, share)
        assert value is not None
        assert abs(value - exact) < (0.01 if searched.parameter == "t" else 1)
    few = grid.settings(build_range({"rule": "tree", "m": [1, 32]}), 10)
    assert [rule.m for rule in few.rules] == list(range(1, 10))  # type: ignore[attr-defined]


def test_curves_are_shares_of_steps_above_each_level_within_their_band() -> None:
    target = made()
    found = steps.curves(target, [GREEDY])
    (curve,) = found["rules"]
    eps = np.linspace(0, 1.06 * math.log(2), steps.POINTS)
    shares = [float(np.mean(target.certificates[GREEDY][0] > x)) for x in eps]
    assert curve["share"] == pytest.approx(shares, abs=1e-4)
    assert all(low <= high for low, high in zip(curve["low"], curve["high"], strict=True))


def test_answers_are_shown_from_the_least_accepted_to_the_most() -> None:
    target = made()
    found = steps.answers(target, [GREEDY, Additive(0.3)])
    accepted = target.judged[GREEDY.label].accepted.reshape(4, 10).mean(axis=1)
    shown = [one["share"] for one in found["answers"]]
    assert shown == [f"{share_text(share)} accepted" for share in sorted(accepted)]
    assert found["chosen_by"].startswith("4 answers, ")
    assert "share of accepted tokens under Strict greedy" in found["chosen_by"]
    for one in found["answers"]:
        place = int(one["id"][-1])
        step = one["steps"][3]
        assert step["t"] == 10 * place + 3
        assert step["d"] == step["t"] + 1
        assert step["p"] == pytest.approx(target.probabilities[step["t"], :5], rel=5e-3)
        assert len(step["r"]) == 2
        for rule, fate in zip((GREEDY, Additive(0.3)), step["fates"], strict=True):
            judged = target.judged[rule.label]
            kept, sure = judged.accepted[step["t"]], judged.certified[step["t"]]
            assert fate == (steps.CERTIFIED if sure else steps.ACCEPTED if kept else steps.REJECTED)
    assert found["words"] == {"0": "<b>", "1": "word"}  # as it is: the page sets it as text
    found = steps.answers(made(drafter=False), [GREEDY])
    assert [one["id"] for one in found["answers"]] == [f"id-{at}" for at in range(4)]
    assert "mean certificate" in found["chosen_by"]
    assert "d" not in found["answers"][0]["steps"][0]
    assert found["answers"][0]["steps"][0]["fates"] == [steps.OPEN]
    endless = replace(made(), certificates={GREEDY: (np.full(SIZE, np.inf),) * 2})
    found = steps.answers(endless, [GREEDY])
    assert found["answers"][0]["steps"][0]["r"] == [None]  # nothing is rejected


@pytest.mark.parametrize(("share", "says"), [(0.95, "t = 0."), (0.925, "none")])
def test_without_a_drafter_the_strictest_setting_that_certifies_enough_is_named(
    share: float, says: str
) -> None:
    lower = np.full(SIZE, 0.05)
    searched = build_range({"rule": "additive", "t": [0.1, 0.5]})
    counts = np.zeros((2, len(LEVELS)))
    counts[1] = share * SIZE
    target = replace(
        made(drafter=False), certificates={GREEDY: (lower, lower)}, swept={searched: counts}
    )
    facts = screen.facts_of_target(target)
    assert facts[0]["value"] == "0 %"
    assert facts[-1]["value"].startswith(says)

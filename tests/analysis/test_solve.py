"""solve against sweeps: every setting of a grid certified on its own, every resample solved."""

import math
from dataclasses import replace

import numpy as np
import pytest

from analysis.acceptance.judgement import judge
from analysis.acceptance.solve import RESOLUTION, Goal, solve, solve_accepted
from analysis.acceptance.summary import kl_needed
from analysis.certificates.certify import certify
from analysis.rule_config import ParameterRange, expand
from analysis.rules import AbsoluteThreshold, StrictGreedy
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.statistics.trajectories import Trajectories, count_calls
from analysis.topk import TopK
from tests.analysis.test_acceptance import bootstrap, deep, pair, statistics

LENGTHS = (20, 7, 1, 30, 12)
STEPS = Trajectories.from_positions(np.concatenate([np.arange(n) for n in LENGTHS]))
BOOTSTRAP = PromptBootstrap(STEPS.prompts, 200, 0.9, 0)
EPS = 0.05
DIALS = [
    {"rule": "additive", "t": [0.0, 1.0]},
    {"rule": "multiplicative", "alpha": [1.0, 0.001]},
    {"rule": "absolute", "theta": [0.9999, 0.0]},
    {"rule": "mars", "theta": [0.9999, 0.0001]},
    {"rule": "topm_additive", "m": 3, "t": [0.0, 1.0]},
    {"rule": "tree", "m": [1, 9]},
]
GOALS = [Goal(0.6), Goal(0.95), Goal(3, True), Goal(2, True, 3)]


def build_range(mapping):
    (parameter,) = (key for key, value in mapping.items() if isinstance(value, list))
    strict, relaxed = expand([mapping])
    return ParameterRange(parameter, (strict, relaxed))


@pytest.fixture(scope="module")
def dist():
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((sum(LENGTHS), 30)) + 6
    return TopK.from_logits(logits, k=12)


def reached(dist, rule, goal, weights=None):
    """What a setting reaches: of the steps, or of each resample."""
    certain = certify(dist, rule).lower > EPS
    steps = np.bincount(STEPS.prompts)
    certified = np.bincount(STEPS.prompts, weights=certain[:, 0])
    made = count_calls(certain[:, 0], STEPS, goal.draft_length)
    above = steps - 1 if goal.calls else certified  # the prompt's pass emits the first
    below = made.calls if goal.calls else steps
    w = np.ones((1, len(LENGTHS))) if weights is None else weights
    return (w @ above) / (w @ below)


def answer(dist, dial, goal):
    (solution,) = solve(dist, dial, EPS, [goal], BOOTSTRAP, STEPS)
    return solution


def stricter(dial, value):
    """The rule one place of the grid before a value."""
    kind = type(dial.rules[0].parameters[dial.parameter])
    sign = math.copysign(
        1 if kind is int else RESOLUTION, dial.value(dial.rules[-1]) - dial.value(dial.rules[0])
    )
    return replace(dial.rules[0], **{dial.parameter: kind(round(value - sign, 10))})


@pytest.mark.parametrize("goal", GOALS, ids=str)
@pytest.mark.parametrize("mapping", DIALS, ids=lambda mapping: str(mapping["rule"]))
def test_the_answer_agrees_with_certificates_of_its_neighbours(dist, mapping, goal):
    dial = build_range(mapping)
    found = answer(dist, dial, goal)
    if found.rule is None:
        most = reached(dist, dial.rules[-1], goal)[0]
        assert most < goal.wanted
        assert (found.reached, math.isnan(found.value)) == (pytest.approx(most), True)
        return
    assert found.value == found.rule.parameters[dial.parameter]
    assert reached(dist, found.rule, goal)[0] == pytest.approx(found.reached)
    assert found.reached >= goal.wanted - 1e-9
    if found.value != dial.value(dial.rules[0]):
        assert reached(dist, stricter(dial, found.value), goal)[0] < goal.wanted


@pytest.mark.parametrize(
    ("k", "mapping"),
    [*((12, DIALS[at]) for at in (0, 1, 4, 5)), *((3, dial) for dial in DIALS[:3])],
    ids=str,
)
def test_a_drafter_reaches_a_length_and_not_one_place_before(k, mapping):
    """Found to the grid's 1e-4, where it was to 1e-3; of tokens beyond the stored ones as well."""
    steps, dial = pair(0.8, k=k), build_range(mapping)
    ends = [statistics(steps, r)["measured_per_call"] for r in (dial.rules[0], dial.rules[-1])]
    calls = steps.trajectories

    def tokens(rule):
        flags = judge(steps, [rule])[0].accepted
        made = count_calls(flags, calls, None)
        return float(made.tokens.sum() / made.calls.sum())

    for wanted in (1.2, 2 / (1 / ends[0] + 1 / ends[1])):
        (found,) = solve_accepted(steps, dial, [Goal(wanted, True)], bootstrap(steps))
        if found.rule is None:
            assert tokens(dial.rules[-1]) < wanted
            continue
        assert tokens(found.rule) == pytest.approx(found.reached)
        assert found.reached >= wanted - 1e-9
        if found.value != dial.value(dial.rules[0]):
            assert tokens(stricter(dial, found.value)) < wanted


def test_a_head_is_solved_by_the_depth_of_each_place():
    """By sweeping all settings of a tree, drafts of 3; depth 1 alone would promise more."""
    steps, dial = deep(), build_range({"rule": "tree", "m": [1, 9]})

    def tokens(m, steps):
        verdict = judge(steps, [replace(dial.rules[0], m=m)])[0]
        walk = count_calls(verdict.accepted_by_depth, steps.trajectories, 3)
        return float(walk.tokens.sum() / walk.calls.sum())

    swept = [tokens(m, steps) for m in range(1, 10)]
    assert swept[0] < tokens(1, replace(steps, deeper=[]))
    for wanted in (swept[0], swept[1], swept[1] + 1e-6):
        goal = Goal(wanted, True, 3)
        (solution,) = solve_accepted(steps, dial, [goal], bootstrap(steps))
        assert solution.value == 1 + next(m for m, n in enumerate(swept) if n >= wanted - 1e-9)
        assert solution.reached == pytest.approx(swept[int(solution.value) - 1])
    (share,) = solve_accepted(steps, dial, [Goal(0.9)], bootstrap(steps))
    (first,) = solve_accepted(replace(steps, deeper=[]), dial, [Goal(0.9)], bootstrap(steps))
    assert (share.value, share.reached) == (first.value, first.reached)  # of depth 1


def test_answers_of_one_token_have_no_calls():
    dist = TopK.from_probabilities([[0.6, 0.3, 0.1]] * 2)
    steps = Trajectories.from_positions(np.array([0, 0]))
    bootstrap = PromptBootstrap(steps.prompts, 20, 0.9, 0)
    dial = build_range({"rule": "additive", "t": [0.0, 1.0]})
    (solution,) = solve(dist, dial, 0.1, [Goal(2, True)], bootstrap, steps)
    assert solution.rule is None  # no setting reaches tokens of calls that there are not
    assert all(map(math.isnan, (solution.value, solution.ci_low, solution.reached)))


@pytest.mark.parametrize("goal", GOALS, ids=str)
def test_the_limits_are_quantiles_of_the_resamples_own_answers(dist, goal):
    """Each resample is solved by a sweep over all settings of an integer."""
    dial = build_range({"rule": "tree", "m": [1, 9]})
    ways = np.stack(
        [reached(dist, replace(dial.rules[0], m=m), goal, BOOTSTRAP.weights) for m in range(1, 10)]
    )
    enough = ways >= goal.wanted - 1e-9
    own = np.where(enough.any(axis=0), 1 + enough.argmax(axis=0), np.inf)
    low, high = BOOTSTRAP.interval(own[:, None])
    found = answer(dist, dial, goal)
    limits = [math.inf if math.isnan(x) else x for x in (found.ci_low, found.ci_high)]
    assert limits == [low[0], high[0]]
    assert low[0] < high[0]  # the prompts differ


def test_the_limits_of_a_continuous_parameter_are_those_of_all_its_settings():
    """Every setting of t is certified, and every resample takes its first one."""
    logits = 2 * np.random.default_rng(7).standard_normal((240, 20)) + 6
    dist = TopK.from_logits(logits, k=20)
    steps = Trajectories.from_positions(np.tile(np.arange(6), 40))
    resamples = PromptBootstrap(steps.prompts, 200, 0.9, 0)
    dial = build_range({"rule": "additive", "t": [0.0, 1.0]})
    t = np.arange(10_001) / 10_000
    passed = certify(dist, [replace(dial.rules[0], t=float(x)) for x in t]).lower > EPS
    sums = np.add.reduceat(passed.astype(float), steps.starts)
    shares = resamples.weights @ sums / 240
    own = np.sort(t[(shares >= 0.6 - 1e-9).argmax(axis=1)])
    assert own[8] < own[9]  # so that the rank matters: 10 and 191 of 200 for 90 %
    assert own[189] < own[190]
    (found,) = solve(dist, dial, EPS, [Goal(0.6)], resamples, steps)
    assert (found.ci_low, found.ci_high) == pytest.approx((own[9], own[190]), abs=1e-12)
    assert found.value == pytest.approx(t[(passed.mean(axis=0) >= 0.6 - 1e-9).argmax()], abs=1e-12)


def test_at_the_threshold_and_a_step_to_either_side():
    """p = (.6, .3, .1): below R = .051 rank 2 is out of reach; from there it must be accepted."""
    dist = TopK.from_probabilities([[0.6, 0.3, 0.1]])
    steps = Trajectories.from_positions(np.array([0]))
    bootstrap = PromptBootstrap(steps.prompts, 20, 0.9, 0)
    dial = build_range({"rule": "additive", "t": [0.0, 1.0]})
    least = float(certify(dist, dial.rules[0]).lower[0, 0])
    assert least == pytest.approx(0.6 * math.log(0.6 / 0.45) + 0.3 * math.log(0.3 / 0.45))
    for eps, value in ((least - 1e-9, 0.0), (least, 0.3001), (least + 1e-9, 0.3001)):
        (found,) = solve(dist, dial, eps, [Goal(1.0)], bootstrap, steps)
        assert found.value == value, eps
    (found,) = solve(dist, dial, 0.0, [Goal(1.0)], bootstrap, steps)  # no need to relax
    assert (found.value, found.ci_low, found.ci_high, found.reached) == (0.0, 0.0, 0.0, 1.0)
    two = Trajectories.from_positions(np.array([0, 1]))
    every = PromptBootstrap(two.prompts, 20, 0.9, 0)
    doubled = TopK.from_probabilities([[0.6, 0.3, 0.1]] * 2)
    assert solve(doubled, dial, 10.0, [Goal(1, True)], every, two)[0].value == 0.0


@pytest.mark.parametrize("noise", [0.3, 2.0])
def test_the_kl_needed_certifies_the_share_and_no_more(noise):
    steps = pair(noise, k=4)
    for rule in (StrictGreedy(), AbsoluteThreshold(0.05)):
        verdict = judge(steps, [rule])[0]
        for share in (0.5, 0.9, 1.0):
            value, low, high = kl_needed(verdict.lower, share, bootstrap(steps))
            assert np.mean(verdict.lower >= value) >= share
            assert np.mean(verdict.lower > value) < share or math.isinf(value)
            assert low <= value <= high

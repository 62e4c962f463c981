"""A drafter held against certificates; the settings that reach a goal, against sweeps."""

import math
from dataclasses import replace

import numpy as np
import pytest

from analysis.acceptance.drafter import kl_needed, margins, rule_statistics
from analysis.acceptance.judgement import Steps, judge, rounding
from analysis.acceptance.parameter_range import ParameterRange
from analysis.acceptance.solve import RESOLUTION, Goal, solve, solve_accepted
from analysis.certificates.certify import certify
from analysis.rule_config import expand
from analysis.rules import AbsoluteThreshold, Additive, StrictGreedy, Tree
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.statistics.trajectories import Trajectories, count_calls
from analysis.topk import TopK
from tests.analysis.cases import RULES, drafted_steps, noisy

VOCAB, PROMPTS, LENGTH = 12, 20, 15


def pair(noise, k=VOCAB, seed=0):
    z, w = noisy(PROMPTS * LENGTH, VOCAB, 3.0, noise, seed)
    return drafted_steps(z, w, k, [LENGTH] * PROMPTS)[0]


def bootstrap(steps):
    return PromptBootstrap(steps.trajectories.answer_index, 50, 0.9, 0)


def statistics(steps, rule, column="value"):
    verdict = judge(steps, [rule])[0]
    rows = rule_statistics(steps, verdict, bootstrap(steps))
    return {row["statistic"]: row[column] for row in rows}


@pytest.mark.parametrize("missing", [0, 4])  # tokens that the drafter lacks
@pytest.mark.parametrize("k", [VOCAB, 5])
@pytest.mark.parametrize("noise", [0.01, 4.0])
def test_no_certified_step_is_rejected(noise, k, missing):
    """A drafter that lacks a token of the target has an infinite KL."""
    z, w = noisy(PROMPTS * LENGTH, VOCAB, 3.0, noise, k + missing)
    np.put_along_axis(w, np.argsort(z, axis=1)[:, :missing], -np.inf, axis=1)
    steps, found = drafted_steps(z, w, k, [LENGTH] * PROMPTS)
    for verdict in judge(steps, RULES):
        assert len(verdict.violations) == 0, verdict.rule.label
        if missing:  # certified where nothing can be rejected: at any KL
            assert (verdict.certified == np.isinf(verdict.lower)).all()
        elif noise < 1:  # the promise is not empty
            assert verdict.certified.mean() > 0.3, verdict.rule.label
    assert np.isinf(found.kl).all() == (missing > 0)
    for rule in RULES:
        assert not math.isnan(statistics(steps, rule)["slack_median"]), rule


def test_bins_of_margins_are_above_their_lower_ends():
    slack = np.array([-np.inf, -2.0, -1.9, 0.0, 1e-9, 0.5, 0.6, np.inf])
    accepted = np.array([0, 1, 0, 1, 1, 1, 1, 1], dtype=bool)
    found = margins(slack, accepted).set_index("low")
    assert found.loc[-np.inf, ["high", "steps", "accepted"]].tolist() == [-2, 2, 1]
    assert found.loc[-0.1, ["steps", "accepted"]].tolist() == [1, 1]  # R = KL guarantees nothing
    assert found.loc[[0.0, 0.25, 0.5], "steps"].tolist() == [1, 1, 2]
    assert found["steps"].sum() == len(slack)
    shares = margins(slack, accepted, {"normal": np.linspace(0.1, 0.8, 8)}).set_index("low")
    assert shares["accepted"].tolist() == found["accepted"].tolist()
    assert shares.loc[-np.inf, "normal"] == pytest.approx(0.1 + 0.2)
    assert shares.loc[0.5, "normal"] == pytest.approx(0.7 + 0.8)


def test_a_drafter_equal_to_the_target_fails_only_where_r_is_zero():
    z = np.array([[2.0, 1.0, 0.0], [1.0, 1.0, 0.0], [3.0, 3.0, 3.0]], dtype=np.float32)
    steps, _ = drafted_steps(z, z.copy())
    assert not steps.kl.any()
    for verdict in judge(steps, RULES):
        np.testing.assert_array_equal(verdict.certified, verdict.lower > 0)
        assert verdict.accepted[verdict.lower > 0].all()
    greedy = judge(steps, [StrictGreedy()])[0]
    assert greedy.accepted.tolist() == [True, False, False]  # ties go against the drafter


def test_lengths_and_shares_by_hand():
    """Two answers: accepted 1 1 0 1 and 1 0."""
    ranks = np.array([1, 1, 2, 1, 1, 2], dtype=np.int32)
    p = np.tile([0.5, 0.3, 0.2], (6, 1))
    steps = Steps(
        TopK.from_probabilities(p),
        np.array([0, 1, 2, 3, 0, 1], dtype=np.int32),
        np.array([0.0, 0.5, 0.5, 0.0, 0.5, 0.5]),
        ranks,
        np.log(np.where(ranks == 1, 0.5, 0.3)),
        ranks,
    )
    found = statistics(steps, StrictGreedy())
    # R = 0.0252: steps 0 and 3 are certified
    assert found["acceptance"] == pytest.approx(4 / 6)
    assert found["certified"] == pytest.approx(2 / 6)
    assert found["coverage"] == pytest.approx(2 / 4)
    assert found["departure"] == found["probability_given_up"] == 0
    # first tokens are not drafted; calls end at two rejections, and where the first answer does
    assert found["measured_per_call"] == pytest.approx(4 / (2 + 1))
    assert found["certified_per_call"] == pytest.approx(4 / (3 + 1))
    relaxed = statistics(steps, Additive(t=0.25))
    assert relaxed["acceptance"] == 1
    assert relaxed["departure"] == pytest.approx(2 / 6)
    assert relaxed["probability_given_up"] == pytest.approx(2 * 0.2 / 6)
    assert statistics(steps, Tree(m=2))["departure"] == 0


def deep(noises=(0.3, 1.0, 2.0)):
    """A head: each deeper token of its drafts is drafted with more noise."""
    first, *others = (pair(noise) for noise in noises)
    return replace(first, deeper=others)


def test_a_heads_tokens_a_call_go_by_depth():
    """Place i of a draft at depth i, from the second token of an answer on."""
    steps = deep()
    for rule in RULES:
        verdict = judge(steps, [rule])[0]
        accepted = np.stack([judge(at, [rule])[0].accepted for at in steps.by_depth])
        assert np.array_equal(verdict.accepted_by_depth, accepted)
        sure = np.stack([one.certified for one in verdict.by_depth])  # only if at all depths so far
        so_far = [sure[: depth + 1].all(axis=0) for depth in range(3)]
        assert np.array_equal(verdict.certified_by_depth, so_far)
        calls = count_calls(accepted, steps.trajectories, None).calls.sum()
        found = statistics(steps, rule)
        assert found["measured_per_call"] == pytest.approx(PROMPTS * (LENGTH - 1) / calls)
        assert found["certified_per_call"] <= found["measured_per_call"]
        alone = statistics(replace(steps, deeper=[]), rule)
        assert found["acceptance"] == alone["acceptance"]  # of depth 1


def test_the_border_of_the_certificate():
    """A KL just below R is certified; R itself, or more, is not; 0 is, where R is above 0."""
    z = np.array([[2.0, 1.0, 0.0, -1.0]] * 4 + [[1.0, 1.0, 0.0, -1.0]], dtype=np.float32)
    steps, _ = drafted_steps(z, z.copy())
    least = judge(steps, [StrictGreedy()])[0].lower[0]
    assert 0 < least < 1
    far = least * np.array([1 - 1e-6, 1.0, 1 + 1e-6, 0.0, 0.0])
    verdict = judge(replace(steps, kl=far), [StrictGreedy()])[0]
    assert verdict.certified.tolist() == [True, False, False, True, False]  # the last is a tie
    error = rounding(np.array([0.0, 1e-20, 0.3]))
    assert error[0] == 0 < error[1] <= error[2] <= 1e-12


SIZES = (20, 7, 1, 30, 12)
STEPS = Trajectories.from_positions(np.concatenate([np.arange(n) for n in SIZES]))
BOOTSTRAP = PromptBootstrap(STEPS.answer_index, 200, 0.9, 0)
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
    logits = 2 * rng.standard_normal((sum(SIZES), 30)) + 6
    return TopK.from_logits(logits, k=12)


def reached(dist, rule, goal, weights=None):
    """What a setting reaches: of the steps, or of each resample."""
    certain = certify(dist, rule).lower > EPS
    steps = np.bincount(STEPS.answer_index)
    certified = np.bincount(STEPS.answer_index, weights=certain[:, 0])
    made = count_calls(certain[:, 0], STEPS, goal.draft_length)
    above = steps - 1 if goal.is_per_call else certified  # the prompt's pass emits the first
    below = made.calls if goal.is_per_call else steps
    w = np.ones((1, len(SIZES))) if weights is None else weights
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
    ("k", "mapping"), [(12, DIALS[0]), (12, DIALS[5]), (3, DIALS[1]), (3, DIALS[2])], ids=str
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
    steps, dial = deep(), build_range({"rule": "tree", "m": [1, 3]})

    def tokens(m, steps):
        verdict = judge(steps, [replace(dial.rules[0], m=m)])[0]
        walk = count_calls(verdict.accepted_by_depth, steps.trajectories, 3)
        return float(walk.tokens.sum() / walk.calls.sum())

    swept = [tokens(m, steps) for m in range(1, 4)]
    assert swept[0] < tokens(1, replace(steps, deeper=[]))
    for wanted in (*swept, swept[1] + 1e-6):
        goal = Goal(wanted, True, 3)
        (solution,) = solve_accepted(steps, dial, [goal], bootstrap(steps))
        assert solution.value == 1 + next(m for m, n in enumerate(swept) if n >= wanted - 1e-9)
        assert solution.reached == pytest.approx(swept[int(solution.value) - 1])


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
    resamples = PromptBootstrap(steps.answer_index, 200, 0.9, 0)
    dial = build_range({"rule": "additive", "t": [0.0, 1.0]})
    t = np.arange(10_001) / 10_000
    passed = certify(dist, [replace(dial.rules[0], t=float(x)) for x in t]).lower > EPS
    sums = np.add.reduceat(passed.astype(float), steps.starts)
    shares = resamples.weights @ sums / 240
    own = np.sort(t[(shares >= 0.6 - 1e-9).argmax(axis=1)])
    # 40 prompts widen 90 %: 4.4 % of 200 draws beyond each end, so the ranks are 9 and 192
    assert own[8] < own[9]  # so that the rank matters: plain percentiles have 10
    (found,) = solve(dist, dial, EPS, [Goal(0.6)], resamples, steps)
    assert (found.ci_low, found.ci_high) == pytest.approx((own[8], own[191]), abs=1e-12)
    assert found.value == pytest.approx(t[(passed.mean(axis=0) >= 0.6 - 1e-9).argmax()], abs=1e-12)


def test_at_the_threshold_and_a_step_to_either_side():
    """p = (.6, .3, .1): below R = .051 rank 2 is out of reach; from there it must be accepted."""
    dist = TopK.from_probabilities([[0.6, 0.3, 0.1]])
    steps = Trajectories.from_positions(np.array([0]))
    bootstrap = PromptBootstrap(steps.answer_index, 20, 0.9, 0)
    dial = build_range({"rule": "additive", "t": [0.0, 1.0]})
    least = float(certify(dist, dial.rules[0]).lower[0, 0])
    assert least == pytest.approx(0.6 * math.log(0.6 / 0.45) + 0.3 * math.log(0.3 / 0.45))
    for eps, value in ((least - 1e-9, 0.0), (least, 0.3001), (least + 1e-9, 0.3001)):
        (found,) = solve(dist, dial, eps, [Goal(1.0)], bootstrap, steps)
        assert found.value == value, eps
    (found,) = solve(dist, dial, 0.0, [Goal(1.0)], bootstrap, steps)  # no need to relax
    assert (found.value, found.reached) == (0.0, 1.0)
    assert math.isnan(found.ci_low)  # one prompt has no interval
    assert math.isnan(found.ci_high)
    two = Trajectories.from_positions(np.array([0, 0]))
    both = PromptBootstrap(two.answer_index, 20, 0.9, 0)
    (found,) = solve(dist[[0, 0]], dial, 0.0, [Goal(1.0)], both, two)
    assert (found.value, found.ci_low, found.ci_high) == (0.0, 0.0, 0.0)
    (none,) = solve(dist, dial, 0.1, [Goal(2, True)], bootstrap, steps)
    assert none.rule is None  # an answer of one token has no calls
    assert all(map(math.isnan, (none.value, none.ci_low, none.reached)))


def test_any_setting_is_enough_where_the_strict_end_is():
    """Of two prompts one is certified by the strict end (t = 0), the other later."""
    sure, unsure = [0.9, 0.05, 0.05], [0.45, 0.4, 0.15]
    dial = build_range({"rule": "additive", "t": [0.0, 1.0]})
    for steps_, wanted, any_setting in (
        ([sure, sure], 1.0, True),
        ([sure, unsure], 1.0, False),
        ([sure, unsure], 0.5, False),  # in the sample, but not in all resamples
        ([unsure, unsure], 1.0, False),
    ):
        steps = Trajectories.from_positions(np.array([0, 0]))
        bootstrap = PromptBootstrap(steps.answer_index, 200, 0.9, 0)
        dist = TopK.from_probabilities(steps_)
        (found,) = solve(dist, dial, 0.1, [Goal(wanted)], bootstrap, steps)
        assert found.any_setting == any_setting
        assert (found.value == 0.0) == (steps_[1] is sure or wanted == 0.5)


def test_the_kl_needed_certifies_the_share_and_no_more():
    steps = pair(0.3, k=4)
    for verdict in judge(steps, [StrictGreedy(), AbsoluteThreshold(0.05)]):
        for share in (0.5, 0.9, 1.0):
            value, low, high = kl_needed(verdict.lower, share, bootstrap(steps))
            assert np.mean(verdict.lower >= value) >= share
            assert np.mean(verdict.lower > value) < share or math.isinf(value)
            assert low <= value <= high

"""Speed by draft length: counted calls, seconds of calls, and a simulation of both."""

import numpy as np
import pandas as pd
import pytest

from analysis.decoding.metrics import Decoded
from analysis.decoding.predicted_speed import (
    GREEDY,
    MAX_DRAFT_LENGTH,
    CallsByLength,
    CallSeconds,
    predicted_speeds,
    speeds_of_timed_calls,
)
from analysis.statistics.bootstrap import Resampling, student_factor
from analysis.statistics.trajectories import Trajectories, count_calls

STATISTICS = Resampling(200, 0.95, 0)
DRAFT, TOKEN = 0.5, 0.1  # seconds of a drafted token, and by which it lengthens the target's pass
LENGTHS = np.arange(1, MAX_DRAFT_LENGTH + 1)


def counted(accepted, prompts):
    """Calls along the steps of some prompts of equal length, whose drafts are `accepted` or not."""
    steps = Trajectories.from_positions(np.tile(np.arange(len(accepted) // prompts), prompts))
    found = [count_calls(accepted, steps, int(length)) for length in LENGTHS]
    calls = np.stack([of_length.calls for of_length in found], axis=1)
    return CallsByLength(calls, calls, np.stack([of_length.tokens for of_length in found], axis=1))


def given(tokens, calls, drafting=None):
    """Counts of prompts (P,) that are the same for every draft length."""
    numbers = (calls, calls if drafting is None else drafting, tokens)
    return CallsByLength(*(np.tile(np.array(of)[:, None], (1, MAX_DRAFT_LENGTH)) for of in numbers))


def rounds(number=3, longest=MAX_DRAFT_LENGTH, begin=0.0):
    """Rounds without noise: a call of g tokens takes 1 + 0.1 g seconds, and 0.5 g of drafting.

    `begin` are the seconds of the drafter's pass over the prompt.
    """
    lengths = np.tile(np.arange(longest + 1.0), (number, 1))
    return CallSeconds(DRAFT * lengths, 1 + TOKEN * lengths, np.full(number, begin))


def test_rows_are_read_by_prompt_and_length():
    rows = pd.DataFrame(
        {"calls": range(2 * MAX_DRAFT_LENGTH), "tokens": range(100, 100 + 2 * MAX_DRAFT_LENGTH)},
        dtype=np.int64,
    )
    found = CallsByLength.read(rows)
    assert found.calls.tolist() == [
        [*range(MAX_DRAFT_LENGTH)],
        [*range(MAX_DRAFT_LENGTH, 2 * MAX_DRAFT_LENGTH)],
    ]
    assert found.drafting.tolist() == found.calls.tolist()
    assert found.tokens[1, 0] == 100 + MAX_DRAFT_LENGTH
    assert (
        CallsByLength.read(rows.assign(drafting=7)).drafting.tolist()
        == [[7] * MAX_DRAFT_LENGTH] * 2
    )


def test_speed_is_tokens_over_cost():
    accepted = np.random.default_rng(0).random(60) < 0.7
    table = predicted_speeds(counted(accepted, 3), rounds(), STATISTICS)
    assert table["draft_length"].tolist() == [0, *LENGTHS]
    steps = Trajectories.from_positions(np.tile(np.arange(20), 3))
    calls = [count_calls(accepted, steps, int(length)).calls.sum() for length in LENGTHS]
    assert table["tokens_per_call"].tolist() == [1, *(57 / np.array(calls))]
    costs = [1 + (DRAFT + TOKEN) * g for g in range(MAX_DRAFT_LENGTH + 1)]
    assert table["cost"].tolist() == pytest.approx(costs)
    assert table["speed"].tolist() == pytest.approx(table["tokens_per_call"] / costs)
    bound = table["tokens_per_call"] / (1 + DRAFT * table["draft_length"])
    assert table["memory_bound"].tolist() == pytest.approx(bound.tolist())


@pytest.mark.parametrize("begin", [0.0, 2.0, 6.0])
def test_the_drafters_pass_over_a_prompt_is_paid_once_an_answer(begin):
    """Two answers of 30 tokens in 20 calls each; without drafts there is no such pass."""
    prompts = given([30, 30], [20, 20])
    seconds = rounds(3, begin=begin)
    row, *_ = predicted_speeds(prompts, seconds, STATISTICS).iloc[[2]].to_dict("records")
    calls = 40 * (1 + 2 * (DRAFT + TOKEN))
    assert row["cost"] == pytest.approx(1 + 2 * (DRAFT + TOKEN))
    assert row["speed"] == pytest.approx(60 / (calls + 2 * begin))
    assert row["memory_bound"] == pytest.approx(60 / (40 * (1 + 2 * DRAFT) + 2 * begin))
    for end in ("low", "high"):  # nothing differs
        assert row[f"speed_ci_{end}"] == pytest.approx(row["speed"])
    none = predicted_speeds(prompts, seconds, STATISTICS).iloc[0]
    assert none["speed"] == none["memory_bound"] == 1
    looked_up = predicted_speeds(prompts, seconds, STATISTICS, draft_seconds=0.5).iloc[2]
    assert looked_up["speed"] == pytest.approx(60 / (40 * (1.5 + 2 * TOKEN)))


def test_rounds_with_other_prompts_give_the_mean_of_the_drafters_passes():
    seconds = CallSeconds(rounds(4).draft, rounds(4).target, np.array([0.0, 0.0, 0.0, 8.0]))
    row = predicted_speeds(given([30, 30], [20, 20]), seconds, STATISTICS).iloc[1]
    assert row["speed"] == pytest.approx(60 / (40 * (1 + DRAFT + TOKEN) + 2 * 2.0))
    assert row["speed_ci_low"] < row["speed"] < row["speed_ci_high"]


def test_calls_without_a_draft_cost_a_pass():
    """One call in four drafts: three passes of one token, and one of the draft."""
    looked_up = given([130], [100], [25])
    table = predicted_speeds(looked_up, rounds(), STATISTICS, draft_seconds=0.01)
    none, _, two = table.to_dict("records")[:3]
    seconds = 75 * 1 + 25 * (1 + 2 * TOKEN + 0.01)
    assert two["tokens_per_call"] == pytest.approx(1.3)
    assert two["cost"] == pytest.approx(seconds / 100)
    assert two["speed"] == pytest.approx(130 / seconds)
    assert two["memory_bound"] == pytest.approx(130 / (75 + 25 * 1.01))
    assert (none["tokens_per_call"], none["cost"], none["speed"]) == (1, 1, 1)


@pytest.mark.parametrize("longest", [1, 5, MAX_DRAFT_LENGTH])
def test_costs_beyond_the_longest_measured_go_on_as_they_are(longest):
    table = predicted_speeds(given([9], [5]), rounds(longest=longest), STATISTICS)
    costs = [1 + (DRAFT + TOKEN) * g for g in range(MAX_DRAFT_LENGTH + 1)]
    assert table["cost"].tolist() == pytest.approx(costs)


def test_prompts_without_a_call_leave_the_intervals_finite():
    table = predicted_speeds(given([15, 0, 0, 0, 0, 0], [10, 0, 0, 0, 0, 0]), rounds(), STATISTICS)
    assert np.isfinite(table.to_numpy()).all()


def test_rounds_that_are_not_whole_are_left_out():
    rows = [
        {"prompt_id": prompt, "drafted": g, "draft_seconds": 0.5 * g + noise,
         "verify_seconds": 1.0, "other_seconds": 0.25, "begin_seconds": 7.0 + noise if g else 0.0}
        for prompt, noise, lengths in (("a", 0.0, 4), ("short", 9.0, 3), ("b", 0.0, 4))
        for g in range(lengths)
    ]  # fmt: skip
    found = CallSeconds.of_rounds(pd.DataFrame(rows))
    assert found.draft.tolist() == [[0, 0.5, 1, 1.5]] * 2
    assert found.target.tolist() == [[1.25] * 4] * 2
    assert found.begin.tolist() == [7.0] * 2


def test_intervals_hold_what_was_measured_and_come_from_both_sides():
    """Over prompts that differ, over rounds that differ, and none where nothing differs."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(50, 80, 30)
    spread = given(tokens, np.full(30, 40))
    even = given(np.full(30, 60), np.full(30, 40))
    noise = rng.uniform(1, 1.5, (30, MAX_DRAFT_LENGTH + 1))
    noisy = CallSeconds(rounds(30).draft * noise, rounds(30).target * noise, np.zeros(30))
    widths = {}
    for name, of_calls, seconds in (
        ("none", even, rounds(30)), ("prompts", spread, rounds(30)), ("rounds", even, noisy),
    ):  # fmt: skip
        row = predicted_speeds(of_calls, seconds, STATISTICS).iloc[3]
        assert row["speed_ci_low"] <= row["speed"] <= row["speed_ci_high"]
        widths[name] = row["speed_ci_high"] - row["speed_ci_low"]
    assert widths["none"] == pytest.approx(0)
    assert min(widths["prompts"], widths["rounds"]) > 0.01


def test_a_call_is_compared_with_the_one_without_a_draft_of_its_round():
    """A machine that is slow in half of the rounds, and a call that stalls, move no cost."""
    seconds = rounds(20, begin=2.0)
    slow = np.repeat([1.0, 3.0], 10)
    target = seconds.target * slow[:, None]
    target[0, 4] += 100.0
    changing = CallSeconds(seconds.draft * slow[:, None], target, seconds.begin)
    table = predicted_speeds(given([30], [20]), changing, STATISTICS)
    costs = [1 + (DRAFT + TOKEN) * g for g in range(MAX_DRAFT_LENGTH + 1)]
    for column in ("cost", "cost_ci_low", "cost_ci_high"):
        assert table[column].tolist() == pytest.approx(costs)


@pytest.mark.parametrize(
    ("prompts", "number", "unknown"),
    [(1, 5, {"tokens_per_call", "speed"}), (5, 1, {"cost", "speed"}), (2, 2, set())],
)
def test_one_prompt_or_one_round_has_no_interval(prompts, number, unknown):
    found = given(np.arange(15, 15 + prompts), np.full(prompts, 10))
    row = predicted_speeds(found, rounds(number), STATISTICS).iloc[3]
    names = ["tokens_per_call", "cost", "speed"]
    assert {name for name in names if np.isnan(row[f"{name}_ci_low"])} == unknown
    assert {name for name in names if np.isnan(row[f"{name}_ci_high"])} == unknown


def test_few_rounds_widen_the_interval_of_a_cost():
    """By the rounds, however many prompts there are."""
    rng = np.random.default_rng(0)
    target = rng.uniform(1, 2, (4, MAX_DRAFT_LENGTH + 1))
    seconds = CallSeconds(np.zeros((4, MAX_DRAFT_LENGTH + 1)), target, np.zeros(4))
    statistics = STATISTICS._replace(resamples=2000)
    row = predicted_speeds(given(np.full(1000, 15), np.full(1000, 10)), seconds, statistics).iloc[4]
    drawn = seconds.drawn_costs(statistics).target
    costs = np.sort(drawn[:, 4] / drawn[:, 0])
    assert student_factor(0.95, 4) > 3  # so nearly all draws lie inside
    assert row["cost_ci_low"] <= costs[2]
    assert row["cost_ci_high"] >= costs[-3]


def test_prediction_is_what_a_loop_takes_where_acceptance_comes_in_runs():
    """An accepted token is likely to be followed by another, so rates by position mislead."""
    rng = np.random.default_rng(1)
    steps = 50_000
    changes = rng.random(steps) < 0.2
    accepted = np.cumsum(changes) % 2 == 0
    table = predicted_speeds(counted(accepted, 1), rounds(), STATISTICS).set_index("draft_length")
    for length in (1, 2, 3, MAX_DRAFT_LENGTH):
        at, calls = 1, 0
        while at < steps:  # the loop itself
            right = 0
            while right < length and at + right < steps and accepted[at + right]:
                right += 1
            at += right + 1
            calls += 1
        assert table["tokens_per_call"][length] == (steps - 1) / calls
        seconds = calls * (1 + (DRAFT + TOKEN) * length)
        assert table["speed"][length] == pytest.approx((steps - 1) / seconds)


def test_the_calls_that_runs_made_are_predicted_from_their_own_lengths():
    """Two answers, whose last calls are cut."""
    passes = pd.DataFrame(
        {"prompt_id": prompt, "drafted": g, "draft_seconds": DRAFT * g, "verify_seconds": 0.75,
         "other_seconds": 0.25 + TOKEN * g, "begin_seconds": 3.0 if g else 0.0}
        for prompt in "ab" for g in range(MAX_DRAFT_LENGTH + 1)
    )  # fmt: skip
    drafters = ["none", "model", "prompt_lookup", "model", "model"]
    runs = pd.DataFrame(
        {
            "drafter": drafters,
            "rule": [None, GREEDY, GREEDY, GREEDY, "mars"],
            "draft_length": [0, 3, 3, MAX_DRAFT_LENGTH + 1, 3],
            "temperature": 0.0,
            "tree": None,
        }
    )
    drafted = [3, 3, 1, 3, 0]
    emitted = [4, 1, 2, 2, 1]
    calls = pd.DataFrame({"drafted": drafted, "emitted": emitted})
    call_seconds = pd.concat([calls.assign(run=run) for run in range(1, 5)], ignore_index=True)
    answers = pd.DataFrame({"run": np.repeat(np.arange(5), 2), "prompt_id": ["a", "b"] * 5})
    frames = {"answers": answers, "calls": calls, "answer_seconds": answers}
    decoded = Decoded(
        "T", "D", runs, call_seconds=call_seconds, trajectory=pd.DataFrame(), size={}, rules={},
        passes=passes, **frames,
    )  # fmt: skip
    found = speeds_of_timed_calls(decoded)
    seconds = sum(1 + (DRAFT + TOKEN) * g for g in drafted) + 2 * 3.0
    assert found[1] == pytest.approx(sum(emitted) / seconds)
    assert found.drop(1).isna().all()

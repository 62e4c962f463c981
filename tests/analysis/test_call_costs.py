"""Speed by draft length: counted calls, seconds of calls, and a simulation of both."""

import numpy as np
import pandas as pd
import pytest

from analysis.decoding.call_costs import LONGEST, CallSeconds, PositionCounts, predicted_speeds
from analysis.statistics.bootstrap import Resampling
from analysis.statistics.trajectories import Trajectories, acceptance_by_position, calls_along

STATISTICS = Resampling(200, 0.95, 0)
DRAFT, TOKEN = 0.5, 0.1  # seconds of a drafted token, and by which it lengthens the target's pass


def counts(tested, accepted, drafting=None):
    """Counts of one prompt."""
    tested, accepted = np.array([tested]), np.array([accepted])
    calls = tested[:, 0]
    return PositionCounts(tested, accepted, calls, calls if drafting is None else drafting)


def rounds(number=3, longest=LONGEST):
    """Rounds without noise: a call of g tokens takes 1 + 0.1 g seconds, and 0.5 g of drafting."""
    lengths = np.tile(np.arange(longest + 1.0), (number, 1))
    return CallSeconds(DRAFT * lengths, 1 + TOKEN * lengths)


def test_counts_are_those_of_the_calls_by_prompt():
    rng = np.random.default_rng(0)
    accepted = rng.random(60) < 0.7
    position = np.tile(np.arange(20), 3)
    calls = calls_along(accepted, Trajectories.from_positions(position), LONGEST)
    found = PositionCounts.of_calls(3, calls.answer_index, calls.tested, calls.accepted)
    tested, taken = acceptance_by_position(calls.tested, calls.accepted)
    width = len(tested)
    assert found.tested.sum(0)[:width].tolist() == tested.tolist()
    assert found.accepted.sum(0)[:width].tolist() == taken.tolist()
    assert not found.tested[:, width:].any()
    first = calls.answer_index == 0
    assert found.tested[0, 0] == np.sum(calls.tested[first] >= 1)
    of_prompts = np.bincount(calls.answer_index).tolist()
    assert found.calls.tolist() == of_prompts == found.drafting.tolist()


def test_a_prompt_without_calls_keeps_its_place():
    found = PositionCounts.of_calls(3, np.array([1]), np.array([2]), np.array([1]), np.array([0]))
    assert found.calls.tolist() == [0, 1, 0]
    assert found.drafting.tolist() == [0, 0, 0]
    assert found.tested[1].tolist() == [1, 1] + [0] * (LONGEST - 2)


def test_speed_is_tokens_over_cost():
    table = predicted_speeds(counts([100, 60, 30], [60, 30, 6]), rounds(), STATISTICS)
    table = table.set_index("draft_length")
    tokens = [1, 1.6, 1.9, 1.96, 1.972]  # 0.6, 0.5, 0.2, and 0.2 again
    assert table["tokens_per_call"].tolist()[:5] == pytest.approx(tokens)
    costs = [1 + (DRAFT + TOKEN) * g for g in range(LONGEST + 1)]
    assert table["cost"].tolist() == pytest.approx(costs)
    assert table["speed"].tolist() == pytest.approx(table["tokens_per_call"] / costs)
    bound = table["tokens_per_call"] / (1 + DRAFT * table.index)
    assert table["memory_bound"].tolist() == pytest.approx(bound.tolist())


def test_calls_without_a_draft_cost_a_pass_and_give_a_token():
    """One call in four drafts: three passes of one token, and one of the draft."""
    of_calls = counts([25, 20], [20, 10], drafting=np.array([25]))
    looked_up = PositionCounts(of_calls.tested, of_calls.accepted, np.array([100]), np.array([25]))
    table = predicted_speeds(looked_up, rounds(), STATISTICS, draft_seconds=0.01)
    two = table.set_index("draft_length").loc[2]
    tokens = 75 * 1 + 25 * (1 + 0.8 + 0.8 * 0.5)
    seconds = 75 * 1 + 25 * (1 + 2 * TOKEN + 0.01)
    assert two["tokens_per_call"] == pytest.approx(tokens / 100)
    assert two["cost"] == pytest.approx(seconds / 100)
    assert two["speed"] == pytest.approx(tokens / seconds)
    assert two["memory_bound"] == pytest.approx(tokens / (75 + 25 * 1.01))


@pytest.mark.parametrize("longest", [0, 1, 5, LONGEST])
def test_costs_beyond_the_longest_measured_go_on_as_they_are(longest):
    table = predicted_speeds(counts([9], [5]), rounds(longest=longest), STATISTICS)
    slope = (DRAFT + TOKEN) if longest else 0.0
    assert table["cost"].tolist() == pytest.approx([1 + slope * g for g in range(LONGEST + 1)])


def test_a_position_never_tested_is_as_the_one_before():
    table = predicted_speeds(counts([10, 0, 0], [5, 0, 0]), rounds(), STATISTICS)
    assert table["tokens_per_call"].iloc[3] == pytest.approx(1 + 0.5 + 0.5**2 + 0.5**3)


def test_prompts_without_a_call_leave_the_intervals_finite():
    tested = np.concatenate([np.array([[10]]), np.zeros((5, 1), dtype=int)])
    found = PositionCounts(tested, tested // 2, tested[:, 0], tested[:, 0])
    table = predicted_speeds(found, rounds(), STATISTICS)
    assert np.isfinite(table.to_numpy()).all()


def test_rounds_that_are_not_whole_are_left_out():
    rows = [
        {"prompt_id": prompt, "drafted": g, "draft_seconds": 0.5 * g + noise,
         "verify_seconds": 1.0, "other_seconds": 0.25}
        for prompt, noise, lengths in (("a", 0.0, 4), ("short", 9.0, 3), ("b", 0.0, 4))
        for g in range(lengths)
    ]  # fmt: skip
    found = CallSeconds.of_rounds(pd.DataFrame(rows))
    assert found.draft.tolist() == [[0, 0.5, 1, 1.5]] * 2
    assert found.target.tolist() == [[1.25] * 4] * 2


def test_intervals_hold_what_was_measured_and_come_from_both_sides():
    """Over prompts that differ, over rounds that differ, and none where nothing differs."""
    rng = np.random.default_rng(0)
    tested = np.full((30, 1), 40)
    accepted = rng.binomial(40, rng.uniform(0.3, 0.9, size=(30, 1)))
    spread = PositionCounts(tested, accepted, tested[:, 0], tested[:, 0])
    even = PositionCounts(tested, tested // 2, tested[:, 0], tested[:, 0])
    noise = rng.uniform(1, 1.5, (30, LONGEST + 1))
    noisy = CallSeconds(rounds(30).draft * noise, rounds(30).target * noise)
    widths = {}
    for name, of_calls, seconds in (
        ("none", even, rounds(30)), ("prompts", spread, rounds(30)), ("rounds", even, noisy),
    ):  # fmt: skip
        row = predicted_speeds(of_calls, seconds, STATISTICS).iloc[3]
        assert row["speed_ci_low"] <= row["speed"] <= row["speed_ci_high"]
        widths[name] = row["speed_ci_high"] - row["speed_ci_low"]
    assert widths["none"] == pytest.approx(0)
    assert min(widths["prompts"], widths["rounds"]) > 0.01


def test_prediction_is_what_a_simulated_loop_takes():
    """Calls of three tokens, each accepted with its own probability, on a clock."""
    rng = np.random.default_rng(1)
    rates, calls = np.array([0.8, 0.6, 0.5]), 200_000
    passed = np.cumprod(rng.random((calls, 3)) < rates, axis=1)
    accepted = passed.sum(1)
    tested = np.minimum(accepted + 1, 3)
    found = PositionCounts.of_calls(1, np.zeros(calls, dtype=int), tested, accepted)
    table = predicted_speeds(found, rounds(), STATISTICS).set_index("draft_length")
    for length in (1, 2, 3):
        emitted = calls + passed[:, :length].sum()
        seconds = calls * (1 + (DRAFT + TOKEN) * length)
        assert table["speed"][length] == pytest.approx(emitted / seconds, rel=0.01)

"""Run lengths and calls of limited drafts, against walking along the trajectories."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from analysis.statistics.bootstrap import PromptBootstrap
from analysis.statistics.run_lengths import run_lengths, with_censored
from analysis.statistics.trajectories import CENSORED, Trajectories, calls_along, count_calls

NAMES = ("per_call", "mean_run", "random_100")


def positions(lengths: list[int]) -> np.ndarray:
    return np.concatenate([np.arange(n) for n in lengths])


def walk(trajectories: list[list[bool]]) -> dict[str, float]:
    """The estimators, step by step."""
    segments = runs = certified = steps = 0
    from_any = []
    for flags in trajectories:
        open_segment = in_run = False
        for at, flag in enumerate(flags):
            steps, open_segment = steps + 1, True
            certified += flag
            if flag and not in_run:
                runs += 1
            in_run = flag
            if not flag:  # the correction ends the verification call
                segments, open_segment = segments + 1, False
            from_any.append(len(list(itertools.takewhile(bool, flags[at : at + 100]))))
        segments += open_segment
    return {
        "per_call": steps / segments,
        "mean_run": certified / runs if runs else 0.0,
        "random_100": sum(from_any) / steps,
    }


def estimate(flags: list[list[bool]], resamples: int = 5) -> pd.DataFrame:
    values = np.concatenate([np.where(part, 0.5, 0.05) for part in flags])
    trajectories = Trajectories.from_positions(positions([len(part) for part in flags]))
    bootstrap = PromptBootstrap(trajectories.prompts, resamples, 0.95, seed=0)
    return run_lengths(values, [0.1], trajectories, bootstrap)


def test_certified_is_strict_and_an_empty_region_is_always_certified():
    trajectories = Trajectories.from_positions(np.arange(4))
    bootstrap = PromptBootstrap(trajectories.prompts, 5, 0.95, seed=0)
    values = np.array([0.1, np.inf, 0.2, np.inf])
    found = run_lengths(values, [0.1, 0.2, 9.0], trajectories, bootstrap)
    assert found[found["estimator"] == "per_call"]["failures"].tolist() == [1, 2, 2]


def test_estimates_and_their_bootstrap_equal_walks_along_resamples_written_out():
    rng = np.random.default_rng(5)
    flags = [list(rng.random(n) < 0.9) for n in (12, 3, 12, 7, 12, 1, 12)]
    found = estimate(flags, resamples=80).set_index("estimator")
    bootstrap = PromptBootstrap(np.repeat(np.arange(7), [len(part) for part in flags]), 80, 0.95, 0)
    drawn = [
        walk([part for part, n in zip(flags, times, strict=True) for _ in range(int(n))])
        for times in bootstrap.weights
    ]
    for name in NAMES:
        assert found.loc[name, "value"] == walk(flags)[name]
        ordered = sorted(draw[name] for draw in drawn)
        cut = math.ceil(0.025 * len(ordered) - 1e-9)
        assert found.loc[name, "ci_low"] == ordered[cut - 1]
        assert found.loc[name, "ci_high"] == ordered[-cut]
    assert (found["failing_prompts"] == sum(not all(part) for part in flags)).all()
    assert (found["failures"] == sum(part.count(False) for part in flags)).all()


def test_a_run_from_a_random_position_is_capped_and_cut_where_the_trajectory_ends():
    """128 certified steps: 28 starts with 100 steps behind, then 100, 99, ... 1; 61.3 in all."""
    found = estimate([[True] * 128]).set_index("estimator").loc["random_100"]
    assert found["value"] == (28 * 100 + 5050) / 128 == pytest.approx(61.3, abs=0.05)
    assert found["cut"] == 99 / 128
    (row,) = with_censored(found.to_frame().T).to_dict("records")
    assert row["censored"]
    halves = estimate([[True] * 30 + [False] * 98, [False] * 128]).set_index("estimator")
    assert halves.loc["random_100", "value"] == 15 * 31 / 256
    assert halves.loc["random_100", "cut"] == 0


@pytest.mark.parametrize(("failures", "share"), [(9, 0.1), (8, 1 / 9), (0, 1.0)])
def test_lengths_that_ends_of_trajectories_cut_are_lower_bounds(failures, share):
    """One call in ten cut by an end is none too many, one in nine is."""
    flags = [True] * 128
    flags[0 : 3 * failures : 3] = [False] * failures
    table = with_censored(estimate([flags])).set_index("estimator")
    starts = 128 - max(29, 3 * failures - 2)  # behind the last failure, less than 100 from the end
    cut = [share, 1 / max(failures, 1), starts / 128]
    assert table["cut"].tolist() == pytest.approx(cut)
    assert table["censored"].tolist() == [share > CENSORED, True, True]
    assert not estimate([[*flags[:-1], False]])["cut"].any()


@pytest.mark.parametrize("position", [[1, 2], [0, 2], [0, 1, 1], []])
def test_steps_out_of_order_are_refused(position):
    with pytest.raises(ValueError, match=r"step 0|in order"):
        Trajectories.from_positions(np.array(position))


LENGTHS = (6, 1, 4, 7)
POSITION = np.concatenate([np.arange(n) for n in LENGTHS])
STEPS = Trajectories.from_positions(POSITION)


def walked(by_depth: np.ndarray, gamma: int) -> list[tuple[int, int]]:
    """Tested and accepted tokens of each call of one answer, place by place, by depth."""
    depths, tokens = by_depth.shape
    at, calls = 1, []
    while at < tokens:
        kept = 0
        while kept < gamma and at + kept < tokens and by_depth[min(kept, depths - 1), at + kept]:
            kept += 1
        calls.append((min(kept + 1, gamma, tokens - at), kept))
        at += kept + 1
    return calls


@pytest.mark.parametrize("depths", [1, 2, 3, 5])
@pytest.mark.parametrize("gamma", [1, 2, 3, 4, 9])
def test_place_i_of_a_draft_is_judged_at_depth_i(depths, gamma):
    """Behind the deepest one that was measured it stands for all."""
    accepted = np.random.default_rng(depths).random((depths, len(POSITION))) < 0.6
    own = [walked(accepted[:, STEPS.prompts == p], gamma) for p in range(len(LENGTHS))]
    prompts, tested, kept, emitted = calls_along(accepted, STEPS, gamma)
    assert list(zip(tested, kept, strict=True)) == list(itertools.chain(*own))
    assert np.bincount(prompts, emitted, len(LENGTHS)).tolist() == [n - 1 for n in LENGTHS]
    counts = count_calls(accepted, STEPS, gamma)
    assert counts.calls.tolist() == list(map(len, own))
    assert counts.tokens.tolist() == [n - 1 for n in LENGTHS]  # prefill emits the first
    unlimited = count_calls(accepted, STEPS, None)
    longest = [walked(accepted[:, STEPS.prompts == p], 99) for p in range(len(LENGTHS))]
    assert unlimited.calls.tolist() == list(map(len, longest))
    emitted = [sum(kept + 1 for _, kept in calls) for calls in longest]
    ends = [whole == n for whole, n in zip(emitted, LENGTHS, strict=True)]
    assert unlimited.cut.tolist() == ends


def test_steps_certain_at_every_depth_bound_the_calls_of_any_drafter():
    """Of every choice of what else is accepted, at 2 depths of an answer of 4 tokens."""
    steps = Trajectories.from_positions(np.arange(4))
    for certain in itertools.product([False, True], repeat=4):
        most = count_calls(np.array(certain), steps, 3).calls.item()
        for choice in itertools.product([False, True], repeat=8):
            accepted = np.array(choice).reshape(2, 4) | np.array(certain)
            assert count_calls(accepted, steps, 3).calls.item() <= most

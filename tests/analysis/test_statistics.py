"""The bootstrap over prompts against resampling in full; run lengths against walking."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from analysis.decoding.speed import speedups
from analysis.statistics import bootstrap
from analysis.statistics.bootstrap import PromptBootstrap, simultaneous
from analysis.statistics.run_lengths import run_lengths, with_censored
from analysis.statistics.trajectories import CENSORED, Trajectories, calls_along, count_calls

LENGTHS = [1, 7, 128, 40, 3, 64, 128]
LEVELS = [0.05, 0.25, 0.5, 0.975]


def clustered(seed, share_infinite=0.2):
    """Values with ties and +inf, and the prompt of each."""
    rng = np.random.default_rng(seed)
    prompts = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    values = np.round(rng.beta(1, 2, size=len(prompts)) + 0.3 * rng.random(7)[prompts], 2)
    values[rng.random(len(prompts)) < share_infinite] = np.inf
    return values, prompts


def in_full(values, prompts, times):
    """The values of one resample, written out."""
    parts = [values[prompts == at] for at in range(len(times)) for _ in range(int(times[at]))]
    return np.concatenate(parts)


def smallest_reached(values, level):
    """The smallest value that a share `level` of the values does not exceed, by definition."""
    return next(x for x in sorted(values) if np.mean(values <= x) >= level - 1e-12)


def test_quantiles_and_means_agree_with_resamples_written_out():
    values, prompts = clustered(0)
    sampled = PromptBootstrap(prompts, 60, 0.95, seed=3)
    points, draws = sampled.quantiles(values, LEVELS)
    assert points.tolist() == [smallest_reached(values, level) for level in LEVELS]
    assert np.isinf(points[-1])
    for times, quantiles in zip(sampled.weights, draws, strict=True):
        resample = in_full(values, prompts, times)
        assert quantiles.tolist() == [smallest_reached(resample, level) for level in LEVELS]
    values, prompts = clustered(1, share_infinite=0.0)
    found = sampled.ratio_interval(values)
    drawn = sorted(in_full(values, prompts, times).mean() for times in sampled.weights)
    # another order of addition; with 7 prompts the outermost of 60 draws end the interval
    assert found == pytest.approx((values.mean(), drawn[0], drawn[-1]), rel=1e-13)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("prompts", [2, 6, 10, 30, 8192])
def test_few_prompts_widen_an_interval_as_students_t_does(prompts, confidence):
    """Hesterberg's adjusted level: the t interval of a mean, as quantiles of normal draws.

    The standard error of the draws lacks the factor sqrt(n / (n - 1)), as resamples draw from the
    sample with its variance over n.
    """
    wider = math.sqrt(prompts / (prompts - 1)) * stats.t.ppf((1 + confidence) / 2, prompts - 1)
    level = stats.norm.cdf(-wider)
    sampled = PromptBootstrap(np.arange(prompts), 1000, confidence, 0)
    assert sampled.tail == pytest.approx(level, rel=1e-9)
    draws = np.random.default_rng(0).permutation(1000.0 * np.arange(1, 1001))
    cut = max(1, math.ceil(1000 * level - 1e-9))
    assert sampled.interval(draws[:, None]) == (1000 * cut, 1000 * (1001 - cut))
    # the simultaneous interval of one quantity: its pointwise one, widened by the same factor
    plain = stats.norm.ppf((1 + confidence) / 2)
    draws = np.random.default_rng(1).normal(size=(400, 1))
    low, high = simultaneous(np.zeros(1), draws, confidence, prompts)
    wide, _ = simultaneous(np.zeros(1), draws, confidence, 10**9)
    assert high == -low
    assert low / wide == pytest.approx(wider / plain, rel=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_quantity_without_a_value_leaves_the_others_their_intervals(value):
    draws = np.random.default_rng(0).normal(size=(200, 3))
    ends = simultaneous(np.array([0.0, value, 0.0]), draws, 0.95, 10)
    alone = simultaneous(np.zeros(2), draws[:, [0, 2]], 0.95, 10)
    for end, wanted in zip(ends, alone, strict=True):
        np.testing.assert_allclose(end[[0, 2]], wanted, rtol=1e-12)
        assert end[1] == pytest.approx(value, nan_ok=True)


def test_one_prompt_has_no_interval():
    """Nor have its steps, however many; two have one."""
    one = PromptBootstrap(np.zeros(50, int), 40, 0.95, 0)
    values = np.arange(50.0)
    for ends in (one.ratio_interval(values)[1:], one.interval(one.quantiles(values, LEVELS)[1])):
        assert np.isnan(ends).all()
    assert one.ratio_interval(values)[0] == values.mean()
    steps = Trajectories.from_positions(np.arange(50))
    table = run_lengths(values, [10.0], steps, one)
    assert table[["ci_low", "ci_high"]].isna().all(axis=None)
    assert table["value"].notna().all()
    found = fast(np.full((1, 2), 0.3), 20)
    assert found[0].tolist() == [1, 1, 1]  # the target alone
    assert np.isnan(found[1:, 1:]).all()
    assert found[1:, 0] == pytest.approx(math.exp(0.3))
    assert np.isfinite(fast(np.full((2, 2), 0.3), 20)).all()


def test_many_resamples_draw_groups_of_prompts(monkeypatch):
    """So that memory is bounded; `ALWAYS_DRAWN` prompts are drawn one by one all the same."""
    monkeypatch.setattr(bootstrap, "MAX_WEIGHTS", 400)
    monkeypatch.setattr(bootstrap, "ALWAYS_DRAWN", 5)
    sizes = [PromptBootstrap(np.arange(30), n, 0.9, 0).weights.shape for n in (10, 20, 80, 200)]
    assert sizes == [(10, 30), (20, 20), (80, 5), (200, 5)]


def test_answers_to_one_prompt_are_drawn_together():
    """Pieces or choices of an answer count as steps of one prompt."""
    values, prompts = clustered(2)
    together = np.array([0, 1, 1, 2, 0, 2, 2])
    merged = np.argsort(together[prompts], kind="stable")
    one = PromptBootstrap(prompts, 60, 0.95, 3, prompt_of_answer=together)
    two = PromptBootstrap(together[prompts][merged], 60, 0.95, 3)
    assert one.count == two.count == 3
    pairs = zip(one.quantiles(values, LEVELS), two.quantiles(values[merged], LEVELS), strict=True)
    assert all(np.array_equal(*pair) for pair in pairs)


def test_of_very_many_prompts_groups_are_drawn(monkeypatch):
    """The intervals stay: of 1,000 groups of 20 prompts."""
    values = np.random.default_rng(0).exponential(size=40_000)
    prompts = np.repeat(np.arange(20_000), 2)
    monkeypatch.setattr(bootstrap, "MAX_GROUPS", 1000)
    grouped = PromptBootstrap(prompts, 1000, 0.95, 0)
    assert (grouped.count, grouped.weights.shape) == (20_000, (1000, 1000))
    assert (grouped.sums(grouped.answer_steps) == 40_000).all()
    error = values.reshape(-1, 2).mean(axis=1).std() / math.sqrt(20_000)
    value, low, high = grouped.ratio_interval(values)
    assert value == pytest.approx(values.mean())
    assert (high - low) / error == pytest.approx(2 * 1.96, rel=0.1)


def test_limits_leave_out_what_is_undefined_and_keep_infinity():
    sampled = PromptBootstrap(np.arange(3), 10, 0.8, seed=0)
    draws = np.column_stack(
        [np.r_[np.arange(1.0, 10), np.nan], np.r_[np.ones(8), np.inf, np.inf], np.full(10, np.nan)]
    )
    low, high = sampled.interval(draws)
    assert (low[0], high[0], low[1], high[1]) == (1, 9, 1, math.inf)
    assert np.isnan([low[2], high[2]]).all()


def test_an_infinite_prompt_makes_the_resamples_infinite_that_it_is_in():
    sampled = PromptBootstrap(np.arange(5), 50, 0.9, 0)
    sums, rest = (sampled.sums(np.array([1.0, x, 2.0, 3.0, 4.0])) for x in (np.inf, 0.0))
    drawn = sampled.weights[:, 1] > 0
    assert np.isinf(sums[drawn]).all()
    assert (sums[~drawn] == rest[~drawn]).all()


# simultaneous intervals of the fastest of several methods


def plainly(estimates, draws, confidence, prompts):
    """The maximum statistic, quantity by quantity and resample by resample."""
    spreads = [np.std([row[m] for row in draws]) for m in range(len(estimates))]
    worst = sorted(
        max(abs(row[m] - estimates[m]) / spreads[m] for m in range(len(estimates))) for row in draws
    )
    c = next(value for at, value in enumerate(worst, 1) if at >= confidence * len(worst) - 1e-9)
    level = (1 + confidence) / 2
    c *= math.sqrt(prompts / (prompts - 1)) * stats.t.ppf(level, prompts - 1)
    c /= stats.norm.ppf(level)
    return [(e - c * s, e + c * s) for e, s in zip(estimates, spreads, strict=True)]


def test_the_ends_are_those_of_the_plain_twin():
    rng = np.random.default_rng(0)
    for methods in (1, 2, 5):
        mixed = rng.normal(size=(methods, methods))
        estimates, draws = rng.normal(size=methods), rng.normal(size=(40, methods)) @ mixed
        for confidence, prompts in ((0.5, 2), (0.95, 30), (0.99, 6)):
            ends = simultaneous(estimates, draws, confidence, prompts)
            wanted = plainly(estimates, draws, confidence, prompts)
            np.testing.assert_allclose(np.transpose(ends), wanted, rtol=1e-12)
    inside = (ends[0] <= draws) & (draws <= ends[1])
    assert inside.all()  # 99 % of 40 are all resamples


def test_quantities_without_spread_or_value_leave_the_others_alone():
    rng = np.random.default_rng(1)
    draws = rng.normal(size=(50, 2))
    alone = np.transpose(simultaneous(np.zeros(2), draws, 0.9, 30))
    more = np.column_stack([draws, np.full(50, 3.0), np.full(50, np.nan)])
    both = np.transpose(simultaneous(np.array([0.0, 0.0, 3.0, np.nan]), more, 0.9, 30))
    np.testing.assert_array_equal(both[:2], alone)
    assert both[2].tolist() == [3.0, 3.0]
    assert np.isnan(both[3]).all()
    gaps = np.where(np.arange(50)[:, None] % 2, more, np.nan)  # undefined in every other resample
    ends = np.transpose(simultaneous(np.array([0, 0, 3, np.nan]), gaps, 0.9, 30))
    assert np.isfinite(ends[:3]).all()


def fast(logs, resamples, *families):
    """The target alone takes 1 s a prompt, method m exp(-logs[prompt, m]); (P, M)."""
    prompts, methods = logs.shape
    seconds = np.column_stack([np.ones(prompts), np.exp(-logs)])
    sampled = PromptBootstrap(np.arange(prompts), resamples, 0.95, 0)
    together = families or [list(range(1, methods + 1))]
    alone = [0] * (methods + 1)
    return np.transpose(speedups(seconds, np.ones_like(seconds), alone, together, sampled))


def test_methods_of_another_temperature_widen_nothing():
    logs = np.random.default_rng(3).normal(0.1, 0.2, size=(30, 6))
    every, two = fast(logs, 300), fast(logs[:, :2], 300)
    np.testing.assert_allclose(fast(logs, 300, [1, 2], [3, 4, 5, 6])[:3], two, rtol=1e-12)
    assert every[0].tolist() == [1, 1, 1]  # the target alone
    assert np.ptp(every[1]) > np.ptp(two[1])


@pytest.mark.thorough
@pytest.mark.parametrize("methods", [1, 2, 3, 6, 12])
def test_the_interval_of_the_fastest_covers_and_useless_methods_are_not_sure(methods):
    """Equally fast methods, 30 prompts: pointwise intervals cover 75 % of the fastest of 12."""
    rng = np.random.default_rng(methods)
    runs, covered, false = 400, 0, 0
    for _ in range(runs):
        noise = 0.1 * rng.normal(size=(30, 1)) + 0.15 * rng.normal(size=(30, methods))
        logs = noise + (0.1**2 + 0.15**2) / 2  # the mean of the seconds is that of the target, 1
        table = fast(logs, 400)[1:]
        _, low, high = table[table[:, 0].argmax()]
        covered += low <= 1 <= high
        false += (table[:, 1] > 1).any()
    assert covered / runs > 0.90  # 0.92 to 0.96 here; few prompts cost 2 points, the error is 1.3
    assert false / runs < 0.10  # pointwise: 0.04, 0.09, 0.10, 0.15, 0.31


def positions(lengths):
    return np.concatenate([np.arange(n) for n in lengths])


def walk(trajectories):
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


def estimate(flags, resamples=5):
    values = np.concatenate([np.where(part, 0.5, 0.05) for part in flags])
    trajectories = Trajectories.from_positions(positions([len(part) for part in flags]))
    bootstrap = PromptBootstrap(trajectories.answer_index, resamples, 0.95, seed=0)
    return run_lengths(values, [0.1], trajectories, bootstrap)


def test_certified_is_strict_and_an_empty_region_is_always_certified():
    trajectories = Trajectories.from_positions(np.arange(4))
    bootstrap = PromptBootstrap(trajectories.answer_index, 5, 0.95, seed=0)
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
    for name in ("per_call", "mean_run", "random_100"):
        assert found.loc[name, "value"] == walk(flags)[name]
        ordered = sorted(draw[name] for draw in drawn)
        assert found.loc[name, "ci_low"] == ordered[0]  # 7 prompts: 0.4 % of 80 draws
        assert found.loc[name, "ci_high"] == ordered[-1]
    assert (found["failing_prompts"] == sum(not all(part) for part in flags)).all()
    assert (found["failures"] == sum(part.count(False) for part in flags)).all()
    steps = Trajectories.from_positions(np.concatenate([np.arange(len(part)) for part in flags]))
    index = steps.answer_index
    of_two = PromptBootstrap(index, 5, 0.95, 0, np.array([0, 0, 0, 0, 1, 1, 1]))
    by_prompt = run_lengths(np.concatenate(flags).astype(float), [0.5], steps, of_two)
    assert (by_prompt["prompts"] == 2).all()
    assert (by_prompt["failing_prompts"] == found["failing_prompts"].to_numpy()).all()  # answers


def test_a_run_from_a_random_position_is_capped_and_cut_where_the_trajectory_ends():
    """128 certified steps: 28 starts with 100 steps behind, then 100, 99, ... 1; 61.3 in all."""
    found = estimate([[True] * 128]).set_index("estimator").loc["random_100"]
    assert found["value"] == (28 * 100 + 5050) / 128
    assert found["cut"] == 99 / 128
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


@pytest.mark.parametrize("position", [[1, 2], [0, 2], []])
def test_steps_out_of_order_are_refused(position):
    with pytest.raises(ValueError, match=r"step 0|in order"):
        Trajectories.from_positions(np.array(position))


SIZES = (6, 1, 4, 7)
POSITION = np.concatenate([np.arange(n) for n in SIZES])
STEPS = Trajectories.from_positions(POSITION)


def walked(by_depth, gamma):
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


@pytest.mark.parametrize("depths", [1, 2, 5])
@pytest.mark.parametrize("gamma", [1, 3, 9, None])
def test_place_i_of_a_draft_is_judged_at_depth_i(depths, gamma):
    """Behind the deepest one that was measured it stands for all."""
    accepted = np.random.default_rng(depths).random((depths, len(POSITION))) < 0.6
    own = [walked(accepted[:, STEPS.answer_index == p], gamma or 99) for p in range(len(SIZES))]
    prompts, tested, kept, emitted = calls_along(accepted, STEPS, gamma or 99)
    assert list(zip(tested, kept, strict=True)) == list(itertools.chain(*own))
    assert np.bincount(prompts, emitted, len(SIZES)).tolist() == [n - 1 for n in SIZES]
    counts = count_calls(accepted, STEPS, gamma)
    assert counts.calls.tolist() == list(map(len, own))
    assert counts.tokens.tolist() == [n - 1 for n in SIZES]  # prefill emits the first
    if gamma is None:  # whether the end of the answer cut the last call
        whole = [sum(kept + 1 for _, kept in calls) for calls in own]
        assert (counts.cut == np.equal(whole, SIZES)).all()


def test_steps_certain_at_every_depth_bound_the_calls_of_any_drafter():
    """Of every choice of what else is accepted, at 2 depths of an answer of 4 tokens."""
    steps = Trajectories.from_positions(np.arange(4))
    for certain in itertools.product([False, True], repeat=4):
        most = count_calls(np.array(certain), steps, 3).calls.item()
        for choice in itertools.product([False, True], repeat=8):
            accepted = np.array(choice).reshape(2, 4) | np.array(certain)
            assert count_calls(accepted, steps, 3).calls.item() <= most

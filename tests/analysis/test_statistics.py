"""Quantiles, means and the bootstrap over prompts, against resampling in full."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.report.text import few_notes
from analysis.statistics import bootstrap
from analysis.statistics.bootstrap import FEW_PROMPTS, PromptBootstrap, summarise

LENGTHS = [1, 7, 128, 40, 3, 64, 128]
LEVELS = [0.05, 0.25, 0.5, 0.975]


def clustered(seed: int, share_infinite: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    """Values with ties and +inf, and the prompt of each."""
    rng = np.random.default_rng(seed)
    prompts = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    values = np.round(rng.beta(1, 2, size=len(prompts)) + 0.3 * rng.random(7)[prompts], 2)
    values[rng.random(len(prompts)) < share_infinite] = np.inf
    return values, prompts


def in_full(values: np.ndarray, prompts: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The values of one resample, written out."""
    parts = [values[prompts == at] for at in range(len(times)) for _ in range(int(times[at]))]
    return np.concatenate(parts)


def smallest_reached(values: np.ndarray, level: float) -> float:
    """The smallest value that a share `level` of the values does not exceed, by definition."""
    return next(x for x in sorted(values) if np.mean(values <= x) >= level - 1e-12)


def test_quantiles_and_means_agree_with_resamples_written_out() -> None:
    values, prompts = clustered(0)
    sampled = PromptBootstrap(prompts, 60, 0.95, seed=3)
    points, draws = sampled.quantiles(values, LEVELS)
    assert points.tolist() == [smallest_reached(values, level) for level in LEVELS]
    assert np.isinf(points[-1])
    for times, quantiles in zip(sampled.weights, draws, strict=True):
        resample = in_full(values, prompts, times)
        assert quantiles.tolist() == [smallest_reached(resample, level) for level in LEVELS]
    values, prompts = clustered(1, share_infinite=0.0)
    found = sampled.share(values)
    drawn = sorted(in_full(values, prompts, times).mean() for times in sampled.weights)
    # another order of addition; of 60 draws the second and the last but one end the interval
    assert found == pytest.approx((values.mean(), drawn[1], drawn[-2]), rel=1e-13)


def test_answers_to_one_prompt_are_drawn_together() -> None:
    """Pieces or choices of an answer count as steps of one prompt."""
    values, prompts = clustered(2)
    together = np.array([0, 1, 1, 2, 0, 2, 2])
    merged = np.argsort(together[prompts], kind="stable")
    one = PromptBootstrap(prompts, 60, 0.95, 3, clusters=together)
    two = PromptBootstrap(together[prompts][merged], 60, 0.95, 3)
    assert one.count == two.count == 3
    pairs = zip(one.quantiles(values, LEVELS), two.quantiles(values[merged], LEVELS), strict=True)
    assert all(np.array_equal(*pair) for pair in pairs)
    flags = values > 0.5
    assert one.share(flags) == two.share(flags[merged])
    turned = PromptBootstrap(prompts, 60, 0.95, 3, clusters=np.arange(7)[::-1])
    assert turned.share(flags) == PromptBootstrap(6 - prompts, 60, 0.95, 3).share(flags)


def test_of_very_many_prompts_groups_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interval of a mean stays: of 20,000 prompts and of 1,000 groups of 20."""
    values = np.random.default_rng(0).exponential(size=40_000)
    prompts = np.repeat(np.arange(20_000), 2)
    every = PromptBootstrap(prompts, 1000, 0.95, 0)
    assert every.count == 20_000
    assert every.weights.shape == (1000, bootstrap.MOST_CLUSTERS)
    assert (every.sums(every.steps) != 40_000).any()  # groups of two and of three
    monkeypatch.setattr(bootstrap, "MOST_CLUSTERS", 1000)
    grouped = PromptBootstrap(prompts, 1000, 0.95, 0)
    assert (grouped.sums(grouped.steps) == 40_000).all()
    error = values.reshape(-1, 2).mean(axis=1).std() / math.sqrt(20_000)
    for one in (every, grouped):
        value, low, high = one.share(values)
        assert value == pytest.approx(values.mean())
        assert (high - low) / error == pytest.approx(2 * 1.96, rel=0.1)
        _, draws = one.quantiles(values, [0.5])
        low, high = one.interval(draws)
        # independent values: the median's standard error is 1 / (2 f sqrt(n)), f = 1/2
        assert (high - low)[0] * math.sqrt(40_000) == pytest.approx(2 * 1.96, rel=0.1)


@pytest.mark.parametrize(("count", "least", "most"), [(10, 0.7, 0.87), (FEW_PROMPTS, 0.87, 0.97)])
def test_few_prompts_are_those_whose_intervals_are_too_narrow(
    count: int, least: float, most: float
) -> None:
    """Half of the spread is between prompts: p5 of a normal law, known exactly, at nominal 0.95."""
    rng = np.random.default_rng(0)
    truth = -1.6448536 * math.sqrt(2)
    covered = 0
    for seed in range(300):
        prompts = np.repeat(np.arange(count), 40)
        values = rng.normal(size=count)[prompts] + rng.normal(size=40 * count)
        sampled = PromptBootstrap(prompts, 200, 0.95, seed)
        low, high = sampled.interval(sampled.quantiles(values, [0.05])[1])
        covered += low[0] <= truth <= high[0]
    assert least < covered / 300 < most  # standard error 0.02


def test_limits_leave_out_what_is_undefined_and_keep_infinity() -> None:
    sampled = PromptBootstrap(np.arange(3), 10, 0.8, seed=0)
    draws = np.column_stack(
        [np.r_[np.arange(1.0, 10), np.nan], np.r_[np.ones(8), np.inf, np.inf], np.full(10, np.nan)]
    )
    low, high = sampled.interval(draws)
    assert (low[0], high[0], low[1], high[1]) == (1, 9, 1, math.inf)
    assert np.isnan([low[2], high[2]]).all()


@pytest.mark.parametrize(
    ("prompts", "said"), [([29, 500], "29 prompts"), ([1], "1 prompt,"), ([30, 31], ""), ([], "")]
)
def test_the_least_number_of_prompts_is_named(prompts: list[int], said: str) -> None:
    notes = few_notes(prompts)
    assert bool(notes) == bool(said)
    assert all(said in note for note in notes)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_certificates_are_no_statistic_lies_below_that_of_the_lower_ends(
    seed: int,
) -> None:
    lower, prompts = clustered(seed)
    rng, ceiling = np.random.default_rng(seed), 2.0
    upper = np.where(
        rng.random(len(lower)) < 0.3, np.minimum(lower + rng.random(len(lower)), ceiling), lower
    )
    upper = np.where(np.isinf(lower) | (rng.random(len(lower)) < 0.05), np.inf, upper)
    sampled = PromptBootstrap(prompts, 50, 0.95, seed)
    found = summarise(lower, ceiling, sampled)
    for share in (0.0, 0.3, 0.7, 1.0):
        between = np.minimum(
            upper, np.where(np.isinf(lower), lower, lower + share * rng.random(len(lower)) / 2)
        )
        truth = np.where(rng.random(len(lower)) < share, upper, between)
        for name, exact in summarise(truth, ceiling, sampled).items():
            for end in ("value", "ci_low", "ci_high"):
                assert found[name][end] <= exact[end]


def test_an_infinite_prompt_makes_the_resamples_infinite_that_it_is_in() -> None:
    sampled = PromptBootstrap(np.arange(5), 50, 0.9, 0)
    sums = sampled.sums(np.array([1.0, np.inf, 2.0, 3.0, 4.0]))
    assert (np.isinf(sums) == (sampled.weights[:, 1] > 0)).all()
    assert 0 < np.isinf(sums).sum() < 50
    rest = sampled.sums(np.array([1.0, 0.0, 2.0, 3.0, 4.0]))
    assert (sums[np.isfinite(sums)] == rest[np.isfinite(sums)]).all()

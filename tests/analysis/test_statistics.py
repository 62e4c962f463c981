"""Quantiles, means and the bootstrap over prompts, against resampling in full."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.report.text import few_notes
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
    bootstrap = PromptBootstrap(prompts, 60, 0.95, seed=3)
    points, draws = bootstrap.quantiles(values, LEVELS)
    assert points.tolist() == [smallest_reached(values, level) for level in LEVELS]
    assert np.isinf(points[-1])
    for times, drawn in zip(bootstrap.weights, draws, strict=True):
        resample = in_full(values, prompts, times)
        assert drawn.tolist() == [smallest_reached(resample, level) for level in LEVELS]
    values, prompts = clustered(1, share_infinite=0.0)
    mean, draws = bootstrap.mean(values)
    assert mean == pytest.approx(values.mean(), rel=1e-14)  # another order of addition
    expected = [in_full(values, prompts, times).mean() for times in bootstrap.weights]
    np.testing.assert_allclose(draws, expected, rtol=1e-13)


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
        bootstrap = PromptBootstrap(prompts, 200, 0.95, seed)
        low, high = bootstrap.interval(bootstrap.quantiles(values, [0.05])[1])
        covered += low[0] <= truth <= high[0]
    assert least < covered / 300 < most  # standard error 0.02


def test_limits_leave_out_what_is_undefined_and_keep_infinity() -> None:
    bootstrap = PromptBootstrap(np.arange(3), 10, 0.8, seed=0)
    draws = np.column_stack(
        [np.r_[np.arange(1.0, 10), np.nan], np.r_[np.ones(8), np.inf, np.inf], np.full(10, np.nan)]
    )
    low, high = bootstrap.interval(draws)
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
    bootstrap = PromptBootstrap(prompts, 50, 0.95, seed)
    found = summarise(lower, ceiling, bootstrap)
    for share in (0.0, 0.3, 0.7, 1.0):
        between = np.minimum(
            upper, np.where(np.isinf(lower), lower, lower + share * rng.random(len(lower)) / 2)
        )
        truth = np.where(rng.random(len(lower)) < share, upper, between)
        for name, exact in summarise(truth, ceiling, bootstrap).items():
            for end in ("value", "ci_low", "ci_high"):
                assert found[name][end] <= exact[end]


def test_an_infinite_prompt_makes_the_resamples_infinite_that_it_is_in() -> None:
    bootstrap = PromptBootstrap(np.arange(5), 50, 0.9, 0)
    sums = bootstrap.sums(np.array([1.0, np.inf, 2.0, 3.0, 4.0]))
    assert (np.isinf(sums) == (bootstrap.weights[:, 1] > 0)).all()
    assert 0 < np.isinf(sums).sum() < 50
    rest = bootstrap.sums(np.array([1.0, 0.0, 2.0, 3.0, 4.0]))
    assert (sums[np.isfinite(sums)] == rest[np.isfinite(sums)]).all()

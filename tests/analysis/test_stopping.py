"""Stopping rules: the conformal level's coverage, and counts against a plain walk."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.acceptance.stopping import level, stopped_calls
from analysis.statistics.calls import calls_made
from analysis.statistics.trajectories import Trajectories

LENGTHS = (9, 1, 30, 4)
STEPS = Trajectories.from_positions(np.concatenate([np.arange(n) for n in LENGTHS]))


def walk(accepted: np.ndarray, kept: np.ndarray, gamma: int) -> list[int]:
    """Decode one trajectory."""
    at, counts = 0, [0, 0, 0]
    while at < len(accepted):
        drafted = 0
        while drafted < gamma and at + drafted < len(kept) and kept[at + drafted]:
            drafted += 1
        hits = 0
        while hits < drafted and accepted[at + hits]:
            hits += 1
        counts = [counts[0] + 1, counts[1] + drafted, counts[2] + hits]
        at += hits + 1
    return counts


@pytest.mark.parametrize("gamma", [1, 2, 5, 40])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.8, 1.0])
def test_counts_against_a_plain_walk(gamma: int, share: float) -> None:
    rng = np.random.default_rng(gamma)
    accepted, kept = rng.random(sum(LENGTHS)) < 0.7, rng.random(sum(LENGTHS)) < share
    found = np.stack(stopped_calls(accepted, kept, STEPS, gamma), axis=1)
    for p, counts in enumerate(found.tolist()):
        own = STEPS.prompts == p
        assert counts == walk(accepted[own], kept[own], gamma)
    if share == 1.0:
        calls = calls_made(accepted[:, None], STEPS, gamma)[:, 0]
        assert found[:, 0].tolist() == calls.tolist()
    if share == 0.0:
        assert found.tolist() == [[n, 0, 0] for n in LENGTHS]


def test_an_oracle_wastes_nothing_and_calls_as_seldom() -> None:
    accepted = np.random.default_rng(0).random(sum(LENGTHS)) < 0.6
    blind = stopped_calls(accepted, np.ones_like(accepted), STEPS, 4)
    oracle = stopped_calls(accepted, accepted, STEPS, 4)
    assert (oracle.drafted == oracle.accepted).all()
    assert (blind.drafted > blind.accepted).any()
    np.testing.assert_array_equal(oracle.calls, blind.calls)


def test_the_level_covers_new_prompts_as_often_as_it_says() -> None:
    """19 prompts and one more, drawn again and again: of rank ceil(20 * 0.8) it is 0.8."""
    rng = np.random.default_rng(1)
    steps = Trajectories.from_positions(np.tile(np.arange(5), 19))
    covered = 0
    draws = 4000
    for _ in range(draws):
        scale = rng.exponential(size=(20, 1))  # prompts differ
        kl = scale * rng.exponential(size=(20, 5))
        bound = level(kl[:19].ravel(), steps, share=0.8, confidence=0.8)
        covered += np.mean(kl[19] <= bound) >= 0.8
    assert covered / draws == pytest.approx(0.8, abs=4 * math.sqrt(0.16 / draws))


def test_ranks_at_their_borders() -> None:
    steps = Trajectories.from_positions(np.zeros(9, dtype=int))
    kl = np.arange(1.0, 10.0)
    assert level(kl, steps, 1.0, 0.9) == 9.0  # ceil(10 * 0.9) = 9 of 9
    assert level(kl, steps, 1.0, 0.91) == math.inf
    assert level(kl, steps, 1.0, 0.1) == 1.0
    one = Trajectories.from_positions(np.arange(4))
    values = np.array([0.4, 0.1, np.inf, 0.2])
    found = [level(values, one, share, 0.5) for share in (0.01, 0.25, 0.26, 0.75, 0.76, 1.0)]
    assert found == [0.1, 0.1, 0.2, 0.4, math.inf, math.inf]


@pytest.mark.parametrize(("share", "confidence"), [(0, 0.5), (1.1, 0.5), (0.5, 0), (0.5, 1)])
def test_shares_out_of_range(share: float, confidence: float) -> None:
    with pytest.raises(ValueError, match="is not allowed: give a number"):
        level(np.ones(sum(LENGTHS)), STEPS, share, confidence)
    with pytest.raises(ValueError, match="draft_length=0 is not allowed"):
        stopped_calls(np.ones(44, bool), np.ones(44, bool), STEPS, 0)

"""Calls of drafts of a limited length, against every choice of rejections and a plain walk."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from analysis.statistics.trajectories import Trajectories, calls_made, drafts_made, place_shares

LENGTHS = (6, 1, 4, 7)
POSITION = np.concatenate([np.arange(n) for n in LENGTHS])
STEPS = Trajectories.from_positions(POSITION)


def walk(accepted: np.ndarray, gamma: int) -> int:
    """Decode one trajectory: draft gamma tokens, keep those before a rejection, emit one more."""
    at = calls = 0
    while at < len(accepted):
        calls += 1
        kept = 0
        while kept < gamma and at + kept < len(accepted) and accepted[at + kept]:
            kept += 1
        at += kept + 1
    return calls


@pytest.mark.parametrize("gamma", [1, 2, 3, 7, 50, None])
def test_calls_of_any_flags(gamma: int | None) -> None:
    rng = np.random.default_rng(gamma or 0)
    flags = rng.random((len(POSITION), 8)) < np.linspace(0, 1, 8)
    made = calls_made(flags, STEPS, gamma)
    assert made.shape == (len(LENGTHS), 8)
    longest = gamma or max(LENGTHS)
    for p, g in itertools.product(range(len(LENGTHS)), range(8)):
        own = flags[STEPS.prompts == p, g]
        assert made[p, g] == walk(own, longest)
        free = np.flatnonzero(~own)
        choices = itertools.product([False, True], repeat=len(free))
        worst = 0
        for choice in choices:
            accepted = own.copy()
            accepted[free] = choice
            worst = max(worst, walk(accepted, longest))
        assert made[p, g] == worst


@pytest.mark.parametrize("gamma", [0, -1])
def test_a_draft_has_a_token(gamma: int) -> None:
    with pytest.raises(ValueError, match=f"draft_length={gamma} is not allowed"):
        calls_made(np.ones((len(POSITION), 1), dtype=bool), STEPS, gamma)


@pytest.mark.parametrize("gamma", [1, 2, 3, 50])
def test_drafts_made_are_those_of_a_plain_walk(gamma: int) -> None:
    """By place of the draft as well: what is reached is what was accepted before, full drafts."""
    accepted = np.random.default_rng(gamma).random(len(POSITION)) < 0.7
    tested, kept = drafts_made(accepted, STEPS, gamma)
    assert len(tested) == calls_made(accepted[:, None], STEPS, gamma).sum()
    wanted = []
    for p, length in enumerate(LENGTHS):
        own, at = accepted[STEPS.prompts == p], 0
        while at < length:
            drafted = min(gamma, length - at)
            right = 0
            while right < drafted and own[at + right]:
                right += 1
            wanted.append((min(right + 1, drafted), right))
            at += right + 1
    assert list(zip(tested.tolist(), kept.tolist(), strict=True)) == wanted
    with pytest.raises(ValueError, match="draft_length=0 is not allowed"):
        drafts_made(accepted, STEPS, 0)


def test_shares_by_place_and_nothing_reached() -> None:
    first, second = place_shares(4, [4, 0], [0, 0])
    assert (first["conditional"], first["of_all"], second["of_all"]) == (0, 0, 0)
    assert np.isnan(second["conditional"])
    assert np.isnan(place_shares(0, [0], [0])[0]["of_all"])

"""Expected speed in an engine: against a simulation, limits, and the words of the verdict."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis.acceptance.engine_speed import (
    PassSums,
    StepCosts,
    engine_advice,
    expected_speeds,
    model_costs,
)
from analysis.acceptance.verdict import DO_NOT, DRAFT, OPEN
from analysis.statistics.bootstrap import PromptBootstrap

COSTS = StepCosts("vLLM 0.32.0", "model", (0.0, 1.0, 2.0, 4.0), (1.0, 1.2, 1.3, 1.6))


def bootstrap(prompts: int) -> PromptBootstrap:
    return PromptBootstrap(np.arange(prompts), 500, 0.95, 0)


def speeds_of(values: list[float], width: float, prompts: int = 30) -> pd.DataFrame:
    lengths = np.arange(1, 1 + len(values))
    frame = pd.DataFrame({"draft_length": lengths, "tokens_per_pass": 2.0, "step_cost": 1.5})
    frame = frame.assign(speedup=values, prompts=prompts)
    return frame.assign(ci_low=frame["speedup"] - width, ci_high=frame["speedup"] + width)


def test_a_clock_that_ran_beside_every_pass_gives_the_same_speed() -> None:
    """Passes of random length are played out; seconds are added up pass by pass."""
    rng = np.random.default_rng(1)
    seconds = {0: 0.01, **{g: 0.01 * float(COSTS.at(np.array(g))) for g in (1, 2, 3)}}
    emitted = rng.integers(20, 60, size=40)
    clock = np.zeros((40, 3))
    passes = np.zeros((40, 3), dtype=int)
    for answer, tokens in enumerate(emitted):
        for length in (1, 2, 3):
            left = int(tokens)
            while left > 0:
                left -= min(left, 1 + int(rng.integers(0, length + 1)))
                clock[answer, length - 1] += seconds[length]
                passes[answer, length - 1] += 1
    frame = expected_speeds(emitted, passes, model_costs(passes, COSTS), bootstrap(40))
    timed = emitted.sum() * seconds[0] / clock.sum(axis=0)
    assert frame["speedup"].to_numpy() == pytest.approx(timed, rel=1e-12)
    assert (frame["ci_low"] < frame["speedup"]).all()
    assert (frame["ci_high"] > frame["speedup"]).all()


def test_a_step_beyond_the_measurements_costs_no_less_than_the_longest_measured() -> None:
    falling = StepCosts("e", "model", (0.0, 3.0, 4.0), (1.0, 2.0, 1.4))
    assert falling.at(np.arange(4, 9)).tolist() == [1.4] * 5
    cheap = StepCosts("e", "model", (0.0, 3.0), (1.0, 0.9))  # within the noise of the clock
    assert cheap.at(np.array([3, 100])).tolist() == [0.9, 0.9]
    assert COSTS.at(np.array([6])) == pytest.approx(1.9)  # a growing cost goes on


def test_passes_without_a_draft_cost_what_the_target_alone_does() -> None:
    alone = PassSums(passes=1000, drafts=0, drafted=0, seconds=20.0)
    for share in (1.0, 0.3):  # of the passes have drafts of 3 tokens that cost 1.5
        drafts = 400 * share
        seconds = 0.02 * (1.5 * drafts + (400 - drafts))
        mixed = PassSums(400, drafts, 3 * drafts, seconds)
        assert mixed.step_cost(alone) == pytest.approx((3.0, 1.5))


def test_costs_go_on_behind_the_longest_draft_measured() -> None:
    assert COSTS.at(np.array([0, 1, 2, 3, 4, 8])) == pytest.approx([1, 1.2, 1.3, 1.45, 1.6, 2.2])
    assert COSTS.longest == 4


def test_the_verdict_names_the_engine_and_the_length() -> None:
    advice = engine_advice("T", "D", speeds_of([1.1, 1.3, 1.2], 0.05), COSTS)
    assert advice.outcome == DRAFT
    assert advice.run is not None
    assert advice.run["draft_length"] == 2
    assert advice.sentence == (
        "In vLLM 0.32.0: draft for T with D, 2 tokens: expected 1.30 [1.25, 1.35] times as fast as "
        "T alone (2.00 tokens a pass, and a step costs 1.50 passes)."
    )
    for values, width, prompts, outcome in (
        ([0.9, 0.8], 0.05, 30, DO_NOT),
        ([1.02, 0.8], 0.05, 30, OPEN),
        ([1.5, 0.8], 0.05, 29, OPEN),  # too few prompts decide nothing
        ([0.99, 0.8], 0.05, 30, OPEN),
    ):
        assert engine_advice("T", "D", speeds_of(values, width, prompts), COSTS).outcome == outcome


def test_a_length_that_was_not_measured_is_not_advised() -> None:
    advice = engine_advice("T", "D", speeds_of([1.1, 1.2, 1.2, 1.2, 1.4], 0.05), COSTS)
    assert advice.run is not None
    assert advice.run["draft_length"] == 2
    assert advice.beside == [
        "Drafts of 5 would be 1.40 times as fast if a step's cost goes on as up to 4: measure it."
    ]

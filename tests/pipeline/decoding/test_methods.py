"""Methods from their configuration: what is refused, and how lists multiply."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.errors import PipelineError
from pipeline.plan.methods import build_methods, with_baselines

GOOD = {"drafter": "model", "rule": "greedy", "draft_length": 3, "temperature": 0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draft_length": 0}, r"decoding.methods\[0\].draft_length=0 is not allowed"),
        ({"draft_length": 2.5}, "draft_length=2.5"),
        ({"temperature": -0.5}, "temperature=-0.5 is not allowed"),
        ({"temperature": float("inf")}, "temperature=inf is not allowed"),
        ({"draft_length": []}, r"methods\[0\].draft_length=\[\] is not allowed: give a value, or"),
        ({"drafter": {"a": 1}}, "drafter={'a': 1} is not allowed"),
        ({"temperature": 1.0}, "temperature=1.0 is not allowed: give 0 for a rule"),
        ({"drafter": "eagle"}, "drafter=eagle is not allowed: give one of model, prompt_lookup"),
        ({"rule": "tree", "m": 2}, "chain"),
        ({"rule": "additive"}, "'t' is missing"),
        ({"sampling": "races"}, "either rule or sampling"),
        ({"draft_length": [3, 3]}, "given twice"),
    ],
)
def test_methods_that_make_no_sense_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        build_methods([GOOD | change])


def test_sampling_needs_heat_and_lists_multiply() -> None:
    with pytest.raises(PipelineError, match="above 0: at 0 take rule: greedy"):
        build_methods(
            [{"drafter": "model", "sampling": "races", "draft_length": 3, "temperature": 0}]
        )
    methods = build_methods(
        [
            GOOD | {"draft_length": [1, 2]},
            {
                "drafter": "model",
                "rule": "mars",
                "theta": [0.8, 0.9],
                "draft_length": 3,
                "temperature": [0, 1.0],
            },
        ]
    )
    assert len(set(methods)) == 6
    with pytest.raises(PipelineError, match="at least one"):
        build_methods([])


def test_one_draft_length_for_all_takes_the_place_of_each() -> None:
    entries = [
        GOOD | {"draft_length": [1, 2, 7]},
        {"drafter": "model", "sampling": "races", "draft_length": 3, "temperature": 1.0},
    ]
    found = build_methods(entries, 5)
    assert [(method.name, method.draft_length) for method in found] == [
        ("greedy", 5),  # three methods became one
        ("exponential races", 5),
    ]
    assert build_methods(entries, None) == build_methods(entries)
    with pytest.raises(PipelineError, match="draft_length=3, temperature=0 is given twice"):
        build_methods([GOOD | {"draft_length": [3, 3]}], 5)  # as without it


def test_every_temperature_has_a_baseline_and_races_their_own() -> None:
    sampled = {"drafter": "model", "sampling": ["speculative", "races"], "draft_length": [1, 3]}
    mars = {"drafter": "model", "rule": "mars", "theta": 0.9, "draft_length": 3}
    methods = build_methods([mars | {"temperature": [1.0, 0]}, sampled | {"temperature": 0.5}])
    alone = [(one.name, one.temperature) for one in with_baselines(methods)[: -len(methods)]]
    assert alone == [
        ("autoregressive", 0.0),
        ("autoregressive", 0.5),
        ("autoregressive (exponential races)", 0.5),
        ("autoregressive", 1.0),
    ]

"""The numbers of every tool for one made-up log, against values computed by hand."""

from __future__ import annotations

import pandas as pd
import pytest

from analysis.decoding.conventions import (
    conventions,
    place_rows,
    speculation_profile,
    synthetic_settings,
)

# two answers: drafted, accepted, emitted of each call; one draft is short, one call has none
LOG = {"A": [(3, 3, 4), (1, 1, 2), (0, 0, 1)], "B": [(3, 2, 3), (3, 0, 1)]}
CALLS = pd.DataFrame(
    [(answer, *call) for answer, calls in LOG.items() for call in calls],
    columns=["answer", "drafted", "accepted", "emitted"],
)


def test_every_tool_by_hand() -> None:
    table = conventions(CALLS, 3)
    value = dict(zip(zip(table["tool"], table["number"], strict=True), table["value"], strict=True))
    by_hand = {
        ("vLLM", "Mean acceptance length"): 1 + 6 / 4,  # four calls have a draft
        ("vLLM", "Avg Draft acceptance rate"): 6 / 10,
        ("vLLM", "Per-position acceptance rate 1"): 3 / 4,
        ("vLLM", "Per-position acceptance rate 2"): 2 / 4,
        ("vLLM", "Per-position acceptance rate 3"): 1 / 4,
        ("SGLang", "spec_accept_length, mean of requests"): ((1 + 7) / 3 + (1 + 4) / 2) / 2,
        ("SGLang", "spec_accept_rate, mean of requests"): (4 / 9 + 2 / 6) / 2,
        ("SGLang", "avg_spec_accept_length"): 11 / 5,
        ("specdec_bench", "Average_AL"): (7 / 3 + 4 / 2) / 2,
        ("specdec_bench", "mean_accept_length of the profile"): 11 / 5,
        ("Spec-Bench", "#Mean accepted tokens"): 11 / 5,
        ("TensorRT-LLM", "avg_decoded_tokens_per_iter"): (8 + 5) / (4 + 3),
        ("TensorRT-LLM", "acceptanceRate"): 6 / 10,
        # conditional rates 3/4, 2/2 (the short draft does not reach the second place), 1/2
        ("EAL", "1 + sum of products of conditional rates"): 1 + 0.75 + 0.75 + 0.375,
    }
    assert value == pytest.approx(by_hand)
    assert [place["conditional"] for place in place_rows(CALLS, 3)] == [0.75, 1.0, 0.5]


def test_a_draft_that_ends_its_answer_counts_what_it_emits_and_none_has_no_rate() -> None:
    """The end of the answer stands among the accepted tokens: no token of the target follows."""
    calls = pd.DataFrame({"answer": ["A"], "drafted": [3], "accepted": [2], "emitted": [2]})
    ended, alone = (
        conventions(each, 3).set_index("number")["value"]
        for each in (calls, calls.assign(drafted=0, accepted=0, emitted=1))
    )
    assert (ended["Mean acceptance length"], ended["#Mean accepted tokens"]) == (3, 2)
    assert alone[["Mean acceptance length", "Avg Draft acceptance rate"]].isna().all()
    assert alone["#Mean accepted tokens"] == 1


def test_the_profile_and_settings_by_hand() -> None:
    profile = speculation_profile(CALLS, 3)
    assert profile["marginal_accept_rates"] == [0.6, 0.4, 0.2]
    assert profile["conditional_accept_rates"] == [0.6, 0.666667, 0.5]
    assert profile["mean_accept_length"] == 2.2
    assert profile["mean_accept_length_per_request"] == 2.166667
    assert profile["acceptance_length_histogram"] == {1: 2, 2: 1, 3: 1, 4: 1}
    assert profile["validation"]["mean_consistency"]["passed"]
    cut = speculation_profile(CALLS, 2)  # a draft length below the one of the log is seen
    assert not cut["validation"]["mean_consistency"]["passed"]
    settings = synthetic_settings(CALLS, 3)
    assert settings["vllm"] == {
        "method": "draft_model", "model": "DRAFTER", "num_speculative_tokens": 3,
        "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.75, 0.5, 0.25],
    }  # fmt: skip
    assert settings["sglang"]["SGLANG_SIMULATE_ACC_LEN"] == 2.2

"""The verdict on made-up measurements: every branch, each boundary with a step to both sides."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from analysis.acceptance.verdict import DO_NOT, DRAFT, OPEN, UNTIMED, advise, engines

ABOVE, BELOW = float(np.nextafter(1, 2)), float(np.nextafter(1, 0))
COMMAND = "python -m pipeline study=s"


def run(speedup, low, high, **given):
    return {
        "method": "Strict greedy",
        "scheme": "strict greedy",
        "drafter": "model",
        "rule": "greedy",
        "draft_length": 5,
        "temperature": 0.0,
        "lossless": True,
        "prompts": 30,
        "tested": 100,
        "accepted": 50,
        "rate": 0.5,
        "nats_given_up": 0.0,
        "engine": "vLLM",
        **{"speedup": speedup, "ci_low": low, "ci_high": high, **given},
    }


ALONE = run(1.0, 1.0, 1.0, drafter="none", method="Autoregressive", rule=None, draft_length=0)
LOOKUP = {"method": "Strict greedy, prompt lookup", "drafter": "prompt_lookup"}
RELAXED = {"method": "Additive (t = 0.1)", "rule": "additive t=0.1", "lossless": False}
RELAXED |= {"nats_given_up": 0.04, "accepted": 99, "scheme": "additive (t = 0.1)"}
SAMPLED = {"method": "Speculative sampling", "scheme": "speculative sampling", "rule": None}


def said(*runs, **given):
    return advise("T", "D", pd.DataFrame([ALONE, *runs]), command=COMMAND, **given)


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [(ABOVE, 1.2, DRAFT), (1.0, 1.2, OPEN), (0.8, 1.0, OPEN), (0.8, BELOW, DO_NOT)],
)
def test_an_interval_that_contains_1_decides_nothing(low, high, outcome):
    found = said(run((low + high) / 2, low, high))
    assert found.outcome == outcome
    assert ("contains 1" in found.sentence) == (outcome == OPEN)
    assert "30 prompts, greedy decoding" in found.sentence


def test_an_undefined_interval_decides_nothing():
    found = said(run(1.3, math.nan, math.nan))
    assert found.outcome == OPEN
    assert "γ = 5) was 1.30 times as fast, and its interval is undefined" in found.sentence


@pytest.mark.parametrize(("prompts", "outcome"), [(29, OPEN), (30, DRAFT)])
def test_fewer_than_30_prompts_decide_nothing(prompts, outcome):
    found = said(run(1.3, 1.2, 1.4, prompts=prompts), run(2, 1.9, 2.1, prompts=prompts, **RELAXED))
    assert found.outcome == outcome
    assert ("29 prompts are fewer than 30" in found.sentence) == (outcome == OPEN)
    assert any("It gives up" in text for text in found.beside) == (outcome == DRAFT)


def test_a_busy_machine_and_relaxed_rules_alone_decide_nothing():
    busy = said(run(1.3, 1.2, 1.4), busy=["gaps"])
    assert (busy.outcome, "the machine was busy (gaps)" in busy.sentence) == (OPEN, True)
    only = said(run(2, 1.9, 2.1, **RELAXED))
    assert (only.outcome, only.drafters) == (OPEN, [])
    assert "no lossless method that an engine runs was timed" in only.sentence


def test_what_was_not_timed_is_said_with_the_command():
    for speeds in (None, pd.DataFrame([ALONE])):
        found = advise("T", "D", speeds, command=COMMAND)
        assert found.outcome == UNTIMED
        assert f"`{COMMAND} stage=decoding`" in found.sentence
    assert "`" not in advise("T", "", None, command=COMMAND).sentence  # there is no drafter
    assert "`" not in advise("T", "D", None).sentence  # logs have no model


def test_the_fastest_sure_lossless_method_comes_first():
    found = said(
        run(1.5, 0.9, 2.0, draft_length=2),
        run(1.1, 1.05, 1.2, draft_length=3),
        run(1.2, 1.1, 1.3, **LOOKUP),
        run(3, 2.9, 3.1, **RELAXED),
    )
    assert found.outcome == DRAFT
    assert found.sentence == (
        "Draft for T with prompt look-up under strict greedy (γ = 5): 1.20 [1.10, 1.30] times as "
        "fast as T alone, and the text stays the same (30 prompts, greedy decoding; intervals of "
        "all 4 methods together)."
    )
    assert found.beside[0] == (
        "Faster, but not for sure: D under strict greedy (γ = 2) was 1.50 [0.90, 2.00] times as "
        "fast, and its interval contains 1."
    )
    assert not any("γ = 3" in text for text in found.beside)  # slower, and sure
    assert [(one["drafter"], one["answer"]) for one in found.drafters] == [
        ("model", "yes"),
        ("prompt_lookup", "yes"),
    ]
    assert found.drafters[0]["draft_length"] == 3  # the sure one


def test_only_what_an_engine_runs_is_named():
    """A tree is faster, and no engine runs it: the look-up that vLLM has is the verdict."""
    tree = run(2, 1.9, 2.1, engine="", method="Strict greedy, tree")
    found = said(tree, run(1.2, 1.1, 1.3, **LOOKUP))
    assert (found.outcome, found.drafters[0]["drafter"]) == (DRAFT, "prompt_lookup")
    assert "look-up" in found.sentence
    assert "D under" not in " ".join([found.sentence, *found.beside])
    only = said(tree)
    assert (only.outcome, only.drafters) == (OPEN, [])
    relaxed = {**RELAXED, "engine": "TensorRT-LLM"}
    (text,) = said(run(1.2, 1.1, 1.3), run(1.5, 1.4, 1.6, **relaxed)).beside
    assert text.startswith("If the text may change, in TensorRT-LLM: D under additive")


def test_the_temperature_is_the_lowest_at_which_an_engine_runs_a_lossless_method():
    found = said(
        run(2, 1.9, 2.1, engine=""), run(1.2, 1.1, 1.3, temperature=0.5, **SAMPLED, tree=None)
    )
    assert found.outcome == DRAFT
    assert "its distribution stays the same (30 prompts, temperature 0.5" in found.sentence


def test_engines_run_chains_and_few_rules():
    rows = [
        ("none", None, None, True),
        ("model", None, None, True),
        ("prompt_lookup", None, None, True),
        ("model", {"shown": "batch of 2"}, None, True),
        ("model", None, "races", True),
        ("model", None, None, False),
    ]
    runs = pd.DataFrame(rows, columns=["drafter", "tree", "sampling", "lossless"])
    runs["rule"] = "typical eps0=0.1 delta0=0.09"
    assert engines(runs, head=True, match="earliest") == [
        *("", "vLLM (eagle3)", "vLLM (ngram)", "", "", "Medusa")
    ]
    assert engines(runs.assign(rule="additive t=0.1"), False, "latest")[5] == ""


def answers(**given):
    row = {"temperature": 0.0, "draft_length": 5, "items": 316, "right": 111}
    row |= {"method": "Additive (t = 0.1)", "drafter": "model", "alone": 118}
    row |= {"within": False, "falls": False, **given}
    return pd.DataFrame([row])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, f"Its right answers were not measured: run `{COMMAND} stage=accuracy`."),
        (
            {"answers": answers()},
            "111 of 316 answers were right, 118 without it; a loss of 5 points is not excluded.",
        ),
        ({"answers": answers(within=True)}, "a loss of 5 points is excluded."),
        # another draft length is not this run
        ({"answers": answers(falls=True, draft_length=4)}, "Its right answers were not measured"),
        ({"answers": answers(falls=True, right=93)}, "right answers fell from 118 to 93 of 316."),
    ],
)
def test_a_relaxed_rule_is_offered_beside_with_what_it_costs(given, says):
    found = said(run(1.2, 1.1, 1.3), run(1.5, 1.4, 1.6, **RELAXED), margin=0.05, **given)
    assert found.outcome == DRAFT
    assert "strict greedy" in found.sentence
    assert says in found.beside[0]
    assert ("It gives up 0.04 nats" in found.beside[0]) != ("fell" in says)


@pytest.mark.parametrize(
    ("given", "offered"),
    [
        ({"accepted": 99}, True),
        ({"accepted": 100}, False),  # nothing was rejected
        ({"ci_low": 1.3}, False),  # not for sure above the lossless method
        ({"ci_low": math.nextafter(1.3, 2)}, True),
    ],
)
def test_a_relaxed_rule_is_offered_only_if_it_is_faster_and_rejects(given, offered):
    found = said(run(1.2, 1.1, 1.3), {**run(1.5, 1.4, 1.6, **RELAXED), **given})
    assert any("It gives up" in text for text in found.beside) == offered
    if "ci_low" in given:  # beside a method that is not surely faster, it is compared with 1
        (text,) = said(run(1.05, 0.9, 1.4), run(1.5, 1.1, 1.6, **RELAXED)).beside
        assert "It gives up" in text


def test_behind_one_that_fell_the_next_is_offered():
    loose = RELAXED | {"method": "Additive (t = 0.3)", "scheme": "additive (t = 0.3)"}
    found = said(
        run(0.8, 0.7, 0.9),
        run(1.9, 1.8, 2.0, **loose),
        run(1.5, 1.4, 1.6, **RELAXED),
        answers=answers(method="Additive (t = 0.3)", falls=True),
    )
    assert found.outcome == DO_NOT
    assert found.beside[0].startswith("Avoid D under additive (t = 0.3; γ = 5)")
    assert "additive (t = 0.1; γ = 5) was 1.50 [1.40, 1.60] times as fast. It" in found.beside[1]

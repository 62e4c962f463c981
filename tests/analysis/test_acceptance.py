"""Acceptance: soundness on random pairs, limits, and counts done by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from analysis import divergences
from analysis.acceptance import (
    Steps,
    judge,
    kl_needed,
    profile,
    rule_statistics,
    stochastic_statistics,
)
from analysis.criteria import AbsoluteThreshold, Additive, Mars, StrictGreedy, Tree
from analysis.dials import build_dial
from analysis.distributions import TopK
from analysis.relaxation import smallest_relaxation
from analysis.statistics import PromptBootstrap
from tests.analysis.cases import THRESHOLD_RULES, stored_columns

RULES = [
    StrictGreedy(),
    *THRESHOLD_RULES,
    Additive(t=0.1),
    Additive(t=0.9),
    AbsoluteThreshold(theta=0.05),
    Mars(theta=0.9),
    Tree(m=1),
    Tree(m=3),
]
VOCAB, PROMPTS, LENGTH = 12, 20, 15


def steps_of(z: np.ndarray, w: np.ndarray, k: int, position: np.ndarray) -> Steps:
    """Target logits z and draft logits w, of which k target tokens are stored."""
    target = TopK.from_columns(**stored_columns(z, k), vocab_size=z.shape[1])
    found = divergences.compare(z, w)
    return Steps(
        target, position, found.kl, found.draft_rank, found.draft_log_prob, found.argmax_rank
    )


def pair(noise: float, k: int = VOCAB, seed: int = 0) -> Steps:
    rng = np.random.default_rng(seed)
    size = (PROMPTS * LENGTH, VOCAB)
    z = (3 * rng.standard_normal(size) + 4).astype(np.float32)
    w = (z + noise * rng.standard_normal(size)).astype(np.float32)
    return steps_of(z, w, k, np.tile(np.arange(LENGTH, dtype=np.int32), PROMPTS))


def bootstrap(steps: Steps) -> PromptBootstrap:
    return PromptBootstrap(steps.trajectories.prompts, 50, 0.9, 0)


def statistics(steps: Steps, rule: object) -> dict[str, float]:
    verdict = judge(steps, [rule])[0]  # type: ignore[list-item]
    frame = rule_statistics(steps, verdict, bootstrap(steps), 8)
    return dict(zip(frame["statistic"], frame["value"], strict=True))


@pytest.mark.parametrize("k", [VOCAB, 5])
@pytest.mark.parametrize("noise", [0.01, 0.3, 1.0, 4.0])
def test_no_certified_step_is_rejected(noise: float, k: int) -> None:
    for verdict in judge(pair(noise, k), RULES):
        assert len(verdict.violations) == 0, verdict.rule.label
        assert not (verdict.certified & ~verdict.certifiable).any()
    certified = [verdict.certified.mean() for verdict in judge(pair(0.01, k), RULES)]
    assert min(certified) > 0.5  # the promise is not empty


def test_the_extremal_draft_is_at_the_border() -> None:
    """Just below R nothing can be rejected, and at R the rejected token ties."""
    p = np.array([[0.5, 0.3, 0.2]])
    level = 0.4  # strict greedy: the two largest are levelled, the rest stays
    radius = 0.5 * math.log(0.5 / level) + 0.3 * math.log(0.3 / level)
    z = np.log(p).astype(np.float32)
    position = np.zeros(1, dtype=np.int32)
    for bend, accepted in ((0.0, False), (1e-3, True), (-1e-3, False)):
        w = np.log([[level + bend, level - bend, 0.2]]).astype(np.float32)
        verdict = judge(steps_of(z, w, 3, position), [StrictGreedy()])[0]
        assert verdict.lo[0] == pytest.approx(radius, rel=1e-6)
        assert verdict.accepted[0] == accepted
        assert verdict.certified[0] == (bend > 0)


def test_a_drafter_equal_to_the_target_fails_only_where_r_is_zero() -> None:
    z = np.array([[2.0, 1.0, 0.0], [1.0, 1.0, 0.0], [3.0, 3.0, 3.0]], dtype=np.float32)
    steps = steps_of(z, z.copy(), 3, np.arange(3, dtype=np.int32))
    assert not steps.kl.any()
    for verdict in judge(steps, RULES):
        np.testing.assert_array_equal(verdict.certified, verdict.lo > 0)
        assert verdict.accepted[verdict.lo > 0].all()
    greedy = judge(steps, [StrictGreedy()])[0]
    assert greedy.accepted.tolist() == [True, False, False]  # ties go against the drafter


def test_lengths_and_shares_by_hand() -> None:
    """Two answers: accepted 1 1 0 1 and 1 0."""
    ranks = np.array([1, 1, 2, 1, 1, 2], dtype=np.int32)
    p = np.tile([0.5, 0.3, 0.2], (6, 1))
    steps = Steps(
        TopK.from_probabilities(p),
        np.array([0, 1, 2, 3, 0, 1], dtype=np.int32),
        np.array([0.0, 0.5, 0.5, 0.0, 0.5, 0.5]),
        ranks,
        np.log(np.where(ranks == 1, 0.5, 0.3)),
        ranks,
    )
    found = statistics(steps, StrictGreedy())
    # R = 0.0252: steps 0 and 3 are certified
    assert found["acceptance"] == pytest.approx(4 / 6)
    assert found["certified"] == pytest.approx(2 / 6)
    assert found["coverage"] == pytest.approx(2 / 4)
    assert found["departure"] == found["given_up"] == found["violations"] == 0
    # calls end at the two rejections, and at the end of the first answer
    assert found["realised_per_call"] == pytest.approx(6 / (2 + 1))
    assert found["certified_per_call"] == pytest.approx(6 / (4 + 1))
    assert found["realised_mean_run"] == pytest.approx(4 / 3)
    # 4 accepted and 2 rejected steps: slack ties except for the two certified ones
    assert found["ordered"] == pytest.approx((2 * 2 + 0.5 * 2 * 2) / 8)
    relaxed = statistics(steps, Additive(t=0.25))
    assert relaxed["acceptance"] == 1
    assert relaxed["departure"] == pytest.approx(2 / 6)
    assert relaxed["given_up"] == pytest.approx(2 * 0.2 / 6)
    assert statistics(steps, Tree(m=2))["departure"] == 0


def test_kl_needed_certifies_its_fraction_and_no_larger_kl_does() -> None:
    steps = pair(0.3)
    verdict = judge(steps, [Additive(t=0.1)])[0]
    table = kl_needed(verdict, [0.5, 0.9], bootstrap(steps))
    for fraction, kl in zip(table["fraction"], table["kl"], strict=True):
        at = np.mean(verdict.lo >= kl)
        assert at >= fraction
        assert np.mean(verdict.lo > np.nextafter(kl, np.inf)) < fraction + 1 / len(steps)


def test_profile_counts_every_step_once() -> None:
    steps = pair(1.0)
    verdict = judge(steps, [StrictGreedy()])[0]
    table = profile(steps, verdict, 4, 10)
    for by in ("position", "margin"):
        part = table[table["by"] == by]
        assert part["steps"].sum() == len(steps)
        assert (part["steps"] * part["accepted"]).sum() == pytest.approx(verdict.accepted.sum())
    first = table[(table["by"] == "position") & (table["bin"] == 0)]
    assert first["accepted"].iloc[0] == pytest.approx(verdict.accepted[steps.position < 4].mean())
    # a wide margin is hard to overturn
    margin = table[table["by"] == "margin"]["accepted"].to_numpy()
    assert margin[-1] > margin[0]


def test_expected_lengths_of_stochastic_verification() -> None:
    steps = pair(0.3)
    half = np.full(len(steps), 0.5)
    table = stochastic_statistics(half, half, half, steps.trajectories, bootstrap(steps))
    assert (table.loc[table["statistic"] == "acceptance", "value"] == 0.5).all()
    # N / (N/2 rejections + P/2 answers that end accepted)
    expected = LENGTH / (LENGTH / 2 + 1 / 2)
    lengths = table.loc[table["statistic"] == "realised_per_call", "value"]
    assert lengths.tolist() == pytest.approx([expected] * 3)


@pytest.mark.parametrize("kind", ["realised", "certified"])
@pytest.mark.parametrize(
    "mapping",
    [
        {"rule": "additive", "t": [0.01, 0.2, 0.9]},
        {"rule": "tree", "m": [1, 8]},
        {"rule": "multiplicative", "alpha": [0.99, 0.5, 0.01]},
    ],
)
def test_the_smallest_relaxation_reaches_and_a_smaller_one_does_not(
    mapping: dict[str, object], kind: str
) -> None:
    steps, dial = pair(0.8), build_dial(mapping)
    statistic = f"{kind}_per_call"
    ends = [statistics(steps, rule)[statistic] for rule in (dial.rules[0], dial.rules[-1])]
    assert ends[0] < ends[1]
    wanted = (ends[0] + ends[1]) / 2
    found = smallest_relaxation(dial, steps, wanted, kind)
    value = float(found["value"])
    whole = dial.parameter == "m"
    step = 1 if whole else 2e-3
    strict = value + step if dial.parameter == "alpha" else value - step
    reached, missed = (
        replace(dial.rules[0], **{dial.parameter: int(x) if whole else x}) for x in (value, strict)
    )
    assert statistics(steps, reached)[statistic] == pytest.approx(found["length"])
    assert found["length"] >= wanted > statistics(steps, missed)[statistic]
    assert math.isnan(float(smallest_relaxation(dial, steps, 1e9, kind)["value"]))


def test_a_dial_turns_one_parameter() -> None:
    dial = build_dial({"rule": "topm_additive", "m": 3, "t": [0.1, 0.2]})
    assert dial.name == "topm_additive m=3"
    for wrong in (
        {"rule": "additive", "t": 0.1},
        {"rule": "additive", "t": [0.1]},
        {"rule": "topm_additive", "m": [2, 3], "t": [0.1, 0.2]},
    ):
        with pytest.raises(ValueError, match="give one key a list"):
            build_dial(wrong)

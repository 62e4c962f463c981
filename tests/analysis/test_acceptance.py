"""Acceptance: soundness on random pairs, limits, and counts done by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from analysis import divergences
from analysis.acceptance import Steps, Verdict, judge, profile
from analysis.acceptance_statistics import kl_needed, rule_statistics, stochastic_statistics
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


def statistics(steps: Steps, rule: object, column: str = "value") -> dict[str, float]:
    verdict = judge(steps, [rule])[0]  # type: ignore[list-item]
    frame = rule_statistics(steps, verdict, bootstrap(steps), 8)
    return dict(zip(frame["statistic"], frame[column], strict=True))


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


@pytest.mark.parametrize("fraction", [0.5, 0.9, 0.95, 0.991, 1.0])  # of 300 steps: whole or not
def test_kl_needed_certifies_its_fraction_and_no_larger_kl_does(fraction: float) -> None:
    steps = pair(0.3)
    rule = Additive(t=0.1)
    row = kl_needed(judge(steps, [rule])[0], [fraction], bootstrap(steps)).iloc[0]
    assert 0 < row["value"] < math.inf
    assert row["low"] <= row["value"] <= row["high"]

    def certified(kl: float) -> float:
        drafted = replace(steps, kl=np.full(len(steps), kl))
        return float(judge(drafted, [rule])[0].certified.mean())

    assert certified(row["value"] * (1 - 1e-6)) >= fraction
    assert certified(row["value"]) < fraction  # at the value itself nothing is promised


def opened(seed: int) -> tuple[Steps, Verdict]:
    """Steps with certificates that are exact, intervals, open above, or +inf."""
    steps, rng = pair(1.0, seed=seed), np.random.default_rng(seed)
    lo = rng.uniform(0, 0.5, len(steps))
    hi = lo + np.where(rng.random(len(steps)) < 0.3, rng.uniform(0, 0.3, len(steps)), 0)
    hi[rng.random(len(steps)) < 0.05] = np.inf
    lo[:15] = hi[:15] = np.inf
    accepted = rng.random(len(steps)) < 0.7
    return steps, Verdict(StrictGreedy(), lo, hi, accepted, steps.kl < lo, steps.kl < hi)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_the_certificates_are_the_statistics_lie_between_the_ends(seed: int) -> None:
    steps, verdict = opened(seed)
    found = rule_statistics(steps, verdict, bootstrap(steps), 8).set_index("statistic")
    needed = kl_needed(verdict, [0.5, 0.9], bootstrap(steps))
    names = ["slack_median", "ordered", "rank_correlation", "certified_per_call", "empty"]
    assert (found.loc[names, "value"] < found.loc[names, "optimistic"]).all()
    rng = np.random.default_rng(seed)
    lowest = np.where(np.isinf(verdict.lo), 0, verdict.lo)
    for _ in range(20):
        r = verdict.lo + rng.random(len(steps)) * (np.minimum(verdict.hi, verdict.lo + 1) - lowest)
        r[np.isinf(verdict.hi) & (rng.random(len(steps)) < 0.5)] = np.inf
        slack = r - steps.kl
        ahead, behind = slack[verdict.accepted][:, None], slack[~verdict.accepted]
        some = {
            "slack_median": np.sort(slack)[149],  # ranks 300 q
            "slack_p5": np.sort(slack)[14],
            "ordered": np.mean((ahead > behind) + 0.5 * (ahead == behind)),
            "certified": np.mean(slack > 0),
            "empty": np.mean(np.isinf(r)),
        }
        for name, value in some.items():
            assert found.loc[name, "value"] <= value <= found.loc[name, "optimistic"], name
        for fraction, low, high in needed[["fraction", "value", "optimistic"]].to_numpy():
            largest = np.sort(r)[::-1][math.ceil(fraction * len(r)) - 1]
            assert low <= largest <= high
    assert found.loc["inexact", "value"] == np.mean(verdict.lo < verdict.hi)
    assert (needed["value"] < needed["optimistic"]).any()


def test_exact_certificates_give_one_value() -> None:
    steps = pair(0.3)
    for rule in (StrictGreedy(), Additive(t=0.1), Tree(m=3)):
        value, optimistic = (statistics(steps, rule, name) for name in ("value", "optimistic"))
        assert value == pytest.approx(optimistic, nan_ok=True, abs=0), rule
        assert value["inexact"] == 0


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
    laws = [half] * 4
    table = stochastic_statistics(*laws, steps.trajectories, bootstrap(steps))
    assert (table.loc[table["statistic"] == "acceptance", "value"] == 0.5).all()
    # N / (N/2 rejections + P/2 answers that end accepted)
    expected = LENGTH / (LENGTH / 2 + 1 / 2)
    lengths = table.loc[table["statistic"] == "realised_per_call", "value"]
    assert lengths.tolist() == pytest.approx([expected] * 4)


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
    assert (found["optimistic"], found["optimistic_length"]) == (value, found["length"])
    assert found["empty"] == pytest.approx(statistics(steps, reached)["empty"])
    assert found["length"] >= wanted > statistics(steps, missed)[statistic]
    assert math.isnan(float(smallest_relaxation(dial, steps, 1e9, kind)["value"]))


def test_a_relaxation_certified_by_upper_ends_is_not_larger() -> None:
    """Three of 12 tokens are stored, so that absolute thresholds leave certificates open."""
    steps = pair(0.3, k=3)
    dial = build_dial({"rule": "absolute", "theta": [0.2, 0.1, 0.05, 0.02, 0.01, 0.005]})
    rule = AbsoluteThreshold(theta=0.1)
    sure, maybe = (
        statistics(steps, rule, name)["certified_per_call"] for name in ("value", "optimistic")
    )
    assert sure < maybe
    found = smallest_relaxation(dial, steps, (sure + maybe) / 2, "certified")
    assert float(found["optimistic"]) > float(found["value"])  # theta: the larger is the stricter
    there = AbsoluteThreshold(theta=float(found["optimistic"]))
    assert statistics(steps, there, "optimistic")["certified_per_call"] == pytest.approx(
        found["optimistic_length"]
    )


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

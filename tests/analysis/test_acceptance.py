"""A drafter held against certificates: soundness, limits, counts by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from analysis.acceptance.judgement import Steps, judge, rounding
from analysis.acceptance.summary import finite_share, margins, rule_statistics
from analysis.rules import AbsoluteThreshold, Additive, StrictGreedy, Tree
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.topk import TopK
from tests.analysis.cases import RULES, drafted_steps, noisy

VOCAB, PROMPTS, LENGTH = 12, 20, 15


def pair(noise, k=VOCAB, seed=0):
    z, w = noisy(PROMPTS * LENGTH, VOCAB, 3.0, noise, seed)
    return drafted_steps(z, w, k, [LENGTH] * PROMPTS)[0]


def bootstrap(steps):
    return PromptBootstrap(steps.trajectories.prompts, 50, 0.9, 0)


def statistics(steps, rule, column="value"):
    verdict = judge(steps, [rule])[0]
    rows = rule_statistics(steps, verdict, bootstrap(steps))
    return {row["statistic"]: row[column] for row in rows}


@pytest.mark.parametrize("missing", [0, 4])  # tokens that the drafter lacks
@pytest.mark.parametrize("k", [VOCAB, 5])
@pytest.mark.parametrize("noise", [0.01, 0.4, 4.0])
def test_no_certified_step_is_rejected(noise, k, missing):
    """A drafter that lacks a token of the target has an infinite KL."""
    z, w = noisy(PROMPTS * LENGTH, VOCAB, 3.0, noise, k + missing)
    np.put_along_axis(w, np.argsort(z, axis=1)[:, :missing], -np.inf, axis=1)
    steps, found = drafted_steps(z, w, k, [LENGTH] * PROMPTS)
    for verdict in judge(steps, RULES):
        assert len(verdict.violations) == 0, verdict.rule.label
        if missing:  # certified where nothing can be rejected: at any KL
            assert (verdict.certified == np.isinf(verdict.lower)).all()
        elif noise < 1:  # the promise is not empty
            assert verdict.certified.mean() > 0.3, verdict.rule.label
    assert np.isinf(found.kl).all() == (missing > 0)
    everything = judge(steps, [AbsoluteThreshold(theta=0.0)])[0]
    assert everything.certified.all() or k < VOCAB
    for rule in RULES:
        assert not math.isnan(statistics(steps, rule)["slack_median"]), rule


def test_bins_of_margins_are_above_their_lower_ends():
    slack = np.array([-np.inf, -2.0, -1.9, 0.0, 1e-9, 0.5, 0.6, np.inf])
    accepted = np.array([0, 1, 0, 1, 1, 1, 1, 1], dtype=bool)
    found = margins(slack, accepted).set_index("low")
    assert found.loc[-np.inf, ["high", "steps", "accepted"]].tolist() == [-2, 2, 1]
    assert found.loc[-0.1, ["steps", "accepted"]].tolist() == [1, 1]  # R = KL guarantees nothing
    assert found.loc[[0.0, 0.25, 0.5], "steps"].tolist() == [1, 1, 2]
    assert found["steps"].sum() == len(slack)


def test_a_drafter_equal_to_the_target_fails_only_where_r_is_zero():
    z = np.array([[2.0, 1.0, 0.0], [1.0, 1.0, 0.0], [3.0, 3.0, 3.0]], dtype=np.float32)
    steps, _ = drafted_steps(z, z.copy())
    assert not steps.kl.any()
    for verdict in judge(steps, RULES):
        np.testing.assert_array_equal(verdict.certified, verdict.lower > 0)
        assert verdict.accepted[verdict.lower > 0].all()
    greedy = judge(steps, [StrictGreedy()])[0]
    assert greedy.accepted.tolist() == [True, False, False]  # ties go against the drafter


def test_lengths_and_shares_by_hand():
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
    assert found["departure"] == found["probability_given_up"] == 0
    # first tokens are not drafted; calls end at two rejections, and where the first answer does
    assert found["measured_per_call"] == pytest.approx(4 / (2 + 1))
    assert found["certified_per_call"] == pytest.approx(4 / (3 + 1))
    relaxed = statistics(steps, Additive(t=0.25))
    assert relaxed["acceptance"] == 1
    assert relaxed["departure"] == pytest.approx(2 / 6)
    assert relaxed["probability_given_up"] == pytest.approx(2 * 0.2 / 6)
    assert statistics(steps, Tree(m=2))["departure"] == 0


def deep(noises=(0.3, 1.0, 2.0)):
    """A head: each deeper token of its drafts is drafted with more noise."""
    first, *others = (pair(noise) for noise in noises)
    return replace(first, deeper=others)


def test_a_heads_tokens_a_call_go_by_depth():
    """Place i of a draft at depth i, from the second token of an answer on; a plain walk."""
    steps = deep()
    for rule in RULES:
        verdict = judge(steps, [rule])[0]
        accepted = np.stack([judge(at, [rule])[0].accepted for at in steps.by_depth])
        assert np.array_equal(verdict.accepted_by_depth, accepted)
        sure = np.stack([one.certified for one in verdict.by_depth])  # only if at all depths so far
        so_far = [sure[: depth + 1].all(axis=0) for depth in range(3)]
        assert np.array_equal(verdict.certified_by_depth, so_far)
        calls = 0
        for begin in range(0, len(steps), LENGTH):
            at, end = begin + 1, begin + LENGTH
            while at < end:
                kept = 0
                while at + kept < end and accepted[min(kept, 2), at + kept]:
                    kept += 1
                at, calls = at + kept + 1, calls + 1
        found = statistics(steps, rule)
        assert found["measured_per_call"] == pytest.approx(PROMPTS * (LENGTH - 1) / calls)
        assert found["certified_per_call"] <= found["measured_per_call"]
        alone = statistics(replace(steps, deeper=[]), rule)
        assert found["acceptance"] == alone["acceptance"]  # of depth 1
        assert found["measured_per_call"] <= alone["measured_per_call"]
    assert statistics(steps, StrictGreedy())["certified_per_call"] > 1  # it promises something


def test_the_border_of_the_certificate():
    """A KL just below R is certified; R itself, or more, is not; 0 is, where R is above 0."""
    z = np.array([[2.0, 1.0, 0.0, -1.0]] * 4 + [[1.0, 1.0, 0.0, -1.0]], dtype=np.float32)
    steps, _ = drafted_steps(z, z.copy())
    least = judge(steps, [StrictGreedy()])[0].lower[0]
    assert 0 < least < 1
    far = least * np.array([1 - 1e-6, 1.0, 1 + 1e-6, 0.0, 0.0])
    verdict = judge(replace(steps, kl=far), [StrictGreedy()])[0]
    assert verdict.certified.tolist() == [True, False, False, True, False]  # the last is a tie
    error = rounding(np.array([0.0, 1e-20, 0.3]))
    assert error[0] == 0 < error[1] <= error[2] <= 1e-12


def test_the_share_of_a_finite_kl():
    steps = replace(pair(0.3), kl=np.where(np.arange(PROMPTS * LENGTH) % 4 == 1, 0.1, np.inf))
    assert finite_share(steps, bootstrap(steps))["value"] == 0.25

"""Bounds of a pair of logs contain what the full distributions say."""

from __future__ import annotations

import numpy as np
import pytest

from analysis import TopK
from analysis.acceptance.logged import LoggedPair, compare_logged, judge_logged, logged_violations
from analysis.rules import (
    AbsoluteThreshold,
    Additive,
    Multiplicative,
    Rule,
    StrictGreedy,
    TopMAdditive,
    Tree,
    Typical,
)
from tests.analysis.test_rounded import V, distributions, printed
from tests.divergences import kl, total_variation

RULES: list[Rule] = [
    StrictGreedy(),
    Additive(0.1),
    Multiplicative(0.3),
    TopMAdditive(2, 0.3),
    Typical(0.1, 0.09),
    AbsoluteThreshold(0.05),
    Tree(2),
    Tree(4),
]


def full(steps: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Target and drafter, at `noise` of logits from each other; no zeros."""
    rng = np.random.default_rng(seed)
    p = distributions(steps, seed) + 1e-7
    q = p * np.exp(noise * rng.normal(size=p.shape) * rng.random((steps, 1)) ** 2)
    return p / p.sum(axis=1, keepdims=True), q / q.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("k", "draft_k"), [(2, 2), (5, 3), (3, 8), (20, 20), (V, V)])
@pytest.mark.parametrize("digits", [2, 6])
@pytest.mark.parametrize("noise", [0.0, 0.3, 2.0])
def test_ends_contain_the_truth(k: int, draft_k: int, digits: int, noise: float) -> None:
    p, q = full(300, noise, seed=k + digits)
    pair = compare_logged(printed(p, k, digits), printed(q, draft_k, digits))
    slack = 1e-9
    for found, true in (
        (pair.tv, total_variation(np.log(p), np.log(q))),
        (pair.kl, kl(np.log(p), np.log(q))),
    ):
        assert np.all(found.low <= true + slack)
        assert np.all(true <= found.high + slack)
    rank = 1 + np.argmax(np.argsort(-p, axis=1, kind="stable") == q.argmax(axis=1)[:, None], axis=1)
    listed = pair.draft_rank > 0
    assert np.array_equal(listed, rank <= k)
    assert np.array_equal(pair.draft_rank[listed], rank[listed])
    rules = [rule for rule in RULES if rule.minimum_k <= k]
    judged = judge_logged(pair, rules)
    target = TopK.from_probabilities(p)
    own = 1 + np.argmax(np.argsort(-q, axis=1, kind="stable") == p.argmax(axis=1)[:, None], axis=1)
    for rule in rules:
        found = judged[rule.label]
        inside = own <= rule.m if isinstance(rule, Tree) else rank <= rule.accepted_count(target)
        assert np.all(found["acceptance"][0] <= inside), rule
        assert np.all(inside <= found["acceptance"][1]), rule
        assert len(logged_violations(found)) == 0
        assert np.all(found["certified_tv"][0] <= inside)


def test_many_digits_and_tokens_say_nearly_all() -> None:
    p, q = full(300, 0.5, seed=1)
    pair = compare_logged(printed(p, V, 9), printed(q, V, 9))
    assert np.max(pair.tv.high - pair.tv.low) < 1e-6
    assert np.median(pair.kl.high - pair.kl.low) < 1e-4
    strict = judge_logged(pair, [StrictGreedy()])["greedy"]
    assert 0.1 < np.mean(strict["certified_tv"][0]) <= np.mean(strict["acceptance"][0])


def test_a_tail_leaves_the_kl_without_a_bound() -> None:
    p, q = full(50, 0.5, seed=2)
    pair = compare_logged(printed(p, 20, 6), printed(q, 20, 6))
    tail = 1 - np.sort(p, axis=1)[:, -20:].sum(axis=1)
    assert np.all(np.isinf(pair.kl.high[tail > 1e-4]))
    assert np.all(np.isfinite(pair.tv.high))
    assert np.all(pair.kl.low[tail > 1e-4] > 0)


def test_made_up_step() -> None:
    # p = 0.6, 0.3, q = 0.5, 0.4 on the same two tokens, the rest unknown, without rounding
    def told(top: list[float]) -> TopK:
        return TopK.from_log_probs([[4, 2]], [np.log(top)], 0.0, 10)

    pair: LoggedPair = compare_logged(told([0.6, 0.3]), told([0.5, 0.4]))
    assert pair.tv.low[0] == pytest.approx(0.1)
    assert pair.tv.high[0] == pytest.approx(0.2)  # the rests may lie on different tokens
    assert (pair.draft_rank[0], pair.argmax_rank[0]) == (1, 1)
    other = compare_logged(
        told([0.6, 0.3]), TopK.from_log_probs([[7, 2]], [np.log([0.5, 0.4])], 0.0, 10)
    )
    assert (other.draft_rank[0], other.argmax_rank[0]) == (0, 0)
    assert (other.draft_prob.low[0], other.draft_prob.high[0]) == (0.0, pytest.approx(0.1))
    with pytest.raises(ValueError, match="1 and 2 steps"):
        compare_logged(told([0.6, 0.3]), exact(np.full((2, 10), 0.1), 2))
    assert other.tv.low[0] == pytest.approx(0.5)  # 0.6 - 0.1, and q's rest is at most 0.1


@pytest.mark.parametrize(
    ("p", "q", "least", "prob"),
    [
        ([0.4, 0.1], [0.5, 0.4], 0.7, 0.1),  # a token that p does not list: at most its least
        ([0.9, 0.05], [0.4, 0.1], 0.8, 0.05),  # one that q does not list: at most 0.1, not 0.5
        ([0.9, 0.05], [0.5, 0.45], 0.85, 0.05),  # at most 0.05, what is left, not 0.45
    ],
)
def test_what_is_not_listed_is_capped(
    p: list[float], q: list[float], least: float, prob: float
) -> None:
    pair = compare_logged(
        TopK.from_log_probs([[4, 2]], [np.log(p)], 0.0, 10),
        TopK.from_log_probs([[7, 2]], [np.log(q)], 0.0, 10),
    )
    assert pair.tv.low[0] == pytest.approx(least)
    assert pair.draft_prob.high[0] == pytest.approx(prob)
    unlisted = min(q[1], 1 - sum(q))  # the most that q has of p's first token
    assert pair.kl.low[0] >= p[0] * np.log(p[0] / unlisted) - p[0] + unlisted


def test_a_total_variation_is_at_most_one() -> None:
    p, q = (TopK.from_log_probs([ids], [np.log([0.6, 0.3])], 0.01, 10) for ids in ([4, 2], [7, 8]))
    assert compare_logged(p, q).tv.high[0] == 1.0


@pytest.mark.parametrize("q_k", [5, 2])
@pytest.mark.parametrize("near", [False, True])
def test_the_kl_counts_what_the_drafter_has_elsewhere(q_k: int, near: bool) -> None:
    """p lists a token of probability 0, so its tail is 0 too; q has its mass beyond p's list."""
    p = np.array([[0.999, 0.001, 0.0, 0.0, 0.0]])
    q = np.array([[0.4, 0.0005, 0.0005, 0.59, 0.009]])
    if near:
        p, q = np.array([[0.7, 0.3, 0, 0, 0]]), np.array([[0.699, 0.3, 0.0005, 0.0003, 0.0002]])
    pair = compare_logged(exact(p, 3), exact(q, q_k))
    true = float(np.sum(p * np.log(np.maximum(p, 1e-300) / q)))
    assert pair.kl.low[0] <= true * (1 + 1e-12)
    whole = q_k == 5 or near
    assert pair.kl.high[0] == pytest.approx(true if whole else np.inf, abs=1e-12)
    found = judge_logged(pair, [StrictGreedy()])["greedy"]
    assert found["certified_kl"][0][0] == (near and found["acceptance"][0][0])
    assert len(logged_violations(found)) == 0


def exact(p: np.ndarray, k: int) -> TopK:
    full = TopK.from_probabilities(p, k)
    with np.errstate(divide="ignore"):
        return TopK.from_log_probs(full.ids, np.log(full.probs), 0.0, p.shape[1])

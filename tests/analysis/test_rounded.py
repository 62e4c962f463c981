"""Certificates and pairs of logs of rounded log-probabilities contain those of what was rounded."""

from __future__ import annotations

import numpy as np
import pytest

from analysis import TopK, certify
from analysis.acceptance.logged import compare_logged, judge_logged, logged_violations
from analysis.certificates.certify import Certificates
from analysis.rules import AbsoluteThreshold, Additive, Mars, Rule, StrictGreedy, TopMAdditive, Tree
from tests.analysis import cases
from tests.divergences import kl, total_variation

V = 60
RULES: list[Rule] = [
    *(rule for rule in cases.RULES if not isinstance(rule, Mars)),
    *(Additive(0.0), Additive(1.0), AbsoluteThreshold(0.0), TopMAdditive(4, 0.2, "paper")),
]


def distributions(steps: int, seed: int = 0) -> np.ndarray:
    """(steps, V) probabilities, of flat to certain; near-ties and zeros among them."""
    rng = np.random.default_rng(seed)
    logits = rng.gumbel(size=(steps, V)) * rng.gamma(2, 1.5, size=(steps, 1))
    logits[::5, 1] = logits[::5, 0] + rng.normal(size=len(logits[::5])) * 1e-3
    logits[::7] *= 20
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p[p < 1e-12] = 0.0
    return p / p.sum(axis=1, keepdims=True)


def printed(p: np.ndarray, k: int, digits: int) -> TopK:
    """The top k of full distributions, as an engine prints them."""
    full = TopK.from_probabilities(p, k)
    with np.errstate(invalid="ignore"):
        log_probs = np.round(full.log_probs, digits)
    return TopK.from_log_probs(full.ids, log_probs, 0.5 * 10.0**-digits, p.shape[1])


def assert_inside(found: Certificates, exact: Certificates, rules: list[Rule]) -> None:
    for at, rule in enumerate(rules):
        assert np.all(found.lower[:, at] <= exact.lower[:, at]), rule.label
        assert np.all(exact.upper[:, at] <= found.upper[:, at]), rule.label


@pytest.mark.parametrize("digits", [1, 2, 4, 8])
@pytest.mark.parametrize("k", [2, 8, 20, V])
@pytest.mark.parametrize("divergence", ["kl", "tv"])
def test_contain_the_exact_ones(digits: int, k: int, divergence: str) -> None:
    p, rules = distributions(400, seed=digits + k), [rule for rule in RULES if rule.minimum_k <= k]
    found = certify(printed(p, k, digits), rules, divergence=divergence)
    exact = certify(TopK.from_probabilities(p), rules, divergence=divergence)
    assert_inside(found, exact, rules)
    greedy = found.upper[:, 0] - found.lower[:, 0]
    assert np.median(greedy) < 3 * 10.0**-digits


def test_contain_those_of_any_distribution_of_the_box() -> None:
    rng = np.random.default_rng(5)
    p, k, digits = distributions(300, seed=9), 6, 1
    told = printed(p, k, digits)
    found = certify(told, RULES)
    low, high = told.prob_range
    tail_low, tail_high = told.tail_range
    tried = 0
    for _ in range(60):
        ends = rng.random((len(p), 1)) < 0.3
        share = np.where(ends, rng.integers(0, 2, low.shape), rng.random(low.shape))
        top = -np.sort(-(low + share * (high - low)), axis=1)
        rest = 1.0 - top.sum(axis=1)
        weights = rng.random((len(p), V - k)) ** rng.integers(1, 9)
        others = rest[:, None] * weights / weights.sum(axis=1, keepdims=True)
        fits = (rest >= 0) & (others.max(axis=1) <= top[:, -1])
        tried += int(fits.sum())
        assert np.all((tail_low <= rest) & (rest <= tail_high) | ~fits)
        full = TopK.from_probabilities(np.column_stack([top, others])[fits])
        exact = certify(full, RULES)
        inside = Certificates(*(column[fits] for column in found))
        assert_inside(inside, exact, RULES)
        least, most = told.entropy_range
        assert np.all(full.entropy >= least[fits] - 1e-9)
        assert np.all(full.entropy <= most[fits] + 1e-9)
    assert tried > 2000


def test_two_log_probabilities_suffice_for_strict_greedy() -> None:
    found = certify(printed(distributions(500), 2, 6), StrictGreedy())
    assert np.max(found.upper - found.lower) < 2e-6
    with pytest.raises(ValueError, match="needs the 4 most probable"):
        certify(printed(distributions(3), 3, 6), Tree(3))


def test_a_tie_in_print_is_certified_at_zero_at_least() -> None:
    told = TopK.from_log_probs([[3, 1]], [[-0.7, -0.7]], 0.005, 50)
    found = certify(told, [StrictGreedy(), Tree(1)])
    assert found.lower.tolist() == [[0.0, 0.0]]
    assert np.all((found.upper > 0) & (found.upper < 1e-3))


def test_a_threshold_within_the_error_leaves_the_count_open() -> None:
    # p = 0.5, 0.4, ...: additive t = 0.1 accepts rank 2 or not, by a rounding
    told = TopK.from_log_probs([[0, 1, 2]], [np.log([0.5, 0.4, 0.05])], 1e-3, 50)
    found = certify(told, [Additive(0.1), Additive(0.09), Additive(0.11)])
    assert found.lower[0, 0] == pytest.approx(found.lower[0, 1])
    assert found.upper[0, 0] == pytest.approx(found.upper[0, 2])
    assert found.lower[0, 2] > found.upper[0, 1]


def test_where_all_that_is_listed_is_accepted() -> None:
    """The first rejected token is unlisted: as probable as theta, or 0 beside one that has all."""
    rule, told = AbsoluteThreshold(0.05), TopK.from_log_probs([[0, 1]], [np.log([0.6, 0.3])], 0, 10)
    found = certify(told, rule)
    for end, tail in ((found.lower, [0.05, 0.05, *[0.0] * 6]), (found.upper, [0.1, *[0.0] * 7])):
        assert end[0, 0] == pytest.approx(cases.certificate(np.array([0.6, 0.3, *tail]), rule))


def test_what_is_unknown_is_refused() -> None:
    told = printed(distributions(3), 5, 3)
    with pytest.raises(ValueError, match="compares raw logits"):
        certify(told, Mars(0.9))
    with pytest.raises(ValueError, match="in kl and tv only"):
        certify(told, StrictGreedy(), divergence="reverse_kl")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[-0.1, 0.2]], "at most 0"),
        ([[-1.0, -0.5]], "values that fall"),
        ([[-0.5, -0.6]], "sum to at most 1"),
        ([[-np.inf, -np.inf]], "finite largest"),
    ],
)
def test_impossible_log_probabilities_are_refused(values: list, message: str) -> None:
    with pytest.raises(ValueError, match=rf"step 0: .*{message}"):
        TopK.from_log_probs([[0, 1]], values, 1e-4, 50)


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
    shown = printed(p, k, digits)
    pair = compare_logged(shown, printed(q, draft_k, digits))
    slack = 1e-9
    for name, divergence in (("tv", total_variation), ("kl", kl)):
        true = divergence(np.log(p), np.log(q))
        assert np.all(pair[f"{name}_low"] <= true + slack)
        assert np.all(true <= pair[f"{name}_high"] + slack)
    # an unlisted tail leaves the KL without a bound; many digits of all tokens say nearly all
    tail = 1 - np.sort(p, axis=1)[:, -k:].sum(axis=1)
    if noise and digits == 6 and k == draft_k:
        assert np.all(np.isinf(pair["kl_high"][tail > 1e-4]))
        assert np.all(pair["kl_low"][tail > 1e-4] > 0) or k < 20
        assert np.all(np.isfinite(pair["tv_high"]))
    if k == V and digits == 6:
        assert np.max(pair["tv_high"] - pair["tv_low"]) < 1e-4
        assert np.median(pair["kl_high"] - pair["kl_low"]) < 1e-3
    rank = 1 + np.argmax(np.argsort(-p, axis=1, kind="stable") == q.argmax(axis=1)[:, None], axis=1)
    listed = pair["draft_rank"] > 0
    assert np.array_equal(listed, rank <= k)
    assert np.array_equal(pair["draft_rank"][listed], rank[listed])
    rules = [rule for rule in RULES if rule.minimum_k <= k]
    judged = judge_logged(shown, pair, draft_k, rules)
    target = TopK.from_probabilities(p)
    own = 1 + np.argmax(np.argsort(-q, axis=1, kind="stable") == p.argmax(axis=1)[:, None], axis=1)
    for rule in rules:
        found = judged[rule.label]
        inside = own <= rule.m if isinstance(rule, Tree) else rank <= rule.accepted_count(target)
        assert np.all(found["acceptance"][0] <= inside), rule
        assert np.all(inside <= found["acceptance"][1]), rule
        assert len(logged_violations(found)) == 0
        assert np.all(found["certified_tv"][0] <= inside)


def test_made_up_step() -> None:
    # p = 0.6, 0.3, q = 0.5, 0.4 on the same two tokens, the rest unknown, without rounding
    def told(top: list[float]) -> TopK:
        return TopK.from_log_probs([[4, 2]], [np.log(top)], 0.0, 10)

    pair = compare_logged(told([0.6, 0.3]), told([0.5, 0.4]))
    assert pair["tv_low"][0] == pytest.approx(0.1)
    assert pair["tv_high"][0] == pytest.approx(0.2)  # the rests may lie on different tokens
    assert (pair["draft_rank"][0], pair["argmax_rank"][0]) == (1, 1)
    other = compare_logged(
        told([0.6, 0.3]), TopK.from_log_probs([[7, 2]], [np.log([0.5, 0.4])], 0.0, 10)
    )
    assert (other["draft_rank"][0], other["argmax_rank"][0]) == (0, 0)
    assert (other["draft_prob_low"][0], other["draft_prob_high"][0]) == (0.0, pytest.approx(0.1))
    with pytest.raises(ValueError, match="1 and 2 steps"):
        compare_logged(told([0.6, 0.3]), exact(np.full((2, 10), 0.1), 2))
    apart = [TopK.from_log_probs([x], [np.log([0.6, 0.3])], 0.01, 10) for x in ([4, 2], [7, 8])]
    assert compare_logged(*apart)["tv_high"][0] == 1.0
    assert other["tv_low"][0] == pytest.approx(0.5)  # 0.6 - 0.1, and q's rest is at most 0.1


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
    assert pair["tv_low"][0] == pytest.approx(least)
    assert pair["draft_prob_high"][0] == pytest.approx(prob)
    unlisted = min(q[1], 1 - sum(q))  # the most that q has of p's first token
    assert pair["kl_low"][0] >= p[0] * np.log(p[0] / unlisted) - p[0] + unlisted


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
    assert pair["kl_low"][0] <= true * (1 + 1e-12)
    whole = q_k == 5 or near
    assert pair["kl_high"][0] == pytest.approx(true if whole else np.inf, abs=1e-12)
    found = judge_logged(exact(p, 3), pair, q_k, [StrictGreedy()])["greedy"]
    assert found["certified_kl"][0][0] == (near and found["acceptance"][0][0])
    assert len(logged_violations(found)) == 0


def exact(p: np.ndarray, k: int) -> TopK:
    full = TopK.from_probabilities(p, k)
    with np.errstate(divide="ignore"):
        return TopK.from_log_probs(full.ids, np.log(full.probs), 0.0, p.shape[1])

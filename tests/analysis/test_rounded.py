"""Certificates of rounded log-probabilities contain those of what was rounded."""

from __future__ import annotations

import numpy as np
import pytest

from analysis import TopK, certify
from analysis.certificates.certify import Certificates
from analysis.rules import AbsoluteThreshold, Additive, Mars, Rule, StrictGreedy, TopMAdditive, Tree
from tests.analysis import cases

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
def test_contain_the_exact_ones(digits: int, k: int) -> None:
    p, rules = distributions(400, seed=digits + k), [rule for rule in RULES if rule.minimum_k <= k]
    found = certify(printed(p, k, digits), rules)
    exact = certify(TopK.from_probabilities(p), rules)
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

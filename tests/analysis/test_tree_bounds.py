"""Draft trees: acceptance over sibling indices, its entropy, and the bounds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from analysis.acceptance import divergences
from analysis.trees import acceptance, bounds
from analysis.trees.optimal import optimal
from analysis.trees.topology import sequence, symmetric, tree_tokens_per_call

from .test_trees import FALLING, some_rates


def test_measured_acceptance_uses_each_node_for_the_children_it_had() -> None:
    whole = acceptance.sibling_rates(np.array([1, 2, 0, 1, 3]), np.full(5, 3))
    np.testing.assert_allclose(whole, [0.4, 0.2, 0.2])  # plain shares; the rest is in no index
    # one child each: it says nothing of the second
    mixed = acceptance.sibling_rates(np.array([1, 0, 2, 0]), np.array([1, 1, 2, 2]))
    np.testing.assert_allclose(mixed, [0.25, 0.75 * 0.5])
    # the only node with two children accepted its first: the second was never tested
    assert acceptance.sibling_rates(np.array([1, 0]), np.array([2, 1])).tolist() == [0.5]
    assert acceptance.sibling_rates(np.array([], int), np.array([], int)).tolist() == []
    with pytest.raises(ValueError, match=r"accepted\[1\]=2"):
        acceptance.sibling_rates(np.array([0, 2]), np.array([1, 1]))


def test_measured_acceptance_is_consistent_when_trees_differ() -> None:
    generator = np.random.default_rng(3)
    index = generator.choice(5, size=200_000, p=[*FALLING, 0.15]) + 1
    children = generator.integers(0, 5, len(index))
    accepted = np.where(index <= children, index, 0)
    np.testing.assert_allclose(acceptance.sibling_rates(accepted, children), FALLING, atol=0.006)


def pairs(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(7)
    found = [tuple(generator.dirichlet(np.full(6, a), size=2)) for a in [0.3, 1, 5] * count]
    return [(p, q) for p, q in found if q.min() > 0.03]  # indices end before LONG


LONG = 1000


def kl(p: np.ndarray, q: np.ndarray) -> float:
    with np.errstate(divide="ignore"):
        return float(divergences.kl(np.log(p)[None], np.log(q)[None])[0])


@pytest.mark.parametrize("law", [acceptance.rejection_rates, acceptance.race_rates])
def test_index_entropy_of_independent_drafts_is_at_least_the_divergence(law) -> None:  # type: ignore[no-untyped-def]
    """Equation (6), and (8) for races."""
    tried = pairs(20)
    assert len(tried) > 10
    for p, q in tried:
        rates = law(p, q, LONG)
        assert rates.sum() == pytest.approx(1, abs=1e-9)
        assert acceptance.index_entropy(rates) >= kl(p, q) - 1e-9
        if law is acceptance.race_rates:
            assert acceptance.index_entropy(rates) <= bounds.race_entropy_upper(kl(p, q))
    p = tried[0][0]
    assert law(p, p, 3).tolist() == pytest.approx([1, 0, 0], abs=1e-12)  # (6) is attained
    assert acceptance.index_entropy(law(p, p, 1)) == pytest.approx(0, abs=1e-12)


def test_index_entropy_without_replacement_can_be_below_the_divergence() -> None:
    """Of two tokens an index says at most log 2, and the divergence has no bound."""
    q = np.array([0.01, 0.99])
    p = q[::-1]
    assert kl(p, q) > 4.5 > math.log(2)
    assert acceptance.index_entropy(acceptance.rejection_rates(p, q, 2000)) > 4.5


def test_rejection_rates_are_those_of_normalised_residuals() -> None:
    for p, q in pairs(3):
        wanted, left, target = [], 1.0, p
        for _ in range(8):
            accepted = np.minimum(target, q).sum()
            wanted.append(left * accepted)
            left *= 1 - accepted
            target = np.maximum(target - q, 0) / np.maximum(target - q, 0).sum()
        np.testing.assert_allclose(acceptance.rejection_rates(p, q, 8), wanted, atol=1e-12)
        tv = divergences.total_variation(np.log(p)[None], np.log(q)[None])[0]
        assert wanted[0] == pytest.approx(1 - tv)


def test_race_rates_are_those_of_a_poisson_process() -> None:
    p, q = np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.1, 0.2, 0.3, 0.4])
    generator = np.random.default_rng(5)
    times = generator.exponential(size=(40_000, 150)).cumsum(1)
    tokens = generator.choice(4, size=times.shape, p=q)
    with np.errstate(divide="ignore"):
        index = (times * (q / p)[tokens]).argmin(1)
    found = np.bincount(index, minlength=6)[:6] / len(index)
    np.testing.assert_allclose(acceptance.race_rates(p, q, 6), found, atol=0.01)  # 4 std. errors
    winner = tokens[np.arange(len(index)), index]
    np.testing.assert_allclose(np.bincount(winner, minlength=4) / len(index), p, atol=0.01)


def test_first_race_draft_is_accepted_with_the_closed_form_of_divergences() -> None:
    cases = [*pairs(5), (np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.25, 0.75]))]
    for p, q in cases:
        with np.errstate(divide="ignore"):
            log_p, log_q = np.log(p)[None], np.log(q)[None]
        first = divergences.erss_acceptance(log_p, log_q)[0]
        assert acceptance.race_rates(p, q, 1)[0] == pytest.approx(first, rel=1e-12)
        drawn = q > 0
        missed = acceptance.mismatch(p, q)
        assert (q * (1 - missed))[drawn].sum() == pytest.approx(first, rel=1e-12)
        assert (missed[drawn] <= bounds.mismatch_upper(p, q)[drawn] + 1e-12).all()  # Lemma C.2
        tighter = q * (1 - p) / (p + q - p * q)
        assert (missed[drawn] <= tighter[drawn] + 1e-12).all()
        tv = divergences.total_variation(log_p, log_q)[0]
        assert 1 - tv + 1e-12 >= first  # Lemma C.1
        assert first >= max(divergences.harmonic_mean(log_p, log_q)[0], (1 - tv) / (1 + tv)) - 1e-12


def test_mismatch_is_that_of_the_sums_it_abbreviates() -> None:
    for p, q in pairs(3):
        slow = [1 - 1 / (q[i] * np.maximum(p / p[i], q / q[i]).sum()) for i in range(len(p))]
        np.testing.assert_allclose(acceptance.mismatch(p, q), slow, atol=1e-12)
    p, q = np.array([0.4, 0.0, 0.6]), np.array([0.3, 0.7, 0.0])
    missed = acceptance.mismatch(p, q)
    assert missed[0] == pytest.approx(0.3 * 0.6 / (0.7 - 0.12))  # one shared token: attained
    assert missed[1] == 1
    assert np.isnan(missed[2])
    assert bounds.mismatch_upper(p, q)[:2] == pytest.approx([3 / 7, 1])


def test_lemma_c1_says_at_most_one_half() -> None:
    for p, _ in pairs(2):
        log_p = np.log(p)[None]
        assert divergences.harmonic_mean(log_p, log_p)[0] == pytest.approx(0.5)
        assert divergences.erss_acceptance(log_p, log_p)[0] == pytest.approx(1)


@pytest.mark.parametrize("k", [0, 1, 2, 5, 30, 200])
def test_no_tree_exceeds_its_bounds(k: int) -> None:
    generator = np.random.default_rng(k)
    for _ in range(20):
        whole = np.sort(generator.dirichlet(np.full(8, 0.5)))[::-1]
        tree = optimal(whole, k)
        tokens = tree_tokens_per_call(tree, whole)
        h = acceptance.index_entropy(whole)
        assert tokens <= bounds.tunstall_upper(h, 8, k) * (1 + 1e-12)
        assert bounds.tunstall_upper(h, 8, k) <= bounds.tunstall_upper(h, 8, k, tight=False)
        used = whole[: max(tree.siblings, default=0)]
        for tight in (True, False):
            m, least = bounds.least_residual_upper(used, k, tight)
            assert tokens <= least * (1 + 1e-12)
            tried = [bounds.residual_upper(used, k, m, tight) for m in (1, 2, 3, 5, 10, 100, 10**5)]
            assert least <= min(tried) * (1 + 1e-12)
            if math.isfinite(m):
                assert least == bounds.residual_upper(used, k, int(m), tight)


def test_theorem_4_2_is_attained_by_complete_trees_of_uniform_indices() -> None:
    for width, depth in ((2, 3), (4, 2), (3, 1)):
        k = len(symmetric(width, depth - 1))
        h = math.log(width)
        tokens = tree_tokens_per_call(symmetric(width, depth - 1), [1 / width] * width)
        assert tokens == pytest.approx(bounds.tunstall_upper(h, width, k))
        if k:
            assert tokens < bounds.tunstall_upper(h, width, k, tight=False)


def test_lemma_4_3_by_hand_and_in_the_limit() -> None:
    rates = np.array([0.5, 0.25])
    h = 0.5 * math.log(2) + 2 * 0.25 * math.log(4)
    by_hand = (math.log(2 + 4) + math.log(11)) / (h + 0.25 * math.log(4))
    assert bounds.residual_upper(rates, 10, 4) == pytest.approx(by_hand)
    # chains: 1 / (1 - a) is the limit of their tokens, and the least bound for long ones
    m, least = bounds.least_residual_upper(np.array([0.8]), 10**6)
    assert (m, least) == (math.inf, pytest.approx(5))
    assert tree_tokens_per_call(sequence(200), [0.8]) == pytest.approx(5)
    assert bounds.least_residual_upper(np.array([0.8]), 4)[0] < math.inf
    # nothing is left over: Theorem 4.2 of d indices
    assert bounds.least_residual_upper(np.array([0.5, 0.5]), 6, tight=True)[1] == pytest.approx(3)
    assert bounds.least_residual_upper(np.array([1.0]), 6)[1] == math.inf
    assert bounds.least_residual_upper(np.array([]), 0)[1] == 1


@pytest.mark.parametrize("tight", [True, False])
def test_the_best_m_is_the_best_of_all(tight: bool) -> None:
    for seed, k in itertools.product(range(10), (1, 3, 10, 100)):
        rates = some_rates(seed, falling=True)[: 1 + seed % 4]
        m, least = bounds.least_residual_upper(rates, k, tight)
        tried = np.unique(np.geomspace(1, 1e9, 300).astype(int))
        values = [bounds.residual_upper(rates, k, int(at), tight) for at in tried]
        assert least <= min(values) * (1 + 1e-12)
        if m < 1e3:
            assert m == min(
                range(1, 3 * int(m) + 3), key=lambda at: bounds.residual_upper(rates, k, at, tight)
            )


def test_correlated_acceptance_exceeds_the_bound() -> None:
    """Two states: in one all is accepted, in the other nothing; it is half of each."""
    h, k = math.log(2), 20
    bound = bounds.tunstall_upper(h, 2, k)
    assert tree_tokens_per_call(sequence(k), [0.5]) < bound < (1 + k + 1) / 2
    assert bound == pytest.approx(math.log2(22))


def test_bound_8_is_in_bits() -> None:
    assert bounds.race_entropy_upper(0.0) == pytest.approx(4 * math.log(2))
    assert bounds.race_entropy_upper(3 * math.log(2)) == pytest.approx(9 * math.log(2))


def test_entropy_is_in_nats_and_leaves_zeros_out() -> None:
    assert acceptance.index_entropy(np.array([0.5, 0.0, 0.5])) == pytest.approx(math.log(2))
    assert acceptance.index_entropy(np.array([])) == 0

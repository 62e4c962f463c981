"""Draft trees: acceptance over sibling indices, its entropy, and the bounds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from analysis.trees import acceptance, bounds
from analysis.trees.optimal import optimal
from analysis.trees.topology import sequence, symmetric, tree_tokens_per_call

from .test_trees import some_rates


def test_measured_acceptance_uses_each_node_for_the_children_it_had() -> None:
    whole = acceptance.measured_rates(np.array([1, 2, 0, 1, 3]), np.full(5, 3))
    np.testing.assert_allclose(whole, [0.4, 0.2, 0.2])  # plain shares; the rest is in no index
    # one child each: it says nothing of the second
    mixed = acceptance.measured_rates(np.array([1, 0, 2, 0]), np.array([1, 1, 2, 2]))
    np.testing.assert_allclose(mixed, [0.25, 0.75 * 0.5])
    # the only node with two children accepted its first: the second was never tested
    assert acceptance.measured_rates(np.array([1, 0]), np.array([2, 1])).tolist() == [0.5]
    assert acceptance.measured_rates(np.array([], int), np.array([], int)).tolist() == []
    with pytest.raises(ValueError, match=r"accepted\[1\]=2"):
        acceptance.measured_rates(np.array([0, 2]), np.array([1, 1]))


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

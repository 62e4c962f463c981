"""Draft trees: shapes, the optimal tree against all trees, acceptance by sibling, bounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest

from analysis.decoding.formulas import tokens_per_call as chain_tokens
from analysis.trees import acceptance
from analysis.trees.optimal import best_trees, optimal
from analysis.trees.topology import (
    ROOT,
    Topology,
    batch,
    sequence,
    spec_infer,
    symmetric,
    tree_tokens_per_call,
)

RISING = np.array([0.1, 0.45, 0.2, 0.15])  # a second child that is accepted more often
FALLING = np.array([0.5, 0.2, 0.1, 0.05])


def every_tree(k: int) -> Iterator[Topology]:
    """Every ordered tree of k nodes, once: a node comes after those of its parent's path."""

    def grow(parents: tuple[int, ...], path: tuple[int, ...]) -> Iterator[Topology]:
        if len(parents) == k:
            yield Topology(parents)
            return
        for at, parent in enumerate(path):
            yield from grow((*parents, parent), (*path[: at + 1], len(parents)))

    yield from grow((), (ROOT,))


def some_rates(seed: int, falling: bool) -> np.ndarray:
    generator = np.random.default_rng(seed)
    rates = generator.dirichlet(np.full(5, 0.6))[:4]  # the fifth part is left over
    return np.sort(rates)[::-1] if falling else rates


def test_shapes() -> None:
    assert sequence(3).parents == (-1, 0, 1)
    assert batch(3).parents == (-1, -1, -1)
    assert batch(0) == sequence(0) == symmetric(3, 0) == Topology(())
    tree = symmetric(3, 3)
    assert len(tree) == 3 + 9 + 27
    assert tree.depth == 3
    assert np.bincount(tree.siblings).tolist() == [0, 13, 13, 13]
    tree = spec_infer()
    assert len(tree) == 20
    assert np.bincount(tree.depths).tolist() == [0, 1, 1, 3, 3, 3, 3, 3, 3]
    assert spec_infer(2) == sequence(2)
    assert tree.within(2) == sequence(2)
    assert tree.within(8) == tree
    tree = Topology((-1, 0, -1, 0, 2, 1))
    assert tree.children == ((1, 3), (5,), (4,), (), (), (), (0, 2))
    assert tree.depths == (1, 2, 1, 2, 2, 3)
    assert tree.siblings == (1, 1, 2, 2, 1, 1)
    assert tree.within(1) == batch(2)
    assert Topology((-1, 0, 1, -1)).within(1) == batch(2)  # nodes are numbered again
    for parents in ((0,), (-2,), (-1, 1)):
        with pytest.raises(ValueError, match="is not allowed"):
            Topology(parents)


def test_expected_tokens_of_named_trees() -> None:
    assert tree_tokens_per_call(sequence(6), [0.7]) == pytest.approx(chain_tokens(0.7, 6))
    level = FALLING[:2].sum()
    levels = sum(level**depth for depth in range(4))
    assert tree_tokens_per_call(symmetric(2, 3), FALLING) == pytest.approx(levels)
    a, three = 0.5, FALLING[:3].sum()
    wanted = 1 + a + a**2 * (1 + three * sum(a**i for i in range(6)))
    assert tree_tokens_per_call(spec_infer(), FALLING) == pytest.approx(wanted)
    assert tree_tokens_per_call(Topology(()), []) == 1
    with pytest.raises(ValueError, match="sibling index 3"):
        tree_tokens_per_call(batch(3), [0.5, 0.2])


@pytest.mark.parametrize("falling", [True, False])
@pytest.mark.parametrize("k", range(8))
def test_no_tree_of_equal_size_is_expected_to_emit_more(k: int, falling: bool) -> None:
    trees = [tree for tree in every_tree(k) if max(tree.siblings, default=0) <= 4]
    for seed in range(4):
        rates = some_rates(seed, falling)
        tokens = [tree_tokens_per_call(tree, rates) for tree in trees]
        best = optimal(rates, k)
        assert len(best) == k
        assert tree_tokens_per_call(best, rates) == pytest.approx(max(tokens), rel=1e-12)
        for depth in range(1, k + 1):
            limited = [t for t, tree in zip(tokens, trees, strict=True) if tree.depth <= depth]
            if not limited:  # four children each are too few for k nodes in so few levels
                with pytest.raises(ValueError, match="no tree of depth"):
                    optimal(rates, k, depth)
                continue
            best = optimal(rates, k, depth)
            assert best.depth <= depth
            assert tree_tokens_per_call(best, rates) == pytest.approx(max(limited), rel=1e-12)


def test_limits_of_the_optimal_tree() -> None:
    assert optimal([0.9, 0.05], 5) == optimal([1.0, 0.0], 5) == sequence(5)
    assert optimal([0.3] * 3, 3) == batch(3)
    assert optimal([0.0], 3).depth == 3  # nothing is gained, yet k nodes were asked for
    whole = optimal([0.25] * 4, 84)
    assert np.bincount(whole.depths).tolist() == [0, 4, 16, 64]  # 4 + 16 + 64: complete levels
    # a heap would miss a child that is better than the one before it
    assert optimal(RISING, 2) == batch(2)
    assert tree_tokens_per_call(optimal([0.0, 1.0], 4), [0.0, 1.0]) == 3  # two pairs
    assert best_trees(RISING, 3)[0].tolist() == pytest.approx([1, 1.1, 1.55, 1.75])


@pytest.mark.parametrize(
    ("rates", "k", "depth", "message"),
    [
        *((rates, 3, None, "rates=.* not allowed") for rates in ([0.7, 0.4], [-0.1], [[0.5]])),
        ([math.nan], 3, None, "rates=.* not allowed"),
        ([0.5, 0.2], 7, 2, "depth 2 at most"),
        ([0.2, 0.5], 7, 2, "depth 2 at most"),
        ([0.5], -1, None, "k=-1"),
        ([], 1, None, "with at most 0 children"),
    ],
)
def test_impossible_trees_are_refused(
    rates: list[float], k: int, depth: int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        optimal(rates, k, depth)


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
        assert tokens <= acceptance.tunstall_upper(h, 8, k) * (1 + 1e-12)
        assert acceptance.tunstall_upper(h, 8, k) <= acceptance.tunstall_upper(h, 8, k, tight=False)
        used = whole[: max(tree.siblings, default=0)]
        for tight in (True, False):
            m, least = acceptance.least_residual_upper(used, k, tight)
            assert tokens <= least * (1 + 1e-12)
            if math.isfinite(m):
                assert least == acceptance.residual_upper(used, k, int(m), tight)


def test_theorem_4_2_is_attained_by_complete_trees_of_uniform_indices() -> None:
    for width, depth in ((2, 3), (4, 2), (3, 1)):
        k = len(symmetric(width, depth - 1))
        h = math.log(width)
        tokens = tree_tokens_per_call(symmetric(width, depth - 1), [1 / width] * width)
        assert tokens == pytest.approx(acceptance.tunstall_upper(h, width, k))
        if k:
            assert tokens < acceptance.tunstall_upper(h, width, k, tight=False)


def test_lemma_4_3_by_hand_and_in_the_limit() -> None:
    rates = np.array([0.5, 0.25])
    h = 0.5 * math.log(2) + 2 * 0.25 * math.log(4)
    by_hand = (math.log(2 + 4) + math.log(11)) / (h + 0.25 * math.log(4))
    assert acceptance.residual_upper(rates, 10, 4) == pytest.approx(by_hand)
    # chains: 1 / (1 - a) is the limit of their tokens, and the least bound for long ones
    m, least = acceptance.least_residual_upper(np.array([0.8]), 10**6)
    assert (m, least) == (math.inf, pytest.approx(5))
    assert tree_tokens_per_call(sequence(200), [0.8]) == pytest.approx(5)
    assert acceptance.least_residual_upper(np.array([0.8]), 4)[0] < math.inf
    # nothing is left over: Theorem 4.2 of d indices
    assert acceptance.least_residual_upper(np.array([0.5, 0.5]), 6, tight=True)[1] == pytest.approx(
        3
    )
    assert acceptance.least_residual_upper(np.array([1.0]), 6)[1] == math.inf
    assert acceptance.least_residual_upper(np.array([]), 0)[1] == 1


@pytest.mark.parametrize("tight", [True, False])
def test_the_best_m_is_the_best_of_all(tight: bool) -> None:
    for seed, k in itertools.product(range(10), (1, 3, 10, 100)):
        rates = some_rates(seed, falling=True)[: 1 + seed % 4]
        m, least = acceptance.least_residual_upper(rates, k, tight)
        tried = np.unique(np.geomspace(1, 1e9, 300).astype(int))
        values = [acceptance.residual_upper(rates, k, int(at), tight) for at in tried]
        assert least <= min(values) * (1 + 1e-12)
        if m < 1e3:
            assert m == min(
                range(1, 3 * int(m) + 3),
                key=lambda at: acceptance.residual_upper(rates, k, at, tight),
            )

"""Draft trees: shapes, the optimal tree against all trees, acceptance by sibling, bounds, H[R]."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from analysis.decoding.metrics import tokens_per_call as chain_tokens
from analysis.trees import sibling_rates, token_bounds
from analysis.trees.index_entropies import index_entropies, races_entropy_upper
from analysis.trees.topology import (
    ROOT,
    Topology,
    batch,
    best_trees,
    optimal,
    sequence,
    spec_infer,
    symmetric,
    tree_tokens_per_call,
)
from tests import divergences

from .exact import exact

FALLING = np.array([0.5, 0.2, 0.1, 0.05])


def every_tree(k):
    """Every ordered tree of k nodes, once: a node comes after those of its parent's path."""

    def grow(parents, path):
        if len(parents) == k:
            yield Topology(parents)
            return
        for at, parent in enumerate(path):
            yield from grow((*parents, parent), (*path[: at + 1], len(parents)))

    yield from grow((), (ROOT,))


def some_rates(seed):
    rates = np.random.default_rng(seed).dirichlet(np.full(5, 0.6))[:4]  # the fifth is left over
    return np.sort(rates)[::-1]


def test_shapes():
    assert sequence(3).parents == (-1, 0, 1)
    assert batch(3).parents == (-1, -1, -1)
    assert sequence(0) == symmetric(3, 0) == Topology(())
    tree = symmetric(3, 3)
    assert np.bincount(tree.depths).tolist() == [0, 3, 9, 27]
    assert np.bincount(tree.siblings).tolist() == [0, 13, 13, 13]
    assert np.bincount(spec_infer().depths).tolist() == [0, 1, 1, 3, 3, 3, 3, 3, 3]
    assert spec_infer(2) == spec_infer().within(2) == sequence(2)
    tree = Topology((-1, 0, -1, 0, 2, 1))
    assert tree.children == ((1, 3), (5,), (4,), (), (), (), (0, 2))
    assert tree.depths == (1, 2, 1, 2, 2, 3)
    assert tree.siblings == (1, 1, 2, 2, 1, 1)
    assert Topology((-1, 0, 1, -1)).within(1) == batch(2)  # nodes are numbered again
    for parents in ((0,), (-2,)):
        with pytest.raises(ValueError, match="is not allowed"):
            Topology(parents)


def test_expected_tokens_of_named_trees():
    assert tree_tokens_per_call(sequence(6), [0.7]) == pytest.approx(chain_tokens(0.7, 6))
    level = FALLING[:2].sum()
    levels = sum(level**depth for depth in range(4))
    assert tree_tokens_per_call(symmetric(2, 3), FALLING) == pytest.approx(levels)
    a, three = 0.5, FALLING[:3].sum()
    wanted = 1 + a + a**2 * (1 + three * sum(a**i for i in range(6)))
    assert tree_tokens_per_call(spec_infer(), FALLING) == pytest.approx(wanted)
    with pytest.raises(ValueError, match="sibling index 3"):
        tree_tokens_per_call(batch(3), [0.5, 0.2])


@pytest.mark.parametrize("k", range(8))
def test_no_tree_of_equal_size_is_expected_to_emit_more(k):
    trees = [tree for tree in every_tree(k) if max(tree.siblings, default=0) <= 4]
    for seed in range(4):
        rates = some_rates(seed)
        tokens = [tree_tokens_per_call(tree, rates) for tree in trees]
        best = optimal(rates, k)
        assert len(best) == k
        assert tree_tokens_per_call(best, rates) == pytest.approx(max(tokens), rel=1e-12)
        assert best_trees(rates, k)[1][-1] == pytest.approx(max(tokens), rel=1e-12)
        for depth in range(1, k + 1):
            limited = [t for t, tree in zip(tokens, trees, strict=True) if tree.depth <= depth]
            if not limited:  # four children each are too few for k nodes in so few levels
                with pytest.raises(ValueError, match="no tree of depth"):
                    optimal(rates, k, depth)
                continue
            best = optimal(rates, k, depth)
            assert best.depth <= depth
            assert tree_tokens_per_call(best, rates) == pytest.approx(max(limited), rel=1e-12)


def test_limits_of_the_optimal_tree():
    assert optimal([0.0], 3).depth == 3  # nothing is gained, yet k nodes were asked for
    whole = optimal([0.25] * 4, 84)
    assert np.bincount(whole.depths).tolist() == [0, 4, 16, 64]  # 4 + 16 + 64: complete levels
    rising = [0.1, 0.45]  # child 2 is not drafted without child 1
    assert tree_tokens_per_call(optimal(rising, 9), rising) == best_trees(rising, 9)[1][-1]
    with pytest.raises(ValueError, match=r"rates=.* not allowed"):
        optimal([0.7, 0.4], 3)


def test_measured_acceptance_uses_each_node_for_the_children_it_had():
    whole = sibling_rates.measured_rates(np.array([1, 2, 0, 1, 3]), np.full(5, 3))
    np.testing.assert_allclose(whole, [0.4, 0.2, 0.2])  # plain shares; the rest is in no index
    # one child each: it says nothing of the second
    mixed = sibling_rates.measured_rates(np.array([1, 0, 2, 0]), np.array([1, 1, 2, 2]))
    np.testing.assert_allclose(mixed, [0.25, 0.75 * 0.5])
    # the only node with two children accepted its first: the second was never tested
    assert sibling_rates.measured_rates(np.array([1, 0]), np.array([2, 1])).tolist() == [0.5]


@pytest.mark.parametrize("k", [0, 1, 2, 5, 30, 200])
def test_no_tree_exceeds_its_bounds(k):
    generator = np.random.default_rng(k)
    for _ in range(20):
        whole = np.sort(generator.dirichlet(np.full(8, 0.5)))[::-1]
        tree = optimal(whole, k)
        tokens = tree_tokens_per_call(tree, whole)
        h = token_bounds.index_entropy(whole)
        bound = token_bounds.tunstall_upper(h, 8, k, tight=True)
        assert tokens <= bound * (1 + 1e-12)
        assert bound <= token_bounds.tunstall_upper(h, 8, k, tight=False)
        used = whole[: max(tree.siblings, default=0)]
        for tight in (True, False):
            m, least = token_bounds.least_residual_upper(used, k, tight)
            assert tokens <= least * (1 + 1e-12)
            if math.isfinite(m):
                assert least == token_bounds.residual_upper(used, k, int(m), tight)


def test_theorem_4_2_is_attained_by_complete_trees_of_uniform_indices():
    for width, depth in ((2, 3), (4, 2), (3, 1)):
        k = len(symmetric(width, depth - 1))
        h = math.log(width)
        tokens = tree_tokens_per_call(symmetric(width, depth - 1), [1 / width] * width)
        assert tokens == pytest.approx(token_bounds.tunstall_upper(h, width, k, tight=True))
        if k:
            assert tokens < token_bounds.tunstall_upper(h, width, k, tight=False)


def test_tokens_of_optimal_trees_grow_as_log_k_over_the_entropy():
    """G = log k / H[R] + O(1): each doubling of k adds log 2 / H[R] tokens in the end."""
    rates = [0.6, 0.25, 0.1, 0.05]
    added = math.log(2) / token_bounds.index_entropy(np.array(rates))
    tokens = [tree_tokens_per_call(optimal(rates, 2**power), rates) for power in range(6, 14)]
    np.testing.assert_allclose(np.diff(tokens), added, rtol=0.02)


def test_lemma_4_3_by_hand_and_in_the_limit():
    rates = np.array([0.5, 0.25])
    h = 0.5 * math.log(2) + 2 * 0.25 * math.log(4)
    by_hand = (math.log(2 + 4) + math.log(11)) / (h + 0.25 * math.log(4))
    assert token_bounds.residual_upper(rates, 10, 4, tight=False) == pytest.approx(by_hand)
    # chains: 1 / (1 - a) is the limit of their tokens, and the least bound for long ones
    m, least = token_bounds.least_residual_upper(np.array([0.8]), 10**6, tight=False)
    assert (m, least) == (math.inf, pytest.approx(5))
    assert tree_tokens_per_call(sequence(200), [0.8]) == pytest.approx(5)
    assert token_bounds.least_residual_upper(np.array([0.8]), 4, tight=False)[0] < math.inf
    # nothing is left over: Theorem 4.2 of d indices
    least = token_bounds.least_residual_upper(np.array([0.5, 0.5]), 6, tight=True)[1]
    assert least == pytest.approx(3)
    assert token_bounds.least_residual_upper(np.array([1.0]), 6, tight=False)[1] == math.inf


@pytest.mark.parametrize("tight", [True, False])
def test_the_best_m_is_the_best_of_all(tight):
    for seed, k in itertools.product(range(10), (1, 3, 10, 100)):
        rates = some_rates(seed)[: 1 + seed % 4]
        least = token_bounds.least_residual_upper(rates, k, tight)[1]
        tried = np.unique(np.geomspace(1, 1e9, 300).astype(int))
        values = [token_bounds.residual_upper(rates, k, int(at), tight) for at in tried]
        assert least <= min(values) * (1 + 1e-12)


def index_law(p, q):
    """R of races without replacement, exactly: by the set of tokens that precede the winner.

    With the winner i at time t p_i, token j is later under p if e_j > t p_j, and earlier under q
    if e_j < t q_j p_i / q_i. The integral over t of a product of exponentials is a fraction.
    """
    rates = [Fraction(0)] * len(p)
    for i in np.flatnonzero((p > 0) & (q > 0)):
        others = [j for j in range(len(p)) if j != i]
        for choice in itertools.product([0, 1, 2], repeat=len(others)):
            # 0: not earlier, exp(-t max); earlier is the difference of 1, exp(-t p_j), and 2
            scale = p[i] / q[i]
            slopes = [
                p[j] if c == 1 else max(p[j], q[j] * scale)
                for j, c in zip(others, choice, strict=True)
            ]
            earlier = len(others) - choice.count(0)
            rates[earlier] += (-1) ** choice.count(2) * p[i] / (p[i] + sum(slopes))
    return rates


def sampled_rates(p, q):
    """R of speculative sampling without replacement, exactly, over all orders of the drafts.

    Child x is accepted with probability min(1, p/q). After its rejection p becomes the residual
    max(0, p - q), and q loses x (Algorithm 4 of arXiv 2504.15475).
    """
    rates = [Fraction(0)] * len(p)

    def test(p, q, reached, index):
        for x in np.flatnonzero(q):
            accepted = min(Fraction(1), p[x] / q[x])
            rates[index] += reached * q[x] * accepted
            rest = np.maximum(p - q, Fraction(0))
            others = np.where(np.arange(len(q)) == x, Fraction(0), q)
            if accepted < 1 and others.any():
                rejected = reached * q[x] * (1 - accepted)
                test(rest / rest.sum(), others / others.sum(), rejected, index + 1)

    test(p, q, Fraction(1), 0)
    return rates


@pytest.mark.parametrize("races", [False, True])
def test_sums_over_stored_steps_have_the_exact_rates(races):
    p, q, steps = [0.5, 0.1, 0.25, 0.15], [0.2, 0.4, 0.4, 0.0], 40_000
    law = index_law if races else sampled_rates
    wanted = law(*(exact([Fraction(x).limit_denominator(100) for x in row]) for row in (p, q)))
    times = np.random.default_rng(1).exponential(size=(steps, 4))
    p, q = (np.tile(row, (steps, 1)) for row in (p, q))
    found = sibling_rates.drawn_rates(p, q, times, 4, races) / steps
    assert found == pytest.approx(np.array(wanted, dtype=np.float64), abs=0.008)
    assert wanted[3] == 0  # q has three tokens
    assert sibling_rates.drawn_rates(p, p, times, 3, races) == pytest.approx([steps, 0, 0])


def test_rates_of_stored_tokens():
    assert sibling_rates.greedy_rates(np.array([1, 2, 2, 4, 5]), 3).tolist() == [0.2, 0.4, 0]
    target = np.array([[0, 2]]), np.array([[0.5, 0.25]]), np.array([0.25])
    draft = np.array([[2, 1]]), np.array([[0.4, 0.4]]), np.array([0.2])
    p, q = sibling_rates.aligned(target, draft)
    assert p.tolist() == [[0.25, 0, 0.5, 0, 0.25, 0]]
    assert q.tolist() == [[0.4, 0.4, 0, 0, 0, 0.2]]


@pytest.mark.parametrize(("target_size", "draft_size"), [(6, 6), (6, 40), (40, 6)])
def test_tokens_of_both_models_are_put_together(target_size, draft_size):
    """Each step by itself, token by token; a token may be first with either, in any step."""
    rng = np.random.default_rng(target_size)

    def stored(size):
        ids = np.array([rng.permutation(size)[:3] for _ in range(40)])
        weights = rng.dirichlet(np.ones(4), 40)
        return ids, weights[:, :3], weights[:, 3]

    target, draft = stored(target_size), stored(draft_size)
    p, q = sibling_rates.aligned(target, draft)
    first = 0
    for step in range(40):
        ids, weights, tail = (column[step] for column in target)
        of_target = dict(zip(ids.tolist(), weights, strict=True))
        draft_ids, draft_weights, draft_tail = (column[step] for column in draft)
        first += ids[0] in draft_ids
        shared = [of_target.get(token, 0.0) for token in draft_ids.tolist()]
        alone = [0.0 if token in draft_ids else of_target[token] for token in ids.tolist()]
        assert p[step] == pytest.approx([*shared, *alone, tail, 0.0])
        assert q[step] == pytest.approx([*draft_weights, *[0.0] * 4, draft_tail])
    assert first > 0


def made(seed, size, spread):
    """A target and a drafter that gives each token a share of its probability."""
    generator = np.random.default_rng(seed)
    p, q = generator.dirichlet(np.full(size, spread), 2) + 1e-9
    p = p / p.sum()
    q = 0.3 * p + 0.7 * q
    return p, q / q.sum()


def entropies(p, q):
    with np.errstate(divide="ignore"):
        return index_entropies(np.log(p), np.log(q))


def recursions(p, q):
    """The laws of both indices by their definitions, one index after the other."""
    greedy, residual, left = [], p, 1.0
    while left > 1e-10:  # sample, accept what both have, go on with what the target has left
        residual = np.maximum(residual - left * q, 0)
        greedy.append(left - residual.sum())
        left = residual.sum()
    ahead = np.array([np.maximum(p, q * x / y).sum() for x, y in zip(p, q, strict=True)])
    races, reached = [], p
    while reached.sum() > 1e-10:
        races.append((reached / ahead).sum())
        reached = reached * (1 - 1 / ahead)
    of = [np.array(law) for law in (greedy, races)]
    return tuple(-(law[law > 0] * np.log(law[law > 0])).sum() for law in of)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("size", "spread"), [(2, 1.0), (5, 0.2), (60, 0.1)])
def test_entropies_are_those_of_the_recursions(seed, size, spread):
    p, q = made(seed, size, spread)
    kl, greedy, races = entropies(p, q)
    assert (greedy, races) == pytest.approx(recursions(p, q), rel=1e-4)
    assert kl == pytest.approx(divergences.kl(np.log(p)[None], np.log(q)[None])[0], rel=1e-9)
    assert kl <= min(greedy, races) + 1e-12  # (6)
    assert races <= races_entropy_upper(kl)  # (8)


def test_rare_tokens_are_found_late():
    """A token that the target always takes and the drafter once in n: a geometric index."""
    for n in (10, 1000, 10**6):
        kl, greedy, races = entropies(np.array([1.0, 0.0]), np.array([1 / n, 1 - 1 / n]))
        wanted = n * (-(1 / n) * math.log(1 / n) - (1 - 1 / n) * math.log1p(-1 / n))
        assert (greedy, races) == pytest.approx((wanted, wanted), rel=2e-3)
        assert kl == pytest.approx(math.log(n))


def test_races_have_the_simulated_law():
    """Poisson functional representation: arrivals of rate 1 with marks from q, least time q / p."""
    generator, runs, arrivals = np.random.default_rng(0), 40_000, 120
    p, q = made(1, 4, 1.0)
    times = generator.exponential(size=(runs, arrivals)).cumsum(axis=1)
    marks = generator.choice(4, (runs, arrivals), p=q)
    index = (times * (q / p)[marks]).argmin(axis=1)
    shares = np.bincount(index) / runs
    simulated = -(shares[shares > 0] * np.log(shares[shares > 0])).sum()
    assert entropies(p, q)[2] == pytest.approx(simulated, abs=0.01)
    assert shares[0] == pytest.approx(
        divergences.erss_acceptance(np.log(p)[None], np.log(q)[None])[0], abs=0.01
    )


def test_equal_models_and_a_drafter_that_lacks_a_token():
    p = np.array([0.5, 0.3, 0.2])
    assert entropies(p, p) == pytest.approx((0, 0, 0), abs=1e-9)
    assert entropies(p, np.array([0.6, 0.4, 0.0])) == (math.inf,) * 3

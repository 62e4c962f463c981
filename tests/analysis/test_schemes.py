"""Laws of verification: blocks by exact enumeration in fractions, paths and parts by hand."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from analysis.decoding import schemes
from analysis.trees.topology import Topology, batch, expansion, sequence, symmetric
from tests.divergences import argmax_rank

from .exact import Fork, Uniform, distributions, exact, outcomes

Rows = Callable[[tuple[int, ...]], np.ndarray]
SEEDS = range(4)


def after(
    p: np.ndarray, q: np.ndarray, offset: int, at: int
) -> tuple[np.ndarray, np.ndarray | None]:
    at += offset
    return p[at], q[at] if at < len(q) else None


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tree_that_is_a_chain_is_speculative_sampling(seed: int) -> None:
    generator = np.random.default_rng(seed)
    p, q = generator.dirichlet(np.ones(4), 4), generator.dirichlet(np.ones(4), 3)
    drafted = [int(generator.choice(4, p=row)) for row in q]
    for _ in range(50):
        uniforms, last = generator.random(3), generator.random(4)
        at = np.arange(3)
        rows = partial(after, p, q, 0)
        chain = schemes.speculative_sampling(
            p[at, drafted], q[at, drafted], uniforms, rows, last.__getitem__
        )
        path, token = schemes.tree_speculative_sampling(
            sequence(3), drafted, uniforms, partial(after, p, q, 1), last.__getitem__
        )
        assert (len(path), token) == chain


def blocks(k: int, size: int, p: Rows, q: Rows) -> Counter[tuple[int, ...]]:
    def run(fork: Fork) -> tuple[int, ...]:
        drafted: list[int] = []
        for _ in range(k):
            drafted.append(schemes.pick(q(tuple(drafted)), Uniform(fork)))
        prefixes = [tuple(drafted[:at]) for at in range(k + 1)]
        accepted, token = schemes.block_verification(
            drafted,
            np.array([p(text) for text in prefixes]),
            np.array([q(text) for text in prefixes[:k]]).reshape(k, size),
            [Uniform(fork) for _ in range(k)],
            lambda _: Uniform(fork),
        )
        return (*drafted[:accepted], token)

    return outcomes(run)


def accepted(p: Rows, q: Rows, size: int, length: int) -> Fraction:
    """Drafted tokens that are accepted one by one: the products of min(p, q) of every text."""
    found = Fraction(0)
    for at in range(1, length + 1):
        for text in itertools.product(range(size), repeat=at):
            before = [(text[:i], x) for i, x in enumerate(text)]
            found += math.prod(min(p(head)[x], q(head)[x]) for head, x in before)
    return found


def mean_length(law: Counter[tuple[int, ...]]) -> Fraction:
    return sum((len(text) * weight for text, weight in law.items()), Fraction(0))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_block_verification_accepts_at_least_as_much_as_token_by_token(k: int, seed: int) -> None:
    """That it and trees are lossless, tests.pipeline.decoding.test_exact enumerates."""
    size = 3 if k < 3 else 2
    p, q = distributions(seed, size), distributions(seed + 100, size)
    tokens, one_by_one = mean_length(blocks(k, size, p, q)) - 1, accepted(p, q, size, k)
    assert tokens >= one_by_one
    if k < 2:
        assert tokens == one_by_one


def test_block_verification_has_the_published_example() -> None:
    """Section 2 of arXiv 2403.10444: 10/9 tokens are accepted token by token, 11/9 as a block."""
    p = lambda text: exact([Fraction(1, 3), Fraction(2, 3)])  # noqa: E731
    q = lambda text: exact([Fraction(2, 3), Fraction(1, 3)])  # noqa: E731
    assert accepted(p, q, 2, 2) == Fraction(10, 9)
    assert mean_length(blocks(2, 2, p, q)) - 1 == Fraction(11, 9)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("relaxed", [(), (1,), (0, 1)], ids=["none", "rank 2", "ranks 1 and 2"])
def test_relaxed_sampling_emits_what_its_acceptance_gives(
    seed: int, relaxed: tuple[int, ...]
) -> None:
    """r = q a + (1 - sum of q a) (p - q)+ / TV, a = 1 where relaxed, else min(1, p / q).

    MARS above temperature 0 relaxes rank 2 only. Relaxing rank 1 as well is another law.
    """
    p, q = (distributions(seed + more, 3)(()) for more in (0, 100))
    ranked = sorted(range(3), key=lambda token: -p[token])
    also = {ranked[rank] for rank in relaxed}

    def run(fork: Fork) -> int:
        drafted = schemes.pick(q, Uniform(fork))
        accepted, token = schemes.speculative_sampling(
            p[[drafted]],
            q[[drafted]],
            np.array([Uniform(fork)]),
            lambda at: (q, None) if at else (p, q),  # a bonus token is of no interest
            lambda _: Uniform(fork),
            np.array([drafted in also]),
        )
        return drafted if accepted else token

    keep = [
        Fraction(1) if x in also or not q[x] else min(Fraction(1), p[x] / q[x]) for x in range(3)
    ]
    kept = sum(q[x] * keep[x] for x in range(3))
    rest = [max(Fraction(0), p[x] - q[x]) for x in range(3)]
    wanted = [q[x] * keep[x] + (1 - kept) * rest[x] / sum(rest) for x in range(3)]
    law = outcomes(run)
    assert [law[x] for x in range(3)] == wanted
    assert bool(relaxed) or wanted == list(p)


def child_after_child(tree: Any, drafted: Any, p: Any, also: Any, fork: Fork) -> tuple[Any, int]:
    """EAGLE-3's loop: a child is tested with its p, and a rejected token leaves p."""
    path: list[int] = []
    while True:
        node = path[-1] if path else -1
        weights = p[node + 1].copy()
        for child in tree.children[node]:
            if also[child] or Uniform(fork) * weights.sum() < weights[drafted[child]]:
                path.append(child)
                break
            weights[drafted[child]] = Fraction(0)
        else:
            return tuple(path), schemes.pick(weights, Uniform(fork))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("tree", [sequence(2), batch(3), symmetric(2, 2), expansion([2, 1])])
def test_following_draws_has_the_law_of_tests_in_order(tree: Topology, seed: int) -> None:
    """MARS on EAGLE-3's trees, any set of tokens being relaxed; without one it is lossless."""
    generator, size = np.random.default_rng(seed), 4
    p = [distributions(seed, size)((node,)) for node in range(len(tree) + 1)]
    drafted = [0] * len(tree)
    for children in tree.children:
        for child, token in zip(children, generator.permutation(size).tolist(), strict=False):
            drafted[child] = token
    for relaxed in (np.zeros(len(tree), bool), generator.random(len(tree)) < 0.4):
        found = outcomes(
            lambda fork, also=relaxed: schemes.drawn_path(
                tree, drafted, lambda node: p[node + 1], lambda _: Uniform(fork), also
            )
        )
        wanted = outcomes(
            lambda fork, also=relaxed: child_after_child(tree, drafted, p, also, fork)
        )
        assert {key: found[key] for key in found if found[key]} == {
            key: wanted[key] for key in wanted if wanted[key]
        }


@pytest.mark.parametrize("flags", [[1, 1, 0, 1], [0, 1], [1, 1, 1], []])
def test_tests_before_the_first_failure(flags: list[int]) -> None:
    accepted = schemes.leading(np.array(flags, dtype=bool))
    assert all(flags[:accepted])
    assert flags[accepted : accepted + 1] in ([0], [])


def test_a_path_follows_the_choices_of_the_target() -> None:
    assert schemes.match_tree(sequence(3), [4, 5, 6], [4, 5, 7, 8]) == ((0, 1), 7)
    assert schemes.match_tree(sequence(3), [4, 5, 7], [4, 5, 7, 8]) == ((0, 1, 2), 8)
    assert schemes.match_tree(sequence(0), [], [9]) == ((), 9)
    tree = symmetric(2, 2)  # nodes 0, 1; 2, 3 behind 0; 4, 5 behind 1
    drafted = [7, 8, 1, 2, 1, 2]
    assert schemes.match_tree(tree, drafted, [8, 0, 2, 0, 0, 0, 5]) == ((1, 5), 5)
    assert schemes.match_tree(tree, drafted, [8, 0, 3, 0, 0, 0, 0]) == ((1,), 3)
    assert schemes.match_tree(tree, drafted, [3, 0, 0, 0, 0, 0, 0]) == ((), 3)


def test_tree_greedy_accepts_a_level_as_the_rule_says() -> None:
    generator = np.random.default_rng(0)
    target, draft = generator.normal(size=(2, 200, 8))
    rank = argmax_rank(target, draft)
    for m in (1, 3):
        drafted = np.argsort(-draft, axis=1)[:, :m]
        for row, at in enumerate(rank):
            choices = [int(target[row].argmax()), *[0] * m]
            path, _ = schemes.match_tree(batch(m), drafted[row].tolist(), choices)
            assert bool(path) == (at <= m)


def test_impossible_rejection_and_rounding_leave_a_token_of_the_target() -> None:
    p = np.array([0.25, 0.75, 0.0])
    assert schemes.pick(schemes.residual(p, p), 0.5) == 1
    assert schemes.pick(p, np.nextafter(1.0, 0.0)) == 1  # never the token without mass
    assert schemes.pick(np.array([0.0, 1.0]), 0.0) == 1

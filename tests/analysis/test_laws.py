"""Laws of verification: lossless by exact enumeration in fractions, and parts by hand."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from analysis.decoding import laws
from analysis.decoding.laws import NOTHING
from analysis.trees.topology import ROOT, Topology, batch, sequence, symmetric
from tests.divergences import argmax_rank

from .exact import Fork, Uniform, distributions, exact, outcomes

Rows = Callable[[tuple[int, ...]], np.ndarray]
SEEDS = range(4)


def every_tree(k: int) -> Iterator[Topology]:
    """Every ordered tree of k nodes, once: a node comes after those of its parent's path."""

    def grow(parents: tuple[int, ...], path: tuple[int, ...]) -> Iterator[Topology]:
        if len(parents) == k:
            yield Topology(parents)
            return
        for at, parent in enumerate(path):
            yield from grow((*parents, parent), (*path[: at + 1], len(parents)))

    yield from grow((), (ROOT,))


class Drafts:
    """Tokens of a tree, drawn without replacement when they are first asked for."""

    def __init__(self, tree: Topology, q: Rows, fork: Fork) -> None:
        self._tree, self._q, self._fork = tree, q, fork
        self._tokens: dict[int, int] = {}

    def text(self, node: int) -> tuple[int, ...]:
        return () if node == ROOT else (*self.text(self._tree.parents[node]), self[node])

    def __getitem__(self, node: int) -> int:
        if node not in self._tokens:
            parent = self._tree.parents[node]
            weights = self._q(self.text(parent)).copy()
            for sibling in self._tree.children[parent]:
                if sibling < node and self[sibling] != NOTHING:
                    weights[self[sibling]] = Fraction(0)
            drawn = laws.pick(weights, Uniform(self._fork)) if weights.any() else NOTHING
            self._tokens[node] = drawn
        return self._tokens[node]


def check_lossless(law: Counter[tuple[int, ...]], p: Rows, size: int, length: int) -> None:
    """Emitted texts, continued by the target, are distributed as the target's own, exactly."""
    assert sum(law.values()) == 1
    for text in itertools.product(range(size), repeat=length):
        steps = [p(text[:at])[token] for at, token in enumerate(text)]
        found = sum(
            (law[text[:at]] * math.prod(steps[at:], start=Fraction(1)) for at in range(length + 1)),
            Fraction(0),
        )
        assert found == math.prod(steps), text


def sampled(tree: Topology, p: Rows, q: Rows) -> Counter[tuple[int, ...]]:
    def run(fork: Fork) -> tuple[int, ...]:
        drafts = Drafts(tree, q, fork)
        verdict = laws.tree_speculative_sampling(
            tree,
            drafts,
            [Uniform(fork) for _ in range(len(tree))],
            lambda node: (
                p(drafts.text(node)),
                q(drafts.text(node)) if tree.children[node] else None,
            ),
            lambda _: Uniform(fork),
        )
        return (*(drafts[node] for node in verdict[0]), verdict[1])

    return outcomes(run)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("k", "size"), [(0, 3), (1, 3), (2, 3), (3, 3), (4, 2)])
def test_speculative_sampling_is_lossless_on_every_tree(k: int, size: int, seed: int) -> None:
    p, q = distributions(seed, size), distributions(seed + 100, size)
    for tree in every_tree(k):
        check_lossless(sampled(tree, p, q), p, size, tree.depth + 1)


def test_drafts_equal_to_the_target_and_drafts_apart_from_it_are_lossless() -> None:
    tree = symmetric(2, 2)
    p = distributions(1, 3)
    law = sampled(tree, p, p)
    check_lossless(law, p, 3, 3)
    assert {len(text) for text in law} == {3}  # p = q: the first child is accepted at every level
    apart = {(): [0, 0, 1]}
    law = sampled(batch(2), p, lambda text: exact(apart[text]))
    check_lossless(law, p, 3, 2)  # the second child has no token left
    with_zero = lambda text: exact([Fraction(1, 2), Fraction(1, 2), 0])  # noqa: E731
    law = sampled(batch(2), with_zero, lambda text: exact([0, 0, 1]))
    assert law == {(0,): Fraction(1, 2), (1,): Fraction(1, 2)}


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
        chain = laws.speculative_sampling(
            p[at, drafted], q[at, drafted], uniforms, rows, last.__getitem__
        )
        path, token = laws.tree_speculative_sampling(
            sequence(3), drafted, uniforms, partial(after, p, q, 1), last.__getitem__
        )
        assert (len(path), token) == chain


def blocks(k: int, size: int, p: Rows, q: Rows) -> Counter[tuple[int, ...]]:
    def run(fork: Fork) -> tuple[int, ...]:
        drafted: list[int] = []
        for _ in range(k):
            drafted.append(laws.pick(q(tuple(drafted)), Uniform(fork)))
        prefixes = [tuple(drafted[:at]) for at in range(k + 1)]
        accepted, token = laws.block_verification(
            drafted,
            np.array([p(text) for text in prefixes]),
            np.array([q(text) for text in prefixes[:k]]).reshape(k, size),
            [Uniform(fork) for _ in range(k)],
            lambda _: Uniform(fork),
        )
        return (*drafted[:accepted], token)

    return outcomes(run)


def mean_length(law: Counter[tuple[int, ...]]) -> Fraction:
    return sum((len(text) * weight for text, weight in law.items()), Fraction(0))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_block_verification_is_lossless_and_never_shorter(k: int, seed: int) -> None:
    size = 3 if k < 3 else 2
    p, q = distributions(seed, size), distributions(seed + 100, size)
    law = blocks(k, size, p, q)
    check_lossless(law, p, size, k + 1)
    tokens = mean_length(sampled(sequence(k), p, q))
    assert mean_length(law) >= tokens
    if k < 2:
        assert mean_length(law) == tokens


def test_block_verification_has_the_published_example() -> None:
    """Section 2 of arXiv 2403.10444: 10/9 tokens are accepted token by token, 11/9 as a block."""
    p = lambda text: exact([Fraction(1, 3), Fraction(2, 3)])  # noqa: E731
    q = lambda text: exact([Fraction(2, 3), Fraction(1, 3)])  # noqa: E731
    assert mean_length(sampled(sequence(2), p, q)) - 1 == Fraction(10, 9)
    assert mean_length(blocks(2, 2, p, q)) - 1 == Fraction(11, 9)


@pytest.mark.parametrize("flags", [[1, 1, 0, 1], [0, 1], [1, 1, 1], []])
def test_tests_before_the_first_failure(flags: list[int]) -> None:
    accepted = laws.leading(np.array(flags, dtype=bool))
    assert all(flags[:accepted])
    assert flags[accepted : accepted + 1] in ([0], [])


def test_a_path_follows_the_choices_of_the_target() -> None:
    assert laws.match_tree(sequence(3), [4, 5, 6], [4, 5, 7, 8]) == ((0, 1), 7)
    assert laws.match_tree(sequence(3), [4, 5, 7], [4, 5, 7, 8]) == ((0, 1, 2), 8)
    assert laws.match_tree(sequence(0), [], [9]) == ((), 9)
    tree = symmetric(2, 2)  # nodes 0, 1; 2, 3 behind 0; 4, 5 behind 1
    drafted = [7, 8, 1, 2, 1, 2]
    assert laws.match_tree(tree, drafted, [8, 0, 2, 0, 0, 0, 5]) == ((1, 5), 5)
    assert laws.match_tree(tree, drafted, [8, 0, 3, 0, 0, 0, 0]) == ((1,), 3)
    assert laws.match_tree(tree, drafted, [3, 0, 0, 0, 0, 0, 0]) == ((), 3)


def test_tree_greedy_accepts_a_level_as_the_rule_says() -> None:
    generator = np.random.default_rng(0)
    target, draft = generator.normal(size=(2, 200, 8))
    rank = argmax_rank(target, draft)
    for m in (1, 3):
        drafted = np.argsort(-draft, axis=1)[:, :m]
        for row, at in enumerate(rank):
            choices = [int(target[row].argmax()), *[0] * m]
            path, _ = laws.match_tree(batch(m), drafted[row].tolist(), choices)
            assert bool(path) == (at <= m)


def test_impossible_rejection_and_rounding_leave_a_token_of_the_target() -> None:
    p = np.array([0.25, 0.75, 0.0])
    assert laws.pick(laws.residual(p, p), 0.5) == 1
    assert laws.pick(p, np.nextafter(1.0, 0.0)) == 1  # never the token without mass
    assert laws.pick(np.array([0.0, 1.0]), 0.0) == 1

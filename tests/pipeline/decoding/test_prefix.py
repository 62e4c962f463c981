"""The prefix rule: the best path by brute force, never below a threshold, ties, certificates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from analysis.certificates.certify import certify
from analysis.decoding.schemes import NOTHING, leading
from analysis.rules import Additive, Mars, Multiplicative, Prefix, best_path
from analysis.topk import TopK
from analysis.trees.topology import ROOT, Topology, sequence, spec_infer, symmetric
from pipeline.decoding.drafters import Draft
from pipeline.decoding.verifiers import BestPath, Relaxed
from tests.pipeline.decoding.pair import UNEVEN, V

TREES = [sequence(0), sequence(1), sequence(5), symmetric(2, 3), spec_infer(5), UNEVEN]


def paths(tree: Topology) -> list[tuple[int, ...]]:
    """All paths of a tree from the root on, the empty one first."""
    found: list[tuple[int, ...]] = [()]
    for path in found:
        found += [(*path, child) for child in tree.children[path[-1] if path else ROOT]]
    return found


def by_enumeration(tree: Topology, costs: Any, mu: float) -> tuple[int, ...]:
    """The longest path of most value, of equal ones the first."""

    def key(path: tuple[int, ...]) -> tuple[float, int]:
        return len(path) - mu * sum(costs[node] for node in path), len(path)

    best = max(map(key, paths(tree)))
    return min(path for path in paths(tree) if key(path) == best)


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: str(tree.parents))
def test_the_best_path_is_that_of_all_paths(tree: Topology) -> None:
    generator = np.random.default_rng(0)
    for mu in (0.25, 1.0, 2.0, 16.0):
        for _ in range(200):  # multiples of 1/8: sums are exact, and many values are equal
            costs = generator.integers(0, 9, len(tree)) * generator.choice([0.125, 0.5, 1.0])
            assert best_path(tree.parents, costs.tolist(), mu) == by_enumeration(tree, costs, mu)


def test_costs_that_are_infinite_or_nothing() -> None:
    assert best_path((-1, 0), [math.inf, 0.0], 0.1) == ()
    assert best_path((-1, 0, 1), [0.0, 0.0, 1e-9], math.inf) == (0, 1)  # strict greedy
    assert best_path((-1, -1), [0.0, 0.0], 3.0) == (0,)


@pytest.mark.parametrize("gamma", [2, 4, 7])
def test_on_given_drafts_no_threshold_emits_more_at_equal_cost(gamma: int) -> None:
    generator = np.random.default_rng(gamma)
    costs = generator.exponential(0.7, (400, gamma)) * (generator.random((400, gamma)) < 0.5)

    def totals(lengths: list[int]) -> tuple[int, float]:
        return sum(lengths), sum(row[:n].sum() for row, n in zip(costs, lengths, strict=True))

    thresholds = [totals([leading(row < t) for row in costs]) for t in np.linspace(0, 3, 61)]
    gained = 0
    for mu in (0.2, 0.5, 1.0, 2.0, 5.0):
        chain = range(-1, gamma - 1)
        tokens, cost = totals([len(best_path(chain, row.tolist(), mu)) for row in costs])
        for others, given_up in thresholds:
            assert tokens - mu * cost >= others - mu * given_up - 1e-9
            if given_up <= cost:
                assert tokens >= others
        gained += tokens > max(others for others, given_up in thresholds if given_up <= cost)
    assert gained > 2


@pytest.mark.parametrize("cost", ["nats", "probability"])
@pytest.mark.parametrize("mu", [2.0, 3.0, 5.0])
def test_what_a_threshold_accepts_it_accepts_and_so_its_certificates_hold(
    cost: str, mu: float
) -> None:
    rule = Prefix(mu, cost)
    alike = Multiplicative(math.exp(-1 / mu)) if cost == "nats" else Additive(1 / mu)
    generator = torch.Generator().manual_seed(0)
    longer = 0
    for _ in range(300):
        z = 2 * torch.randn((5, V), generator=generator)
        tokens = torch.stack([row.topk(4).indices[torch.randint(4, (1,), generator=generator)[0]]
                              for row in z[:4]])  # fmt: skip
        ours, token, _ = BestPath(rule).verify(z, Draft(tokens), 0)
        theirs, _, _ = Relaxed(alike).verify(z, Draft(tokens), 0)
        assert ours[: len(theirs)] == theirs
        assert token == int(z[len(ours)].argmax())
        longer += len(ours) > len(theirs)
    assert longer > 0
    dist = TopK.from_logits(z)
    assert (certify(dist, rule).lower == certify(dist, alike).lower).all()


def test_a_tie_is_accepted_and_a_step_beyond_is_not() -> None:
    for step, accepted in ((0.0, 1), (-1e-6, 0), (1e-6, 1)):
        z = torch.tensor([[2.0, 1.5 + step, 0.0], [0.0, 1.0, 0.0]])
        path, token, _ = BestPath(Prefix(2.0)).verify(z, Draft(torch.tensor([1])), 0)
        assert len(path) == accepted
        assert token == accepted  # the argmax of its row
    p = torch.tensor([[0.625, 0.375, 0.0]], dtype=torch.float64).log()
    for mu, accepted in ((4.0 - 1e-9, 1), (4.0 + 1e-9, 0)):
        rule = BestPath(Prefix(mu, "probability"))
        assert len(rule.verify(p.repeat(2, 1), Draft(torch.tensor([1])), 0)[0]) == accepted


@pytest.mark.parametrize("cost", ["nats", "probability"])
@pytest.mark.parametrize("tree", [None, symmetric(2, 3), UNEVEN], ids=["chain", "tree", "uneven"])
def test_a_call_takes_the_best_path_of_its_draft(cost: str, tree: Topology | None) -> None:
    shape = sequence(5) if tree is None else tree
    generator = torch.Generator().manual_seed(1)
    lengths = set()
    for mu in (0.3, 1.0, 3.0):
        for _ in range(60):
            z = 2 * torch.randn((len(shape) + 1, V), generator=generator)
            above = torch.tensor(shape.parents) + 1
            rank = torch.randint(3, (len(shape),), generator=generator)
            tokens = z[above].topk(3).indices.gather(1, rank[:, None])[:, 0]
            if tree is not None:
                tokens[-1] = NOTHING
            p = z.double().softmax(1)
            mine = p[above, tokens.clamp(min=0)]
            most = p.amax(1)[above]
            costs = (most / mine).log() if cost == "nats" else most - mine
            costs[tokens == NOTHING] = torch.inf
            path, token, _ = BestPath(Prefix(mu, cost)).verify(z, Draft(tokens, None, tree), 0)
            assert path == by_enumeration(shape, costs.tolist(), mu)
            assert token == int(z[path[-1] + 1 if path else 0].argmax())
            lengths.add(len(path))
    assert len(lengths) > 3


@pytest.mark.parametrize("tree", TREES[1:], ids=lambda tree: str(tree.parents))
def test_a_rule_accepts_the_longest_path_of_a_tree(tree: Topology) -> None:
    """Algorithm 1 of MARS on trees: of all paths whose tokens it accepts the longest, the first."""
    generator = torch.Generator().manual_seed(3)
    above, lengths, relaxed = torch.tensor(tree.parents) + 1, set(), 0
    for _ in range(120):
        z = 12 + torch.randn((len(tree) + 1, V), generator=generator)
        rank = torch.randint(3, (len(tree),), generator=generator)
        tokens = z[above].topk(3).indices.gather(1, rank[:, None])[:, 0]
        tokens[-1] = NOTHING
        first, second = z[above].topk(2).values.T
        accepts = (rank == 0) | ((rank == 1) & (second / first > 0.95))
        accepts[-1] = False
        key = [path for path in paths(tree) if all(accepts[node] for node in path)]
        longest = max(map(len, key))
        path, token, _ = Relaxed(Mars(0.95)).verify(z, Draft(tokens, None, tree), 0)
        assert path == min(one for one in key if len(one) == longest)
        assert token == int(z[path[-1] + 1 if path else 0].argmax())
        lengths.add(len(path))
        relaxed += any(rank[node] == 1 for node in path)
    assert len(lengths) > min(tree.depth, 2) - 1
    assert relaxed > 0 or len(tree) == 1

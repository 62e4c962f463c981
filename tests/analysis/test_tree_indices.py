"""At which child races and speculative sampling accept, exactly, without replacement."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from analysis.decoding import laws as chains
from analysis.trees import laws
from analysis.trees.topology import ROOT, batch

from .exact import Fork, Uniform, distributions, exact, outcomes
from .test_tree_laws import Drafts, logs


def index_law(p: np.ndarray, q: np.ndarray) -> list[Fraction]:
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


def sampled_rates(p: np.ndarray, q: np.ndarray) -> list[Fraction]:
    """R of speculative sampling without replacement, exactly, from the law on a batch."""
    tree = batch(len(p))

    def run(fork: Fork) -> int:
        drafts = Drafts(tree, lambda _: q, fork)
        path, _ = laws.tree_speculative_sampling(
            tree,
            drafts,
            [Uniform(fork) for _ in range(len(tree))],
            lambda node: (p, q if node == ROOT else None),
            lambda _: Uniform(fork),
        )
        return path[0] if path else len(p)

    law = outcomes(run)
    return [law[at] for at in range(len(p))]


def some(seed: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    return distributions(seed, size)(()), distributions(seed + 1000, size)(())


@pytest.mark.parametrize("seed", range(12))
def test_first_drafts_are_accepted_with_their_closed_forms(seed: int) -> None:
    p, q = some(seed, 4)
    races, tests = index_law(p, q), sampled_rates(p, q)
    assert tests[0] == 1 - sum(abs(p - q)) / 2
    both = [i for i in range(4) if p[i] and q[i]]
    assert races[0] == sum(1 / sum(max(p[j] / p[i], q[j] / q[i]) for j in range(4)) for i in both)
    assert tests[0] >= races[0] >= sum(p[i] * q[i] / (p[i] + q[i]) for i in both)  # Lemma C.1
    if all(q):
        assert sum(races) == sum(tests) == 1  # all drafted: one is accepted


def test_index_law_is_that_of_arrivals_and_winners() -> None:
    p = exact([Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)])
    q = exact([Fraction(1, 6), Fraction(1, 6), Fraction(2, 3)])
    log_times = np.log(np.random.default_rng(0).exponential(size=(40_000, 3)))
    arrived = laws.arrivals(np.broadcast_to(logs(q), log_times.shape), log_times, 3)
    winners = chains.race(logs(p), log_times)
    found = (arrived == winners[:, None]).mean(0)
    wanted = np.array(index_law(p, q), dtype=np.float64)
    np.testing.assert_allclose(found, wanted, atol=0.011)  # over 4 standard errors


def test_races_overtake_speculative_sampling_as_alternatives_are_added() -> None:
    """The order that the seed reports: tests lead at k = 1, races from k = 3 on."""
    p = exact([Fraction(2, 3), 0, Fraction(1, 3), 0])
    q = exact([Fraction(3, 10), Fraction(1, 5), Fraction(1, 10), Fraction(2, 5)])
    races, tests = (np.cumsum(law(p, q)) for law in (index_law, sampled_rates))
    assert np.sign(races - tests).tolist() == [-1, -1, 1, 0]
    p, q = (
        exact([Fraction(w, 9) for w in (2, 3, 3, 1)]),
        exact([Fraction(w, 8) for w in (3, 1, 2, 2)]),
    )
    races, tests = (np.cumsum(law(p, q)) for law in (index_law, sampled_rates))
    assert np.sign(races - tests).tolist() == [-1, 1, 1, 0]

"""H[R] of one context: by recursion index after index, by simulation, and what bounds it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.trees.entropy import Floats, index_entropies, races_entropy_upper
from tests import divergences


def made(seed: int, size: int, spread: float) -> tuple[Floats, Floats]:
    """A target and a drafter that gives each token a share of its probability."""
    generator = np.random.default_rng(seed)
    p, q = generator.dirichlet(np.full(size, spread), 2) + 1e-9
    p = p / p.sum()
    q = 0.3 * p + 0.7 * q
    return p, q / q.sum()


def entropies(p: Floats, q: Floats) -> tuple[float, float, float]:
    with np.errstate(divide="ignore"):
        return index_entropies(np.log(p), np.log(q))


def recursions(p: Floats, q: Floats) -> tuple[float, float]:
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
    return tuple(-(law[law > 0] * np.log(law[law > 0])).sum() for law in of)  # type: ignore[return-value]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("size", "spread"), [(2, 1.0), (5, 1.0), (5, 0.2), (60, 0.1)])
def test_entropies_are_those_of_the_recursions(seed: int, size: int, spread: float) -> None:
    p, q = made(seed, size, spread)
    kl, greedy, races = entropies(p, q)
    assert (greedy, races) == pytest.approx(recursions(p, q), rel=1e-4)
    assert kl == pytest.approx(divergences.kl(np.log(p)[None], np.log(q)[None])[0], rel=1e-9)
    assert kl <= min(greedy, races) + 1e-12  # (6)
    assert races <= races_entropy_upper(kl)  # (8)


def test_rare_tokens_are_found_late() -> None:
    """A token that the target always takes and the drafter once in n: a geometric index."""
    for n in (10, 1000, 10**6):
        kl, greedy, races = entropies(np.array([1.0, 0.0]), np.array([1 / n, 1 - 1 / n]))
        wanted = n * (-(1 / n) * math.log(1 / n) - (1 - 1 / n) * math.log1p(-1 / n))
        assert (greedy, races) == pytest.approx((wanted, wanted), rel=2e-3)
        assert kl == pytest.approx(math.log(n))


def test_races_have_the_simulated_law() -> None:
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


def test_equal_models_and_a_drafter_that_lacks_a_token() -> None:
    p = np.array([0.5, 0.3, 0.2])
    assert entropies(p, p) == pytest.approx((0, 0, 0), abs=1e-9)
    assert entropies(p, np.array([0.6, 0.4, 0.0])) == (math.inf,) * 3
    assert entropies(np.array([0.6, 0.4, 0.0]), p)[0] < math.inf

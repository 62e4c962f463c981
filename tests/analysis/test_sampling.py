"""Certified probabilities beside measured ones: never above them, and what they are made of."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.acceptance.sampling import (
    ARGMAX,
    SAMPLED,
    SPECULATIVE,
    accepted_mass,
    sampling_statistics,
    violations,
)
from analysis.beyond import probability
from analysis.rules import AbsoluteThreshold, Additive, StrictGreedy, Tree
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.topk import TopK
from tests import divergences
from tests.analysis.cases import dirichlet, drafted_steps, noisy

LENGTHS = (12, 30, 18)
BOOTSTRAP = PromptBootstrap(np.repeat(range(3), LENGTHS), 40, 0.9, 0)


Sampled = tuple[TopK, np.ndarray, dict[str, np.ndarray]]  # p, KL, acceptance by law


def sampled(noise: float, k: int = 12, missing: bool = False) -> tuple[Sampled, np.ndarray]:
    z, w = noisy(sum(LENGTHS), 12, 2.0, noise, seed=3)
    if missing:
        w[:, 0] = -np.inf
    steps, found = drafted_steps(z, w, k)
    p, q = (np.exp(divergences.log_softmax(x)) for x in (z, w))
    drafted = p[range(len(p)), q.argmax(axis=1)]
    return (steps.target, found.kl, {SPECULATIVE: 1.0 - found.tv, ARGMAX: drafted}), q


@pytest.mark.parametrize("k", [12, 4])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("noise", [0.0, 0.1, 0.5, 2.0])
def test_nothing_is_accepted_less_often_than_certified(noise: float, missing: bool, k: int) -> None:
    steps, q = sampled(noise, k, missing)
    assert violations(*steps) == {SPECULATIVE: 0, ARGMAX: 0}
    rules = [StrictGreedy(), Additive(0.2), Tree(2)]
    frame = sampling_statistics(*steps, rules, BOOTSTRAP)
    own = frame.set_index(["rule", "kind"])["value"]
    laws = [SPECULATIVE, ARGMAX]
    for law in laws:
        for kind in ("step", "budget"):
            assert own[law, kind] <= own[law, "measured"] + 1e-9
        assert own[law, "budget"] <= own[law, "uniform"] + 1e-9
    for rule in rules[:2]:
        mass = accepted_mass(steps[0], rule)
        p = np.sort(steps[0].probs, axis=1)[:, ::-1]
        inside = (p == p[:, :1]) if rule == StrictGreedy() else p > p[:, :1] - 0.2
        np.testing.assert_allclose(mass, np.where(inside, p, 0).sum(axis=1), atol=1e-12)
        n = inside.sum(axis=1)
        kept = [q[i, steps[0].ids[i, : n[i]]].sum() for i in range(len(q))]  # q(S)
        bound = probability.sampled_draft(mass, steps[1])
        assert (kept >= bound - 1e-9).all()
        assert own[f"{SAMPLED}{rule.label}", "step"] == pytest.approx(bound.mean())
    assert not any("tree" in law for law, _ in own.index)
    if noise == 0 and not missing:
        assert (own.xs(SPECULATIVE) >= 1 - 1e-6).all()
        assert own[ARGMAX, "budget"] == pytest.approx(steps[0].top_probability.mean(), abs=1e-4)


def test_a_violation_is_seen() -> None:
    steps, _ = sampled(0.3)
    target, kl, measured = steps
    found = violations(target, kl, {SPECULATIVE: measured[SPECULATIVE] - 0.3, ARGMAX: 0 * kl})
    assert found[SPECULATIVE] > 0
    assert found[ARGMAX] == len(kl)


def test_levels_of_each_step_are_those_of_single_numbers() -> None:
    dist = TopK.from_probabilities(dirichlet(9, 8, 6, 0.3, 1.0), k=4)
    eps = np.array([0.0, 1e-9, 1e-3, 0.01, 0.1, 0.5, 1.0, 3.0, 40.0, np.inf] + [0.2] * 6)
    for bound in (probability.lossless, probability.argmax_draft):
        found = bound(dist, eps)
        for i, level in enumerate(eps):
            alone = bound(dist[i : i + 1], float(level))[0]
            assert found[i] == pytest.approx(alone, rel=1e-12), (bound, level)
        assert (bound(dist, np.inf) == 0).all()


def test_the_mass_of_all_tokens_is_one_and_a_tree_has_none() -> None:
    dist = TopK.from_probabilities(dirichlet(4, 5, 6, 1.0), k=3)
    assert (accepted_mass(dist, AbsoluteThreshold(0.0)) <= 1).all()
    whole = TopK.from_probabilities(dirichlet(4, 5, 6, 1.0))
    assert (accepted_mass(whole, AbsoluteThreshold(0.0)) == 1).all()
    with pytest.raises(ValueError, match="does not accept a set of tokens"):
        accepted_mass(dist, Tree(2))

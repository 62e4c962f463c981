"""Budget sampling through the real loop: the law of whole answers, by enumeration of all noise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from analysis.beyond.clip import clipped_target, divergence_of
from pipeline.decoding.choices import Noise
from pipeline.decoding.drafters import Draft, ModelDrafter, PromptLookup
from pipeline.decoding.loop import decode
from pipeline.decoding.verifiers import BudgetSampling, SpeculativeSampling, Verifier
from tests.analysis.exact import Fork, outcomes
from tests.pipeline.decoding.enumeration import ForkedDraft, ForkedNoise, Fractions, pair
from tests.pipeline.decoding.pair import CPU, Markov

BUDGETS = [("c1", 1.25), ("ratio", 1.5), ("kl", 0.02), ("tv", 0.1), ("reverse_kl", 0.05)]


def best(p: np.ndarray, q: np.ndarray, budget: tuple[str, float]) -> np.ndarray:
    """The law of what is emitted at a drafted position."""
    name, value = budget
    dial = (name, value) if name in ("c1", "ratio") else ("divergence", value, name)
    return clipped_target(p, q, *dial)[0]


def expected(
    target: Fractions, smaller: Fractions, budget: tuple[str, float], depth: int, limit: int
) -> Counter[Any]:
    """The law of answers and of what each call accepts, from r alone."""
    law: Counter[Any] = Counter()

    def call(tokens: tuple[int, ...], accepted: tuple[int, ...], weight: float) -> None:
        count = min(depth, limit - len(tokens) - 1)
        if count < 0:
            law[tokens, accepted] += weight  # type: ignore[assignment]
        else:
            draft(tokens, accepted, weight, 0, count)

    def draft(
        tokens: tuple[int, ...], accepted: tuple[int, ...], weight: float, at: int, count: int
    ) -> None:
        p, q = target.p[tokens[-1]], smaller.p[tokens[-1]]
        if at == count:
            for token in np.flatnonzero(p):
                call((*tokens, int(token)), (*accepted, at), weight * p[token])
            return
        r = best(p, q, budget)
        kept, corrected = np.minimum(r, q), np.maximum(r - q, 0)
        for token in range(len(p)):
            if kept[token] > 0:
                draft((*tokens, token), accepted, weight * kept[token], at + 1, count)
            if corrected[token] > 0:
                call((*tokens, token), (*accepted, at), weight * corrected[token])

    for token in np.flatnonzero(target.p[0]):
        call((int(token),), (), target.p[0, token])
    return law


def decoded(
    target: Fractions, smaller: Fractions, verifier: Callable[[Any], Verifier], depth: int
) -> Counter[Any]:
    """The law of answers of three tokens and of what each call accepts, through the loop."""

    def run(fork: Fork) -> Any:
        noise: Any = ForkedNoise(fork)
        source = ModelDrafter(smaller, ForkedDraft(noise))  # type: ignore[arg-type]
        answer = decode(target, source, verifier(noise), [0], depth, 3)  # type: ignore[arg-type]
        return tuple(answer.tokens), tuple(call.accepted for call in answer.calls)

    return outcomes(run)


def check(law: Counter[Any], wanted: Counter[Any]) -> None:
    for key in {*law, *wanted}:
        assert float(law[key]) == pytest.approx(wanted[key], abs=1e-9), key


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
@pytest.mark.parametrize("size", [2, 3])
def test_what_is_emitted_has_the_best_law(budget: tuple[str, float], size: int) -> None:
    for seed in range(3):
        target, smaller = pair(seed, size)
        for depth in (1, 2):
            law = decoded(target, smaller, lambda noise: BudgetSampling(1.0, noise, budget), depth)
            check(law, expected(target, smaller, budget, depth, 3))
        for first in range(size):  # the second token is drafted, whatever follows
            p, q = target.p[first], smaller.p[first]
            r, before = best(p, q, budget), target.p[0, first]
            found = np.zeros(size)
            for (tokens, _), weight in law.items():
                found[tokens[1]] += float(weight) * (tokens[0] == first)
            np.testing.assert_allclose(found, before * r, atol=1e-9)
            name, value = budget
            if before and name not in ("c1", "ratio"):
                spent = divergence_of(r, p, name)
                assert spent <= value + 1e-9
                if p.min() > 0:  # else no law between them may spend it
                    whole = divergence_of(q, p, name)
                    assert spent == pytest.approx(min(value, whole), rel=1e-6)


@pytest.mark.parametrize("budget", [None, ("c1", 1.0), ("ratio", 1.0), ("kl", 0.0)], ids=str)
def test_nothing_to_spend_is_speculative_sampling(budget: tuple[str, float] | None) -> None:
    """Which emits p and accepts min(p, q), 1 - TV in all; None is its own verifier."""
    for seed in range(3):
        models = pair(seed, 2)

        def verifier(noise: Any) -> Verifier:
            if budget is None:
                return SpeculativeSampling(1.0, noise)
            return BudgetSampling(1.0, noise, budget)

        check(decoded(*models, verifier, 2), expected(*models, ("c1", 1.0), 2, 3))


def test_all_that_can_be_spent_accepts_every_draft_and_found_drafts_are_tested() -> None:
    table = torch.randn((8, 8), generator=torch.Generator().manual_seed(0)).double()
    p = table.softmax(1).numpy()
    noise = Noise(0, "a", 12, CPU, 3)
    model: Any = Markov(table)
    answer = decode(
        model, PromptLookup(2, 3, CPU), BudgetSampling(1.0, noise, ("c1", 1e9)), [3, 5] * 3, 3, 12
    )
    assert all(call.accepted == call.drafted for call in answer.calls)
    assert any(call.drafted for call in answer.calls)
    # an argmax draft: q is 1 at the token, r has a = min(1, c1 p) there
    draft = Draft(torch.tensor([5]))
    c1 = 1.5
    a = min(1.0, c1 * p[0, 5])
    for uniform, accepted in ((a - 1e-9, 1), (a + 1e-9, 0)):
        noise.uniforms[:] = uniform
        path, _, _ = BudgetSampling(1.0, noise, ("c1", c1)).verify(table[[0, 5]], draft, 0)
        assert len(path) == accepted
        assert math.isclose(best(p[0], np.eye(8)[5], ("c1", c1))[5], a)

"""Lossless laws of verification: whole answers by enumeration of all noise, on every shape."""

from __future__ import annotations

import copy
import itertools
import math
from collections import Counter
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from analysis.rules import Mars
from analysis.trees.topology import (
    Growth,
    Topology,
    batch,
    expansion,
    sequence,
    spec_infer,
    symmetric,
)
from pipeline.decoding.choices import TEST, TOKEN, Drawn, DrawnRace, Greedy, Noise, Race, Truncation
from pipeline.decoding.drafters import ModelDrafter, Nothing
from pipeline.decoding.loop import decode
from pipeline.decoding.verifiers import (
    BlockVerification,
    DrawnPath,
    Match,
    SpeculativeSampling,
    TreeSampling,
    Verifier,
)
from pipeline.stages.distributions.decode import choose
from tests import divergences
from tests.analysis.exact import Fork, outcomes
from tests.pipeline.decoding.enumeration import (
    ForkedDraft,
    ForkedNoise,
    Fractions,
    check_law,
    pair,
    sampled,
)
from tests.pipeline.decoding.pair import CPU

UNEVEN = Topology((-1, -1, 1))
TREES = [sequence(2), batch(2), symmetric(2, 2), spec_infer(3), UNEVEN, expansion([1, 2])]


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: str(tree.parents))
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("eos", [(), (1,)])
def test_speculative_sampling_on_trees_is_lossless(
    tree: Topology, seed: int, eos: tuple[int, ...]
) -> None:
    models = pair(seed, 2, eos)
    law = sampled(models, tree, 4, partial(TreeSampling, 1.0))
    check_law(law, models[0], 0, 4)


@pytest.mark.parametrize("tree", [batch(3), expansion([2, 1])], ids=["batch", "two chains"])
def test_speculative_sampling_of_three_tokens_is_lossless(tree: Topology) -> None:
    for seed in (3, 6):  # where siblings need numbers of their own
        models = pair(seed, 3)
        law = sampled(models, tree, 3, partial(TreeSampling, 1.0))
        check_law(law, models[0], 0, 3)


GROWN = [Growth(2, 1, 1), Growth(2, 3, 2), Growth(1, 2, 2)]


def drawn(target: Fractions, smaller: Fractions, tree: Any, verify: Any) -> Counter[Any]:
    """The law of answers of two tokens whose drafts are the most probable tokens."""

    def run(fork: Fork) -> tuple[int, ...]:
        source = ModelDrafter(smaller, Greedy(), tree)  # type: ignore[arg-type]
        depth = 2 if tree is None else tree.depth
        return tuple(decode(target, source, verify(ForkedNoise(fork)), [0], depth, 3).tokens)  # type: ignore[arg-type]

    return outcomes(run)


@pytest.mark.parametrize("tree", [None, *TREES, *GROWN], ids=str)
@pytest.mark.parametrize("eos", [(), (1,)])
def test_drafts_that_are_not_drawn_are_lossless(tree: Any, eos: tuple[int, ...]) -> None:
    for seed in range(3):
        target, smaller = pair(seed, 3, eos)
        check_law(drawn(target, smaller, tree, partial(DrawnPath, 1.0)), target, 0, 3)


@pytest.mark.parametrize("tree", [batch(1), batch(2), batch(3)], ids=["1", "2", "3"])
def test_mars_on_a_batch_emits_what_it_says(tree: Topology) -> None:
    """By hand: children are taken in order, rank 2 for sure.

    The ratio of two largest logits exceeds 0.5 where the logits are shifted far up.
    """
    for seed in range(4):
        target, smaller = pair(seed, 3)
        target.table = target.table + 100.0
        law = drawn(target, smaller, tree, lambda n: DrawnPath(1.0, n, Mars(0.5)))
        wanted: Counter[Any] = Counter()
        for first, p_first in enumerate(target.p[0]):
            p, q = target.p[first], smaller.p[first]
            ranked = sorted(range(3), key=lambda token: (-p[token], token))
            children = sorted((x for x in range(3) if q[x] > 0), key=lambda x: (-q[x], x))
            ends, left = np.array(p), 1.0
            for child in children[: len(tree)]:
                if ranked.index(child) == 1:
                    ends *= 0
                    for done in children[: children.index(child)]:
                        ends[done] = p[done]
                    ends[child] = left
                    break
                left -= p[child]
            for second, weight in enumerate(ends):
                wanted[first, second] += p_first * weight
        for text, weight in wanted.items():
            total = sum(w for found, w in law.items() if found[:2] == text)
            assert float(total) == pytest.approx(weight, abs=1e-12)


def unsure(logits: torch.Tensor) -> bool:
    """Say that a drafter stops where no token has more than 60 %."""
    return bool(torch.softmax(logits, -1).max() < 0.6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("eos", [(), (1,)])
def test_chains_are_lossless_token_by_token_as_blocks_and_where_they_stop(
    seed: int, eos: tuple[int, ...]
) -> None:
    models = pair(seed, 2, eos)
    assert {unsure(row[None]) for row in models[1].table} == {False, True} or seed
    for limit in (1, 2, 4):
        for stop in (None, unsure):
            law = sampled(models, None, limit, partial(SpeculativeSampling, 1.0), stop=stop)
            check_law(law, models[0], 0, limit)
        law = sampled(models, None, limit, partial(BlockVerification, 1.0), fresh=True)
        check_law(law, models[0], 0, limit)


class PiecewiseNoise(Noise):
    """Races of two tokens: token 0 arrives at u, token 1 at 1 - u, so that 0 wins iff u < p."""

    def __init__(self, us: tuple[Fraction, ...], depth: int, fork: Fork | None = None) -> None:
        super().__init__(0, "p", len(us), CPU, depth)
        self._us = us
        if fork is not None:
            forked = ForkedNoise(fork)
            self.uniforms, self.test = forked, forked.test  # type: ignore[assignment, method-assign]

    def _arrivals(self, position: int, vocab_size: int) -> torch.Tensor:
        u = float(self._us[min(position, len(self._us) - 1)])
        return torch.tensor([u, 1 - u], dtype=torch.float64)


def pieces(models: tuple[Fractions, ...], count: int) -> list[list[tuple[Fraction, Fraction]]]:
    """The intervals of u between which no winner changes: their middles, and their lengths."""
    edges = sorted(
        {Fraction(0), Fraction(1), *(Fraction(float(x)) for m in models for x in m.p[:, 0])}
    )
    cut = [((a + b) / 2, b - a) for a, b in itertools.pairwise(edges) if b - a > Fraction(1, 10**9)]
    return [cut] * count


@pytest.mark.parametrize("tree", [None, *TREES, *GROWN], ids=str)
@pytest.mark.parametrize("eos", [(), (1,)])
def test_races_are_lossless(tree: Topology | Growth | None, eos: tuple[int, ...]) -> None:
    depth = 2 if tree is None else tree.depth
    for seed in range(2):
        target, smaller = pair(seed, 2, eos)
        law: Counter[Any] = Counter()
        accepted = np.zeros(2)  # of the first drafted token, by the one before it
        for races in itertools.product(*pieces((target, smaller), 3)):
            race = Race(1.0, PiecewiseNoise(tuple(u for u, _ in races), depth))
            source = ModelDrafter(smaller, race, tree)  # type: ignore[arg-type]
            answer = decode(target, source, Match(race), [0], depth, 3)  # type: ignore[arg-type]
            width = math.prod(width for _, width in races)
            law[tuple(answer.tokens)] += width
            accepted[answer.tokens[0]] += (
                sum(call.accepted > 0 for call in answer.calls[:1]) * width
            )
        check_law(law, target, 0, 3)
        if tree is None and not eos:
            with np.errstate(divide="ignore"):
                wanted = divergences.erss_acceptance(np.log(target.p), np.log(smaller.p))
            np.testing.assert_allclose(accepted, target.p[0] * wanted, atol=1e-8)


@pytest.mark.parametrize("tree", [sequence(2), symmetric(2, 2), UNEVEN], ids=["1", "2", "uneven"])
def test_drafts_raced_for_without_replacement_are_lossless(tree: Topology) -> None:
    target, smaller = pair(3, 2)
    law: Counter[Any] = Counter()
    for races in itertools.product(*pieces((smaller,), 3)):
        us = tuple(u for u, _ in races)

        def run(fork: Fork, us: tuple[Fraction, ...] = us) -> tuple[int, ...]:
            noise = PiecewiseNoise(us, tree.depth, fork)
            source = ModelDrafter(smaller, DrawnRace(1.0, noise), tree)  # type: ignore[arg-type]
            answer = decode(target, source, TreeSampling(1.0, noise), [0], tree.depth, 3)  # type: ignore[arg-type]
            return tuple(answer.tokens)

        width = math.prod(width for _, width in races)
        for text, weight in outcomes(run).items():
            law[text] += width * weight
    check_law(law, target, 0, 3)


TRUNCATIONS = [Truncation(0.6, 0), Truncation(1.0, 2), Truncation(0.8, 2), Truncation(0.01, 0)]


def truncated(model: Fractions, kept: Truncation, t: float = 1.0) -> Fractions:
    """The model whose distributions are those of `model` at a temperature, cut token by token."""
    made = copy.copy(model)
    made.p = np.zeros_like(model.p)
    for last, row in enumerate(model.p):
        tempered = row ** (1 / t)
        ranked = sorted(range(len(row)), key=lambda token: (-row[token], token))
        chosen = ranked[: kept.top_k] if kept.top_k else ranked
        whole, before = tempered[chosen].sum(), 0.0
        for token in chosen:
            if before >= kept.top_p:
                break
            made.p[last, token] = tempered[token]
            before += tempered[token] / whole
    made.p /= made.p.sum(axis=1, keepdims=True)
    return made


@pytest.mark.parametrize("kept", TRUNCATIONS, ids=str)
@pytest.mark.parametrize("law", ["chain", "tree", "block", "alone"])
def test_truncated_laws_are_those_of_the_truncated_target(kept: Truncation, law: str) -> None:
    t = 0.5
    for seed in (3, 6):
        target, smaller = pair(seed, 3)

        class Draws(ForkedDraft):
            """Draws from what is left of the drafter."""

            def draft(self, logits: torch.Tensor, *at: int) -> Drawn:
                return super().draft(kept.tempered(logits, t), *at)

        def run(fork: Fork, models: Any = (target, smaller)) -> tuple[int, ...]:
            noise: Any = ForkedNoise(fork)
            tree = expansion([2]) if law == "tree" else None
            source: Any = ModelDrafter(models[1], Draws(noise, law == "block"), tree)  # type: ignore[arg-type]
            verifier: Verifier = SpeculativeSampling(t, noise, kept=kept)
            if law == "alone":
                source = Nothing(CPU)
            elif law == "tree":
                verifier = TreeSampling(t, noise, kept)
            elif law == "block":
                verifier = BlockVerification(t, noise, kept)
            return tuple(decode(models[0], source, verifier, [0], 1, 3).tokens)  # type: ignore[arg-type]

        check_law(outcomes(run), truncated(target, kept, t), 0, 3)


@pytest.mark.parametrize("kept", TRUNCATIONS, ids=str)
@pytest.mark.parametrize("tree", [None, batch(2), Growth(2, 2, 2)], ids=str)
def test_truncated_races_are_those_of_the_truncated_target(
    kept: Truncation, tree: Topology | Growth | None
) -> None:
    depth = 2 if tree is None else tree.depth
    for seed in range(2):
        target, smaller = pair(seed, 2)
        cut = tuple(truncated(model, kept) for model in (target, smaller))
        law: Counter[Any] = Counter()
        for races in itertools.product(*pieces((target, smaller, *cut), 2)):
            race = Race(1.0, PiecewiseNoise(tuple(u for u, _ in races), depth), kept)
            source = ModelDrafter(smaller, race, tree)  # type: ignore[arg-type]
            answer = decode(target, source, Match(race), [0], depth, 2)  # type: ignore[arg-type]
            law[tuple(answer.tokens)] += math.prod(width for _, width in races)
        check_law(law, cut[0], 0, 2)


@pytest.mark.parametrize(
    "kept", [(1.0, 0), (0.7, 0), (1.0, 3), (0.5, 4), (1e-9, 0), (1.0, 1), (0.9, 99)]
)
def test_tokens_are_cut_as_stage_distributions_cuts_them(kept: tuple[float, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((20, 12), generator=generator).mul(2).round(decimals=0)  # with ties
    tempered = Truncation(*kept).tempered(logits, 0.7)
    left = tempered.isfinite()
    likely = tempered.softmax(1) > 0.01
    seen = torch.zeros_like(left)
    for u in torch.linspace(0, 1, 301, dtype=torch.float64)[:-1]:
        drawn = choose(logits, u.expand(20), 0.7, *kept)
        seen.scatter_(1, drawn[:, None], True)
    assert not (seen & ~left).any()
    assert not (likely & ~seen).any()


def test_numbers_of_siblings_and_calls_are_keyed_and_apart() -> None:
    one, other = Noise(3, "a", 9, CPU, 2), Noise(3, "a", 40, CPU, 5)
    for position in range(10):
        assert one.test(position, 1) == one.uniforms[position, TEST]
        for sibling in (1, 2, 3):  # neither the steps nor the draft length matter
            assert one.test(position, sibling) == other.test(position, sibling)
        assert (one.of_call(position) == other.of_call(position)[:3]).all()
    numbers = [one.test(position, sibling) for position in range(10) for sibling in (1, 2, 3)]
    numbers += [number for position in range(10) for number in one.of_call(position).ravel()]
    numbers += one.uniforms[:, TOKEN].tolist()
    assert len(set(numbers)) == len(numbers)

"""Lossless laws of verification: whole answers by enumeration of all noise, on every shape."""

import itertools
import math
from collections import Counter
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch

from analysis.decoding.schemes import NOTHING
from analysis.rules import Mars
from analysis.trees.topology import (
    DynamicTree,
    Topology,
    batch,
    expansion,
    sequence,
    spec_infer,
    symmetric,
)
from pipeline.decoding import verification
from pipeline.decoding.loop import decode
from pipeline.decoding.proposers import ModelProposer
from pipeline.decoding.sampling import (
    ACCEPTANCE,
    TOKEN,
    GreedySampler,
    GumbelSampler,
    GumbelWithoutReplacement,
    Noise,
)
from pipeline.decoding.verification import ExactMatch, SampledPath, SpeculativeSampling
from tests import divergences
from tests.analysis.exact import Uniform, distributions, outcomes
from tests.pipeline.decoding.pair import CPU, Markov

ROUNDING = 1e-12


@pytest.fixture(autouse=True)
def one_node_after_the_other(both_caches, monkeypatch):
    """Numbers of which only comparisons are known can't be sent to a device.

    test_laws.py has the same outcomes of all nodes at once.
    """
    monkeypatch.setattr(verification, "ALL_NODES_ON_CPU", False)


class Fractions(Markov):
    """A model of small fractions, by the last token."""

    def __init__(self, seed, size, least, eos=()):
        """Stand for a probability of 0 by the logit `least`."""
        row = distributions(seed, size)
        self.p = np.array([row((last,)).astype(np.float64) for last in range(size)])
        with np.errstate(divide="ignore"):
            super().__init__(torch.from_numpy(np.maximum(np.log(self.p), least)), eos)


class ForkedNoise:
    """Uniform numbers, each made when it is first asked for and the same ever after."""

    def __init__(self, fork):
        self._fork = fork
        self._made = {}
        self.uniforms = self

    def at(self, *key):
        if key not in self._made:
            self._made[key] = Uniform(self._fork)
        return self._made[key]

    def __getitem__(self, index):
        positions, purpose = index
        if not isinstance(positions, slice):
            return self.at(positions, purpose)
        if positions.stop is None:
            return np.zeros(1)
        range_ = range(positions.start, positions.stop)
        return np.array([self.at(position, purpose) for position in range_], dtype=object)

    def acceptance_uniform(self, position, sibling):
        return self.at(position, ACCEPTANCE, sibling)


class ForkedDraft:
    """Draws without replacement; all nodes at a position with the same numbers."""

    def __init__(self, noise):
        self._noise = noise

    def draft(self, logits, position, depth, width):
        q = torch.softmax(logits.double(), -1)
        tokens = [[NOTHING] * width for _ in q]
        for row, weights in enumerate(q.numpy().copy()):
            for sibling in range(width):
                if weights.any():
                    token = draw(weights, self._noise.at("draft", position + depth, sibling))
                    tokens[row][sibling] = token
                    weights[token] = 0
        return torch.tensor(tokens), q[:, 0], q


def draw(weights, uniform):
    """A draw by inversion, the sums in fractions so that the last one is the whole."""
    sums = list(itertools.accumulate(Fraction(float(weight)) for weight in weights))
    return next(at for at, total in enumerate(sums) if uniform * sums[-1] < total)


def check_law(law, target, last, limit):
    """Check that whole answers have the target's law: to the limit, or to an end token."""
    assert float(sum(law.values())) == pytest.approx(1, abs=ROUNDING)
    wanted = Counter({(): 1.0})
    for _ in range(limit):
        grown = Counter()
        for text, weight in wanted.items():
            if text and text[-1] in target.eos:
                grown[text] += weight
                continue
            for token, p in enumerate(target.p[text[-1] if text else last]):
                grown[(*text, token)] += weight * p
        wanted = grown
    for text in {*law, *wanted}:
        assert float(law[text]) == pytest.approx(float(wanted[text]), abs=ROUNDING), text


def sampled(models, tree, limit, verify):
    """The law of answers whose drafts are drawn by inversion."""
    target, smaller = models

    def run(fork):
        noise = ForkedNoise(fork)
        choice = ForkedDraft(noise)
        source = ModelProposer(smaller, choice, tree)
        depth = 2 if tree is None else tree.depth
        return tuple(decode(target, source, verify(noise), [0], depth, limit).tokens)

    return outcomes(run)


def pair(seed, size, eos=()):
    """A target and a drafter; the target's logits are finite."""
    return Fractions(seed, size, -1e4, eos), Fractions(seed + 100, size, -math.inf)


UNEVEN = Topology((-1, -1, 1))
TREES = [sequence(2), batch(2), symmetric(2, 2), spec_infer(3), UNEVEN, expansion([1, 2])]


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: str(tree.parents))
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("eos", [(), (1,)])
def test_speculative_sampling_on_trees_is_lossless(tree, seed, eos):
    models = pair(seed, 2, eos)
    law = sampled(models, tree, 4, partial(SpeculativeSampling, 1.0))
    check_law(law, models[0], 0, 4)


@pytest.mark.parametrize("tree", [batch(3), expansion([2, 1])], ids=["batch", "two chains"])
def test_speculative_sampling_of_three_tokens_is_lossless(tree):
    for seed in (3, 6):  # where siblings need numbers of their own
        models = pair(seed, 3)
        law = sampled(models, tree, 3, partial(SpeculativeSampling, 1.0))
        check_law(law, models[0], 0, 3)


GROWN = [DynamicTree(2, 1, 1), DynamicTree(2, 3, 2), DynamicTree(1, 2, 2)]


def drawn(target, smaller, tree, verify):
    """The law of answers of two tokens whose drafts are the most probable tokens."""

    def run(fork):
        source = ModelProposer(smaller, GreedySampler(), tree)
        depth = 2 if tree is None else tree.depth
        return tuple(decode(target, source, verify(ForkedNoise(fork)), [0], depth, 3).tokens)

    return outcomes(run)


@pytest.mark.parametrize("tree", [None, *TREES, *GROWN], ids=str)
@pytest.mark.parametrize("eos", [(), (1,)])
def test_drafts_that_are_not_drawn_are_lossless(tree, eos):
    for seed in range(3):
        target, smaller = pair(seed, 3, eos)
        check_law(drawn(target, smaller, tree, partial(SampledPath, 1.0)), target, 0, 3)


@pytest.mark.parametrize("tree", [batch(1), batch(2), batch(3)], ids=["1", "2", "3"])
def test_mars_on_a_batch_emits_what_it_says(tree):
    """By hand: children are taken in order, rank 2 for sure.

    The ratio of two largest logits exceeds 0.5 where the logits are shifted far up.
    """
    for seed in range(4):
        target, smaller = pair(seed, 3)
        target.table = target.table + 100.0
        law = drawn(target, smaller, tree, lambda n: SampledPath(1.0, n, Mars(0.5)))
        wanted = Counter()
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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("eos", [(), (1,)])
def test_chains_are_lossless_token_by_token(seed, eos):
    models = pair(seed, 2, eos)
    for limit in (1, 2, 4):
        law = sampled(models, None, limit, partial(SpeculativeSampling, 1.0))
        check_law(law, models[0], 0, limit)


class PiecewiseNoise(Noise):
    """Races of two tokens: token 0 arrives at u, token 1 at 1 - u, so that 0 wins iff u < p."""

    def __init__(self, us, depth, fork=None):
        super().__init__(0, "p", len(us), CPU, depth)
        self._us = us
        if fork is not None:
            forked = ForkedNoise(fork)
            self.uniforms, self.acceptance_uniform = forked, forked.acceptance_uniform

    def _arrival_times(self, position, _):
        u = float(self._us[min(position, len(self._us) - 1)])
        return torch.tensor([u, 1 - u], dtype=torch.float64)


def pieces(models, count):
    """The intervals of u between which no winner changes: their middles, and their lengths."""
    edges = sorted(
        {Fraction(0), Fraction(1), *(Fraction(float(x)) for m in models for x in m.p[:, 0])}
    )
    cut = [((a + b) / 2, b - a) for a, b in itertools.pairwise(edges) if b - a > Fraction(1, 10**9)]
    return [cut] * count


@pytest.mark.parametrize("tree", [None, *TREES, *GROWN], ids=str)
@pytest.mark.parametrize("eos", [(), (1,)])
def test_races_are_lossless(tree, eos):
    depth = 2 if tree is None else tree.depth
    for seed in range(2):
        target, smaller = pair(seed, 2, eos)
        law = Counter()
        accepted = np.zeros(2)  # of the first drafted token, by the one before it
        for races in itertools.product(*pieces((target, smaller), 3)):
            race = GumbelSampler(1.0, PiecewiseNoise(tuple(u for u, _ in races), depth))
            source = ModelProposer(smaller, race, tree)
            answer = decode(target, source, ExactMatch(race), [0], depth, 3)
            width = math.prod(width for _, width in races)
            law[tuple(answer.tokens)] += width
            accepted[answer.tokens[0]] += width * any(call.accepted for call in answer.calls[:1])
        check_law(law, target, 0, 3)
        if tree is None and not eos:
            with np.errstate(divide="ignore"):
                wanted = divergences.erss_acceptance(np.log(target.p), np.log(smaller.p))
            np.testing.assert_allclose(accepted, target.p[0] * wanted, atol=1e-8)


@pytest.mark.parametrize("tree", [sequence(2), symmetric(2, 2), UNEVEN], ids=["1", "2", "uneven"])
def test_drafts_raced_for_without_replacement_are_lossless(tree):
    target, smaller = pair(3, 2)
    law = Counter()
    for races in itertools.product(*pieces((smaller,), 3)):
        us = tuple(u for u, _ in races)

        def run(fork, us=us):
            noise = PiecewiseNoise(us, tree.depth, fork)
            source = ModelProposer(smaller, GumbelWithoutReplacement(1.0, noise), tree)
            answer = decode(target, source, SpeculativeSampling(1.0, noise), [0], tree.depth, 3)
            return tuple(answer.tokens)

        width = math.prod(width for _, width in races)
        for text, weight in outcomes(run).items():
            law[text] += width * weight
    check_law(law, target, 0, 3)


def test_numbers_of_siblings_are_keyed_and_apart():
    one, other = Noise(3, "a", 9, CPU, 2), Noise(3, "a", 40, CPU, 5)
    for position in range(10):
        assert one.acceptance_uniform(position, 1) == one.uniforms[position, ACCEPTANCE]
        for sibling in (1, 2, 3):  # neither the steps nor the draft length matter
            assert one.acceptance_uniform(position, sibling) == other.acceptance_uniform(
                position, sibling
            )
    numbers = [
        one.acceptance_uniform(position, sibling) for position in range(10) for sibling in (1, 2, 3)
    ]
    numbers += one.uniforms[:, TOKEN].tolist()
    assert len(set(numbers)) == len(numbers)

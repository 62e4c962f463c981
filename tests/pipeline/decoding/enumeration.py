"""The law of whole answers, call after call, by enumeration of all noise.

Every uniform number is a fork (`tests.analysis.exact`), kept for as long as the decoder keeps it:
noise that is used twice is the same number twice. Distributions are of small fractions, with zeros
and ties; the decoder makes floats of them, so sums agree within their rounding.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from analysis.decoding.schemes import NOTHING
from analysis.trees.topology import Topology
from pipeline.decoding.choices import TEST, Drawn
from pipeline.decoding.drafters import ModelDrafter
from pipeline.decoding.loop import decode
from pipeline.decoding.verify import Verifier
from tests.analysis.exact import Fork, Uniform, distributions, outcomes
from tests.pipeline.decoding.pair import Markov

ROUNDING = 1e-12
Key = tuple[Hashable, ...]


class Fractions(Markov):
    """A model of small fractions, by the last token."""

    def __init__(self, seed: int, size: int, least: float, eos: tuple[int, ...] = ()) -> None:
        """Stand for a probability of 0 by the logit `least`."""
        row = distributions(seed, size)
        self.p = np.array([row((last,)).astype(np.float64) for last in range(size)])
        with np.errstate(divide="ignore"):
            super().__init__(torch.from_numpy(np.maximum(np.log(self.p), least)), eos)


class ForkedNoise:
    """Uniform numbers, each made when it is first asked for and the same ever after."""

    def __init__(self, fork: Fork) -> None:
        self._fork = fork
        self._made: dict[Key, Uniform] = {}
        self.uniforms = self

    def at(self, *key: Hashable) -> Any:
        if key not in self._made:
            self._made[key] = Uniform(self._fork)
        return self._made[key]

    def __getitem__(self, index: tuple[Any, int]) -> Any:
        positions, purpose = index
        if not isinstance(positions, slice):
            return self.at(positions, purpose)
        if positions.stop is None:
            return np.zeros(1)
        range_ = range(positions.start, positions.stop)
        return np.array([self.at(position, purpose) for position in range_], dtype=object)

    def test(self, position: int, sibling: int) -> Any:
        return self.at(position, TEST, sibling)


class ForkedDraft:
    """Draws without replacement; all nodes at a position with the same numbers."""

    def __init__(self, noise: ForkedNoise) -> None:
        self._noise = noise

    def draft(self, logits: torch.Tensor, position: int, depth: int, width: int) -> Drawn:
        q = torch.softmax(logits.double(), -1)
        tokens = [[NOTHING] * width for _ in q]
        for row, weights in enumerate(q.numpy().copy()):
            for sibling in range(width):
                if weights.any():
                    token = draw(weights, self._noise.at("draft", position + depth, sibling))
                    tokens[row][sibling] = token
                    weights[token] = 0
        return torch.tensor(tokens), q[:, 0], q


def draw(weights: np.ndarray, uniform: Any) -> int:
    """A draw by inversion, the sums in fractions so that the last one is the whole."""
    sums = list(itertools.accumulate(Fraction(float(weight)) for weight in weights))
    return next(at for at, total in enumerate(sums) if uniform * sums[-1] < total)


def check_law(law: Counter[Any], target: Fractions, last: int, limit: int) -> None:
    """Check that whole answers have the target's law: to the limit, or to an end token."""
    assert float(sum(law.values())) == pytest.approx(1, abs=ROUNDING)
    wanted: Counter[tuple[int, ...]] = Counter({(): 1.0})
    for _ in range(limit):
        grown: Counter[tuple[int, ...]] = Counter()
        for text, weight in wanted.items():
            if text and text[-1] in target.eos:
                grown[text] += weight
                continue
            for token, p in enumerate(target.p[text[-1] if text else last]):
                grown[(*text, token)] += weight * p
        wanted = grown
    for text in {*law, *wanted}:
        assert float(law[text]) == pytest.approx(float(wanted[text]), abs=ROUNDING), text


def sampled(
    models: tuple[Fractions, Fractions],
    tree: Topology | None,
    limit: int,
    verify: Callable[[Any], Verifier],
) -> Counter[Any]:
    """The law of answers whose drafts are drawn by inversion."""
    target, smaller = models

    def run(fork: Fork) -> tuple[int, ...]:
        noise = ForkedNoise(fork)
        choice: Any = ForkedDraft(noise)
        source = ModelDrafter(smaller, choice, tree)
        depth = 2 if tree is None else tree.depth
        return tuple(decode(target, source, verify(noise), [0], depth, limit).tokens)

    return outcomes(run)


def pair(seed: int, size: int, eos: tuple[int, ...] = ()) -> tuple[Fractions, Fractions]:
    """A target and a drafter; the target's logits are finite."""
    return Fractions(seed, size, -1e4, eos), Fractions(seed + 100, size, -math.inf)

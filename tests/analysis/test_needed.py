"""What certifies eps by rank, against the certificates of every rule and setting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from analysis.certificates.certify import certify
from analysis.certificates.needed import First, Needed, least_counts
from analysis.rules import Additive, Mars, Multiplicative, Rule, StrictGreedy, Tree, Typical
from analysis.rules.builtin import AbsoluteThreshold, TopMAdditive
from analysis.rules.rule import Counts
from analysis.topk import TopK


@dataclass(frozen=True)
class Odd(Rule):
    """A rule of a user's own, by counts: of all that is stored, or of the step's number."""

    every: int

    def accepted_count(self, dist: TopK, /) -> Counts:
        counts = 1 + np.arange(len(dist)) % self.every
        return np.where(counts >= dist.k, -1 if dist.k < dist.vocab_size else dist.k, counts)


RULES = [
    StrictGreedy(),
    *(Additive(t) for t in (0.0, 0.05, 0.3, 1.0)),
    *(Multiplicative(alpha) for alpha in (1.0, 0.5, 0.001)),
    *(AbsoluteThreshold(theta) for theta in (0.3, 0.01, 0.0)),
    *(TopMAdditive(m, 0.2, way) for m in (2, 6) for way in ("rank", "paper")),
    Typical(0.1, 0.09),
    *(Mars(theta) for theta in (0.5, 0.9)),
    Odd(15),
]


def steps(k: int, scale: float) -> TopK:
    logits = scale * np.random.default_rng(k).standard_normal((60, 20)) + 4
    logits[:5, 1:4] = logits[:5, :1]  # ties
    logits[5:9, 6:] = -np.inf
    return TopK.from_logits(logits.astype(np.float32), k=k)


@pytest.mark.parametrize("divergence", ["kl", "tv", "renyi:2"])
@pytest.mark.parametrize("eps", [0.0, 0.02, 0.2])
@pytest.mark.parametrize(("k", "scale"), [(12, 0.3), (12, 2.0), (20, 2.0)])
def test_a_rule_meets_what_is_needed_where_it_certifies(
    k: int, scale: float, eps: float, divergence: str
) -> None:
    dist = steps(k, scale)
    needed = Needed(dist, least_counts(dist, eps, divergence))
    known = needed.counts <= k
    assert k < 20 or known.all()
    for rule in RULES:
        certified = certify(dist, rule, divergence=divergence).lower[:, 0] > eps
        met = needed.met(rule)
        assert met is not None
        np.testing.assert_array_equal(met[known], certified[known], rule.label)
        assert not met[~known].any()
    assert needed.met(Tree(2)) is None


def test_the_counts_are_the_least_ones() -> None:
    dist = steps(12, 2.0)
    counts = least_counts(dist, 0.1)
    assert len(set(counts.tolist())) > 3
    for n in range(1, 12):
        certified = certify(dist, First(n)).lower[:, 0] > 0.1
        np.testing.assert_array_equal(certified, counts <= n)


def test_given_probabilities_count_as_well() -> None:
    dist = TopK.from_probabilities([[0.6, 0.3, 0.1], [1.0, 0.0, 0.0]])
    assert least_counts(dist, 0.06).tolist() == [2, 1]
    assert least_counts(dist, 0.7).tolist() == [3, 3]  # above log 2 only if nothing is rejected
    needed = Needed(dist, least_counts(dist, 0.06))
    assert [list(needed.met(Additive(t))) for t in (0.3, 0.31)] == [[False, True], [True, True]]  # type: ignore[arg-type]

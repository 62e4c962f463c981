"""Truncated distributions: the same step from probabilities and from a dump's columns."""

import numpy as np
import pytest

from analysis.certificates import certify
from analysis.criteria import Additive, StrictGreedy, Tree, Typical
from analysis.distributions import TopK
from tests.analysis.cases import dirichlet, stored_columns


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_two_ways_in_agree(temperature: float) -> None:
    z = (np.random.default_rng(0).normal(size=(50, 20)) * 3).astype(np.float32)
    columns = stored_columns(z, 8, temperature)
    dump = TopK.from_columns(**columns, vocab_size=20, temperature=temperature)
    weight = np.exp(z.astype(np.float64) / temperature)
    given = TopK.from_probabilities(weight / weight.sum(axis=1, keepdims=True), k=8)
    np.testing.assert_array_equal(dump.ids, given.ids)
    np.testing.assert_allclose(dump.probs, given.probs, rtol=1e-12)
    np.testing.assert_allclose(dump.log_probs, given.log_probs, atol=1e-12)
    np.testing.assert_allclose(dump.log_tail, given.log_tail, atol=1e-12)
    np.testing.assert_allclose(dump.entropy, given.entropy, atol=1e-12)
    np.testing.assert_allclose(dump.top_probability, given.probs[:, 0], rtol=1e-12)
    rules = [StrictGreedy(), Additive(0.1), Typical(0.1, 0.09), Tree(3)]
    np.testing.assert_allclose(certify(dump, rules).lo, certify(given, rules).lo, rtol=1e-9)


def test_ties_by_id_zeros_kept_and_tail() -> None:
    dist = TopK.from_probabilities([[0.0, 0.25, 0.5, 0.25, 0.0]], k=3)
    assert dist.ids.tolist() == [[2, 1, 3]]
    assert dist.log_tail.tolist() == [-np.inf]
    assert (dist.k, dist.vocab_size, len(dist)) == (3, 5, 1)
    assert dist.entropy[0] == pytest.approx(1.5 * np.log(2))
    assert TopK.from_probabilities([[0.0, 0.25, 0.5, 0.25, 0.0]]).ids.tolist() == [[2, 1, 3, 0, 4]]


def test_a_tail_below_the_rounding_of_one_is_kept() -> None:
    dist = TopK.from_probabilities([[1.0, 1e-20, 2e-20]], k=1)
    assert dist.log_tail[0] == pytest.approx(np.log(3e-20), rel=1e-14)


def test_slices_are_the_steps() -> None:
    dist = TopK.from_probabilities(dirichlet(0, 20, 9, 1.0), k=4)
    for part, rows in ((dist[3:7], slice(3, 7)), (dist[np.array([5, 1])], [5, 1])):
        for name in ("ids", "probs", "log_probs", "entropy", "log_tail", "top_probability"):
            np.testing.assert_array_equal(getattr(part, name), getattr(dist, name)[rows])


def test_refusals() -> None:
    for p, message in [
        ([0.5, 0.5], "shape"),
        ([[0.5, 0.6]], "sums to 1.1"),
        ([[1.5, -0.5]], "negative"),
        ([[np.nan, 1.0]], "non-finite"),
        ([[0.5 + 1j, 0.5]], "complex"),
    ]:
        with pytest.raises(ValueError, match=message):
            TopK.from_probabilities(p)
    for k in (3, 0, 2.0, "2", True):
        with pytest.raises(ValueError, match=rf"k={k!r} is not allowed: give an integer in \[1, 2"):
            TopK.from_probabilities([[0.5, 0.5]], k=k)  # type: ignore[arg-type]
    good = stored_columns(np.zeros((2, 4), dtype=np.float32), 3) | {"vocab_size": 4}
    for change, message in [
        ({"vocab_size": 2}, "K=3 tokens"),
        ({"vocab_size": 4.5}, "vocabulary of 4.5"),
        ({"entropy": [1.0, np.nan]}, "entropy of step 1 is nan"),
        ({"entropy": [-0.1, 1.0]}, "entropy of step 0 is -0.1: give at least 0"),
        ({"log_tail": [-1.0, np.nan]}, "log_tail of step 1 is nan"),
        ({"log_tail": [0.1, -1.0]}, "log_tail of step 0 is 0.1"),
        ({"logsumexp": [np.inf, 1.0]}, "logsumexp of step 0 is inf"),
        ({"logsumexp": [1.4, -0.1]}, "the largest probability of step 1 is 1.1"),
        ({"temperature": 0.0}, "temperature"),
        ({"entropy": np.zeros(3)}, "entropy has shape"),
        ({"top_ids": np.zeros((2, 2))}, "same shape"),
    ]:
        with pytest.raises(ValueError, match=message):
            TopK.from_columns(**(good | change))

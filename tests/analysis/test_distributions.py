"""Truncated distributions: the same step from probabilities and from a dump's columns."""

import math

import mpmath
import numpy as np
import pytest
import torch

from analysis import topk
from analysis.certificates.certify import certify
from analysis.rules import AbsoluteThreshold, Additive, StrictGreedy, Tree, Typical
from analysis.topk import TopK
from tests.analysis.cases import stored_columns


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_two_ways_in_agree(temperature):
    z = (np.random.default_rng(0).normal(size=(50, 20)) * 3).astype(np.float32)
    columns = stored_columns(z, 8, temperature)
    dump = TopK.from_columns(**columns, vocab_size=20, temperature=temperature)
    weight = np.exp(z.astype(np.float64) / temperature)
    given = TopK.from_probabilities(weight / weight.sum(axis=1, keepdims=True), k=8)
    np.testing.assert_array_equal(dump.ids, given.ids)
    for name in ("probs", "log_probs", "log_tail", "entropy", "top_probability"):
        np.testing.assert_allclose(getattr(dump, name), getattr(given, name), rtol=1e-11)
    rules = [StrictGreedy(), Additive(0.1), Typical(0.1, 0.09), Tree(3)]
    np.testing.assert_allclose(certify(dump, rules).lower, certify(given, rules).lower, rtol=1e-9)


def test_ties_by_id_zeros_kept_and_tail():
    p = [[0.0, 0.25, 0.5, 0.25, 0.0]]
    dist = TopK.from_probabilities(p, k=3)
    assert (dist.ids.tolist(), dist.log_tail.tolist()) == ([[2, 1, 3]], [-np.inf])
    assert (dist.k, dist.vocab_size, len(dist)) == (3, 5, 1)
    assert dist.entropy[0] == pytest.approx(1.5 * np.log(2))
    assert TopK.from_probabilities(p).ids.tolist() == [[2, 1, 3, 0, 4]]


@pytest.mark.parametrize("k", [1, 3, 8, 12])
def test_logits_ranked_by_hand(k):
    """Ties, masked tokens, offsets of 1e4 and k at their edges, against sums of 40 digits."""
    z = np.random.default_rng(k).integers(-3, 3, (30, 12)).astype(np.float32)
    z[:10, 3:9], z[10:20] = -np.inf, z[10:20] / 8 + 10_000
    dist = TopK.from_logits(z, k, temperature=0.7)
    with mpmath.workdps(40):
        for row, x in enumerate(z):
            order = np.lexsort((np.arange(12), -x))
            assert dist.ids[row].tolist() == order[:k].tolist()
            w = [mpmath.exp(mpmath.mpf(float(x[i])) / mpmath.mpf(0.7)) for i in order]
            p = [value / mpmath.fsum(w) for value in w]
            h = -mpmath.fsum(value * mpmath.log(value) for value in p if value)
            tail = mpmath.fsum(p[k:])
            assert dist.top_surprisal[row] == pytest.approx(float(-mpmath.log(p[0])), rel=1e-15)
            assert dist.entropy[row] == pytest.approx(float(h), rel=1e-14)
            assert np.exp(dist.log_tail[row]) == pytest.approx(float(tail), rel=1e-14)
            np.testing.assert_allclose(dist.probs[row], np.array(p[:k], float), rtol=4e-15)


def test_logits_of_any_kind():
    z = np.random.default_rng(0).normal(size=(4, 9)).astype(np.float32)
    wanted = TopK.from_logits(z, 5)
    for other in (torch.tensor(z, requires_grad=True), z.tolist()):
        found = TopK.from_logits(other, 5)
        np.testing.assert_array_equal(found.top_surprisal, wanted.top_surprisal)
        np.testing.assert_array_equal(found.logits, wanted.logits)
    half = torch.tensor(z).bfloat16()
    exact = TopK.from_logits(half.float().numpy())
    np.testing.assert_array_equal(TopK.from_logits(half).logits, exact.logits)
    np.testing.assert_array_equal(TopK.from_logits(z[0]).ids, TopK.from_logits(z[:1]).ids)
    assert len(TopK.from_logits(z[:0], 3)) == 0
    many = np.tile(z, (topk.LOGITS_AT_ONCE // 9, 1))[: topk.LOGITS_AT_ONCE // 9 + 3]  # in two parts
    last = TopK.from_logits(many[-3:], 5)
    np.testing.assert_array_equal(TopK.from_logits(many, 5).log_tail[-3:], last.log_tail)


PLAIN, LOGITS, LOG_PROBS = TopK.from_probabilities, TopK.from_logits, TopK.from_log_probs


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (LOGITS, [[[0.0, 1.0], [np.nan, 0.0]]], "largest logit of step 1"),
        (PLAIN, [[[[0.5, 0.5]]]], "p is float64"),
        (PLAIN, [[[2.0, 1.0]]], "sum of p of step 0 is 3"),
        (PLAIN, [[[1.5, -0.5]]], "p of step 0 is -0.5"),
        (PLAIN, [[[0.5, 0.5]], 3], r"k=3 is not allowed: give an integer in \[1, 2"),
        (LOG_PROBS, [[[0, 1]], [[-1.0, -0.5]], 1e-4, 50], "of step 0 is .*values that fall"),
        (LOG_PROBS, [[[0, 1]], [[-0.5, -0.6]], 1e-4, 50], "of step 0 is .*at most 1"),
        (LOG_PROBS, [[[0, 1]], [[0.004, -9]], 0.01, 50], "log_probs of step 0 is 0.004"),
        (LOG_PROBS, [[[0]], [[1.1e-6]], 0.01, 50], "log_probs of step 0 is 1.1e-06"),
        (LOG_PROBS, [[[0], [1]], [[-0.1], [np.nan]], 0.01, 50], "log_probs of step 1 is nan"),
        (LOG_PROBS, [[[0, 1]], [[-0.5, -1.5]], -0.1, 50], "error of step 0 is -0.1"),
        (LOG_PROBS, [[[0, 1]], [[-0.5, -1.5]], [[0.1, np.inf]], 50], "error of step 0 is inf"),
        (LOG_PROBS, [[[0, 1]], [[-0.5, -1.5]], [0.1, 0.1, 0.1], 50], r"error is \(3,\)"),
        (LOG_PROBS, [[[0, 50]], [[-0.5, -1.5]], 0.1, 50], "ids has 50: give token ids in .0, 49"),
        (LOG_PROBS, [[[-1, 1]], [[-0.5, -1.5]], 0.1, 50], "ids has -1"),
        (LOG_PROBS, [[[0, 1]], np.log([[0.3, 0.2]]), 0.001, 4], "of the other tokens of step 0"),
        (LOG_PROBS, [[[0, 1]], np.log([[0.6, 0.39]]), 0.001, 2], "of the other tokens of step 0"),
    ],
)
def test_what_is_no_distribution_is_refused(make, given, message):
    with pytest.raises(ValueError, match=message):
        make(*given)


@pytest.mark.parametrize(("size", "p"), [(5, [0.3, 0.2]), (2, [0.6, 0.3999])])
def test_a_vocabulary_that_can_have_the_rest_is_taken(size, p):
    assert LOG_PROBS([[0, 1]], np.log([p]), 0.001, size).vocab_size == size


H = np.log(4)  # of four equal tokens, of which three are stored


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"top_ids": np.zeros((2, 2))}, r"ids \(2, 2\)"),
        ({"temperature": 0.0}, "temperature=0.0 is not allowed"),
        ({"entropy": np.array([H, np.nan])}, "entropy of step 1 is nan"),
        ({"log_tail": np.array([-np.inf, -H])}, "sum of probabilities of step 0 is 0.75"),
        ({"top_surprisal": np.full(2, H - 1e-8)}, "within 1e-09"),
        ({"top_ids": np.array([[0, 1, 2], [0, 1, 4]])}, "ids has 4"),
        ({"vocab_size": 3}, "log_tail of step 0 is -1.386"),  # nothing is left to have a mass
    ],
)
def test_columns_that_contradict_each_other_are_refused(change, message):
    good = stored_columns(np.zeros((2, 4), dtype=np.float32), 3) | {"vocab_size": 4}
    with pytest.raises(ValueError, match=message):
        TopK.from_columns(**(good | change))


@pytest.mark.parametrize("value", [0.0, 1e-7, 1e-6])
def test_a_log_probability_above_0_by_a_rounding_counts_as_0(value):
    found = certify(TopK.from_log_probs([[0, 1]], [[value, -20.0]], 1e-4, 50), StrictGreedy())
    zero = certify(TopK.from_log_probs([[0, 1]], [[0.0, -20.0]], 1e-4, 50), StrictGreedy())
    assert found.lower == zero.lower
    assert found.upper == zero.upper


def test_what_a_constructor_takes_certify_takes():
    """Sums of printed probabilities are off by 1e-6 at most: so is p0, and no mass is below 0."""
    rules = [StrictGreedy(), AbsoluteThreshold(0.1)]
    certain = certify(TopK.from_probabilities([1.000001, 0.0]), rules)
    assert certain.lower == pytest.approx(np.full((1, 2), math.log(2)), rel=1e-5)
    over = TopK.from_log_probs([[0, 1]], [np.log([0.6, 0.4000009])], 0.0, 4)
    found = certify(over, rules)
    assert np.isfinite(found.lower).all()
    assert (found.lower <= found.upper).all()


@pytest.mark.parametrize("make", [PLAIN, LOGITS])
def test_steps_are_selected_as_those_of_an_array(make):
    dist = make(np.random.default_rng(0).dirichlet(np.ones(4), 3))
    for step in (0, 2, -1, np.int64(1)):
        one = dist[step]
        assert (len(one), one.k, one.ids.shape) == (1, 4, (1, 4))
        np.testing.assert_array_equal(one.probs[0], dist.probs[step])
        assert certify(one, StrictGreedy()).lower[0] == certify(dist, StrictGreedy()).lower[step]
    assert [len(part) for part in (dist[1:], dist[[0, 2]], dist[[True, False, False]])] == [2, 2, 1]
    assert len(list(dist)) == 3
    assert len(dist[:0]) == 0
    for wrong in (3, -4, None, ..., [[0, 1]], np.array(0), 1.0, (slice(1), 0)):
        with pytest.raises(IndexError):
            dist[wrong]

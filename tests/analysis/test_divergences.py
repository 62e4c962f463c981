"""The divergences that tests compare with: against 50 digits, by hand, and at ties."""

import math

import mpmath
import numpy as np
import pytest

from analysis.acceptance.judgement import rounding
from tests import divergences as d
from tests.analysis.cases import noisy


@pytest.mark.parametrize("noise", [1e-6, 1e-3, 0.03, 0.2, 10.0])
def test_kl_agrees_with_fifty_digits_within_its_stated_rounding(noise):
    z, w = noisy(6, 40, 3.0, noise)
    with mpmath.workdps(50):
        for value, *logits in zip(d.kl(d.log_softmax(z), d.log_softmax(w)), z, w, strict=True):
            p, q = ([mpmath.exp(mpmath.mpf(float(x))) for x in row] for row in logits)
            p, q = [x / mpmath.fsum(p) for x in p], [x / mpmath.fsum(q) for x in q]
            true = float(mpmath.fsum(a * mpmath.log(a / b) for a, b in zip(p, q, strict=True)))
            assert abs(value - true) <= rounding(np.array([true]))[0]
            # the textbook form loses all digits at 1e-6, where the KL is about 1e-12
            assert abs(value - true) <= 1e-6 * true


def test_by_hand_with_zeros():
    with np.errstate(divide="ignore"):
        p, q = np.log([[0.5, 0.5, 0.0]]), np.log([[0.25, 0.5, 0.25]])
    assert d.kl(p, q)[0] == pytest.approx(0.5 * math.log(2), rel=1e-14)
    assert (d.kl(q, p)[0], d.kl(p, p)[0]) == (math.inf, 0)
    assert (d.total_variation(p, q)[0], d.total_variation(p, p)[0]) == (0.25, 0)
    assert d.harmonic_mean(p, q)[0] == pytest.approx(0.125 / 0.75 + 0.25, rel=1e-14)


def test_erss_acceptance_is_its_definition():
    p, q = np.exp(np.array(noisy(30, 25, 3.0, 2.0), dtype=np.float64))
    p[:10, 3:9] = q[:20, 5:12] = 0
    p, q = (x / x.sum(axis=1, keepdims=True) for x in (p, q))
    wanted = [
        sum(1 / np.maximum(a / a[i], b / b[i]).sum() for i in np.flatnonzero((a > 0) & (b > 0)))
        for a, b in zip(p, q, strict=True)
    ]
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(d.erss_acceptance(np.log(p), np.log(q)), wanted, rtol=1e-12)


def test_ties_go_against_the_drafter():
    # target ranks: token 2 first, then 0 and 3 (tied, by id), then 1
    z = np.array([[1.0, 0.0, 2.0, 1.0]], dtype=np.float32)
    tied = np.array([[5.0, 1.0, 5.0, 5.0]], dtype=np.float32)
    token, rank = d.drafted_token(z, tied)
    assert (token[0], rank[0]) == (3, 3)
    assert d.argmax_rank(z, tied)[0] == 3  # tokens 0 and 3 rank before token 2
    best = np.array([[0.0, 1.0, 5.0, 5.0 - 1e-6]], dtype=np.float32)
    assert d.drafted_token(z, best)[1][0] == 1
    assert d.argmax_rank(z, best)[0] == 1

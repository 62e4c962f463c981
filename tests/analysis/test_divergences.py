"""Divergences against 50-digit sums, enumeration, simulation and their own inequalities."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from analysis.acceptance.realised import rounding
from tests import divergences as d

RNG = np.random.default_rng(4)


def logits(n: int, v: int, scale: float = 3.0) -> np.ndarray:
    return (scale * RNG.standard_normal((n, v))).astype(np.float32)


def precise_kl(z: np.ndarray, w: np.ndarray) -> float:
    with mpmath.workdps(50):
        p, q = ([mpmath.exp(mpmath.mpf(float(x))) for x in row] for row in (z, w))
        p, q = [x / mpmath.fsum(p) for x in p], [x / mpmath.fsum(q) for x in q]
        return float(mpmath.fsum(a * mpmath.log(a / b) for a, b in zip(p, q, strict=True)))


@pytest.mark.parametrize("noise", [0.2, 1e-6, 1e-3, 0.03, 1.0, 10.0])
def test_kl_agrees_with_fifty_digits_within_its_stated_rounding(noise: float) -> None:
    z = logits(6, 40)
    w = (z + np.float32(noise) * logits(6, 40, 1.0)).astype(np.float32)
    found = d.kl(d.log_softmax(z), d.log_softmax(w))
    for value, a, b in zip(found, z, w, strict=True):
        true = precise_kl(a, b)
        assert abs(value - true) <= rounding("kl", np.array([true]))[0]
        # the textbook form loses all digits at 1e-6, where the KL is about 1e-12
        assert abs(value - true) <= 1e-6 * true


def test_zero_probabilities() -> None:
    p = np.array([[0.5, 0.5, 0.0]])
    q = np.array([[0.25, 0.5, 0.25]])
    with np.errstate(divide="ignore"):
        log_p, log_q = np.log(p), np.log(q)
    assert d.kl(log_p, log_q)[0] == pytest.approx(0.5 * math.log(2), rel=1e-14)
    assert np.isposinf(d.kl(log_q, log_p)[0])
    assert d.kl(log_p, log_p)[0] == 0
    assert d.entropy(log_p)[0] == pytest.approx(math.log(2))
    assert d.erss_acceptance(log_p, log_q)[0] == pytest.approx(races(p[0], q[0]), rel=1e-14)


def races(p: np.ndarray, q: np.ndarray) -> float:
    """The definition, O(V^2)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(
            sum(
                1 / sum(max(p[j] / p[i], q[j] / q[i]) for j in range(len(p)))
                for i in range(len(p))
                if p[i] > 0 and q[i] > 0
            )
        )


def test_erss_acceptance_is_its_definition_and_lies_between_its_bounds() -> None:
    log_p, log_q = d.log_softmax(logits(30, 25)), d.log_softmax(logits(30, 25))
    found = d.erss_acceptance(log_p, log_q)
    wanted = [races(np.exp(a), np.exp(b)) for a, b in zip(log_p, log_q, strict=True)]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    assert (d.harmonic_mean(log_p, log_q) <= found).all()
    assert (found <= 1 - d.total_variation(log_p, log_q)).all()


def test_ties_go_against_the_drafter() -> None:
    # target ranks: token 2 first, then 0 and 3 (tied, by id), then 1
    z = np.array([[1.0, 0.0, 2.0, 1.0]], dtype=np.float32)
    tied = np.array([[5.0, 1.0, 5.0, 5.0]], dtype=np.float32)
    token, rank = d.drafted_token(z, tied)
    assert (token[0], rank[0]) == (3, 3)
    assert d.argmax_rank(z, tied)[0] == 3  # tokens 0 and 3 rank before token 2
    best = np.array([[0.0, 1.0, 5.0, 5.0 - 1e-6]], dtype=np.float32)
    assert d.drafted_token(z, best)[1][0] == 1
    assert d.argmax_rank(z, best)[0] == 1


def test_ranks_agree_with_sorting() -> None:
    z, w = logits(50, 30), logits(50, 30)
    found = d.compare_logits(z, w)
    for row in range(50):
        ranked = sorted(range(30), key=lambda v: (-z[row, v], v))
        drafted = sorted(range(30), key=lambda v: -w[row, v])
        assert found.draft_token_id[row] == drafted[0]
        assert found.draft_rank[row] == 1 + ranked.index(drafted[0])
        assert found.argmax_rank[row] == 1 + drafted.index(ranked[0])

"""Exactly at a threshold, at zero, at the last token: where one comparison decides."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from analysis.certificates import kernel
from analysis.certificates.certify import certify
from analysis.decoding import laws as verification
from analysis.rules import Mars, TopMAdditive
from analysis.topk import TopK


def mars_steps(*logits: list[float]) -> TopK:
    z = np.array(logits, dtype=np.float32)
    x = z.astype(np.float64)
    surprisal = np.log(np.exp(x - x[:, :1]).sum(axis=1))
    p = np.exp(x - x[:, :1] - surprisal[:, None])
    ids = np.tile(np.arange(z.shape[1], dtype=np.int32), (len(z), 1))
    empty = np.full(len(z), -np.inf)
    return TopK.from_columns(ids, z, surprisal, empty, -(p * np.log(p)).sum(axis=1), z.shape[1])


@pytest.mark.parametrize("u", [-0.999, -0.6, -0.26, -0.24, -1e-5, 1e-9, 0.24, 0.26, 0.6, 0.89, 5.0])
def test_phi_has_full_precision_on_both_sides_of_its_series(u: float) -> None:
    with mpmath.workdps(40):
        exact = float((1 + mpmath.mpf(u)) * mpmath.log1p(mpmath.mpf(u)) - mpmath.mpf(u))
    assert math.isclose(kernel.gap(1.0, math.log1p(u)), exact, rel_tol=2e-15)


def test_mars_ratio_at_its_threshold_rejects() -> None:
    """z2/z1 = theta exactly is not above it."""
    steps = mars_steps([4.0, 2.0, 1.0], [4.0, 2.000001, 1.0], [0.0, -1.0, -2.0], [-1.0, -2.0, -3.0])
    assert certify(steps, [Mars(0.5)]).accepted_count[:, 0].tolist() == [1, 2, 1, 1]
    assert Mars(0.5).undefined(steps).tolist() == [False, False, True, True]  # z1 = 0 included


def test_papers_gate_at_the_last_token_of_the_vocabulary_keeps_all_others() -> None:
    p = TopK.from_probabilities([[0.4, 0.3, 0.2, 0.1]])
    for m, kept in ((3, 2), (4, 3), (5, 4)):
        rule = TopMAdditive(m, 1.0, "paper")
        assert certify(p, [rule]).accepted_count[0, 0] == kept


def test_what_is_no_distribution_is_refused() -> None:
    z, one, none = np.array([[2.0, 1.0]], dtype=np.float32), np.ones(1), np.full(1, -np.inf)
    ids = np.array([[0, 1]], dtype=np.int32)
    broken = z * np.array([[1, np.nan]], dtype=np.float32)
    for logits, surprisal in ((z, -0.1), (z, -1.0), (z, np.inf), (z, np.nan), (broken, 1.0)):
        with pytest.raises(ValueError, match="step 0"):
            certify(
                TopK.from_columns(ids, logits, surprisal * one, none, one, 2),
                [TopMAdditive(2, 0.9)],
            )


def test_tests_and_draws_never_take_a_token_without_probability() -> None:
    accepts = verification.sampling_accepts(np.array([0.0, 0.5]), np.array([0.5, 0.5]), np.zeros(2))
    assert accepts.tolist() == [False, True]
    least = 5e-324  # times a number just below 1 rounds up to the total
    assert verification.pick(np.array([0.0, least, 0.0]), math.nextafter(1, 0)) == 1
    assert verification.pick(np.array([0.0, 1.0]), 0.0) == 1

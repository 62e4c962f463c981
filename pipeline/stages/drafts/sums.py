"""Sums over the vocabulary that compare two distributions: compiled on the CPU, torch on CUDA.

Torch goes through the vocabulary some thirty times, the compiled loop once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from analysis.acceptance.divergences import SERIES, SERIES_BELOW

Rows = NDArray[np.float64]

BLOCK = 256  # terms of a partial sum: rounding grows with it and with the number of partial sums
COEFFICIENTS = SERIES[::-1]


class Sums(NamedTuple):
    """See analysis.acceptance.divergences.Comparison; (B,) float64 each."""

    kl: Tensor
    reverse_kl: Tensor
    tv: Tensor
    hellinger: Tensor
    harmonic_mean: Tensor


def divergence_sums(log_p: Tensor, p: Tensor, log_q: Tensor, q: Tensor) -> Sums:
    """Compare two (B, V) distributions of float64, each given with its logarithm."""
    if p.is_cuda:
        return sums_on_device(log_p, p, log_q, q)
    out = torch.empty((len(Sums._fields), len(p)), dtype=torch.float64)
    log_a, a, log_b, b = (one.contiguous().numpy() for one in (log_p, p, log_q, q))
    _sum(log_a, a, log_b, b, out.numpy())
    return Sums(*out)


def sums_on_device(log_p: Tensor, p: Tensor, log_q: Tensor, q: Tensor) -> Sums:
    """Do the same with torch's operations."""
    difference = p - q
    harmonic_mean = _numbers((p * q).div_(p + q)).sum(1)
    hellinger = p.sqrt().sub_(q.sqrt()).square_().sum(1) / 2
    d = _numbers(log_p - log_q)  # of a token that both mask: 0
    forward, backward = _numbers(p * d).sub_(difference), _numbers(q * -d).add_(difference)
    small = d.abs() < SERIES_BELOW
    x = d[small]
    forward[small], backward[small] = _series(q[small], x), _series(p[small], -x)
    return Sums(
        forward.sum(1), backward.sum(1), difference.abs_().sum(1) / 2, hellinger, harmonic_mean
    )


def _series(weight: Tensor, x: Tensor) -> Tensor:
    """Return weight phi(e^x - 1) by its series."""
    series = torch.zeros_like(x)
    for coefficient in COEFFICIENTS:
        series = series.mul_(x).add_(coefficient)
    return series.mul_(x).mul_(x).mul_(weight)


def _numbers(values: Tensor) -> Tensor:
    """Put 0 for NaN, in place: 0 times an infinity, the difference of two, 0 divided by 0."""
    return values.nan_to_num_(nan=0.0, posinf=torch.inf, neginf=-torch.inf)


@numba.njit(nogil=True, cache=True)
def _phi(x: float) -> float:
    """Return phi(e^x - 1) by its series."""
    series = 0.0
    for coefficient in COEFFICIENTS:
        series = series * x + coefficient
    return series * x * x


@numba.njit(nogil=True, cache=True)
def _terms(log_p: float, p: float, log_q: float, q: float) -> tuple[float, float]:
    """Return the terms q phi(p/q - 1) and p phi(q/p - 1) of KL(p||q) and KL(q||p); see `kl`."""
    if p == 0 and q == 0:
        return 0.0, 0.0
    d = log_p - log_q
    if abs(d) < SERIES_BELOW:
        return q * _phi(d), p * _phi(-d)
    forward = p * d - (p - q) if p > 0 else q
    backward = (p - q) - q * d if q > 0 else p
    return forward, backward


@numba.njit(nogil=True, cache=True)
def _sum(log_p: Rows, p: Rows, log_q: Rows, q: Rows, out: Any) -> None:
    """Write the sums (5, B), in the order of `Sums`."""
    size, vocabulary = p.shape
    for i in range(size):
        out[:, i] = 0
        for begin in range(0, vocabulary, BLOCK):
            kl = reverse_kl = tv = hellinger = harmonic_mean = 0.0
            for j in range(begin, min(begin + BLOCK, vocabulary)):
                a, b = p[i, j], q[i, j]
                forward, backward = _terms(log_p[i, j], a, log_q[i, j], b)
                kl += forward
                reverse_kl += backward
                tv += abs(a - b)
                apart = np.sqrt(a) - np.sqrt(b)
                hellinger += apart * apart
                if a + b > 0:
                    harmonic_mean += a * b / (a + b)
            out[0, i] += kl
            out[1, i] += reverse_kl
            out[2, i] += tv / 2
            out[3, i] += hellinger / 2
            out[4, i] += harmonic_mean

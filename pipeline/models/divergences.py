"""Divergences of two distributions over the vocabulary, given with their logarithms.

On a processor by compiled loops, on a GPU by torch.
"""

from __future__ import annotations

from typing import Any

import numba
import torch
from torch import Tensor

from analysis.statistics.bootstrap import Floats
from pipeline.models.logit_statistics import Found

BLOCK = 256  # terms of a partial sum: rounding grows with it and with the number of partial sums
SERIES_BELOW = 0.05  # |log(p/q)| under which phi is summed as a series
# (n-1)/n! for n = 10..2: phi(e^d - 1) = e^d (d - 1) + 1 = sum (n-1)/n! d^n; the first term left
# out is below 1e-17 of the sum at |d| = 0.05
COEFFICIENTS = (1 / 403200, 1 / 45360, 1 / 5760, 1 / 840, 1 / 144, 1 / 30, 1 / 8, 1 / 3, 1 / 2)
SUMS = ("kl", "tv", "harmonic_mean")


def divergence_sums(log_p: Tensor, p: Tensor, log_q: Tensor, q: Tensor) -> Found:
    """Return the `SUMS` (B,) of two (B, V) distributions of float64, given with their logarithms.

    KL(p||q) = sum q phi(p/q - 1), phi(u) = (1+u) log(1+u) - u, nats: every term is non-negative, so
    nothing cancels where p and q nearly agree, and p = q gives exactly 0. The total variation, half
    the sum of |p - q|; the harmonic mean sum p q / (p + q), a lower bound of the acceptance of
    exponential races (equation (10) and Lemma C.1 of arXiv 2504.15475).
    """
    if p.is_cuda:
        return torch_sums(log_p, p, log_q, q)
    out = torch.empty((len(SUMS), len(p)), dtype=torch.float64)
    log_a, a, log_b, b = (tensor.contiguous().numpy() for tensor in (log_p, p, log_q, q))
    _sum(log_a, a, log_b, b, out.numpy())
    return dict(zip(SUMS, out, strict=True))


def torch_sums(log_p: Tensor, p: Tensor, log_q: Tensor, q: Tensor) -> Found:
    """Return the `SUMS` by torch's operations, which leave the host free."""
    d, apart = zero_for_nan(log_p - log_q), p - q  # d of a token that both mask: 0
    small, x = d.abs() < SERIES_BELOW, d.clamp(-SERIES_BELOW, SERIES_BELOW)
    terms = torch.where(small, q * _series(x), zero_for_nan(p * d) - apart)
    return {
        "kl": terms.sum(1),
        "tv": apart.abs().sum(1) / 2,
        "harmonic_mean": zero_for_nan(p * q / (p + q)).sum(1),
    }


def _series(x: Any) -> Any:
    """Return phi(e^x - 1) of a tensor or a number by its series."""
    series = 0.0
    for coefficient in COEFFICIENTS:
        series = series * x + coefficient
    return series * x * x


_phi = numba.njit(nogil=True, cache=True)(_series)


@numba.njit(nogil=True, cache=True)
def _term(log_p: float, p: float, log_q: float, q: float) -> float:
    """Return the term q phi(p/q - 1) of KL(p||q).

    With d = log(p/q) it is p d - (p - q), and the series of phi for small d.
    """
    if p == 0:
        return q
    d = log_p - log_q
    return q * _phi(d) if abs(d) < SERIES_BELOW else p * d - (p - q)


@numba.njit(nogil=True, cache=True)
def _sum(log_p: Floats, p: Floats, log_q: Floats, q: Floats, out: Any) -> None:
    """Write the sums (3, B), in the order of `SUMS`."""
    size, vocabulary = p.shape
    for i in range(size):
        out[:, i] = 0
        for begin in range(0, vocabulary, BLOCK):
            kl = tv = harmonic_mean = 0.0
            for j in range(begin, min(begin + BLOCK, vocabulary)):
                a, b = p[i, j], q[i, j]
                kl += _term(log_p[i, j], a, log_q[i, j], b)
                tv += abs(a - b)
                if a + b > 0:
                    harmonic_mean += a * b / (a + b)
            out[0, i] += kl
            out[1, i] += tv / 2
            out[2, i] += harmonic_mean


def zero_for_nan(values: Tensor) -> Tensor:
    """Put 0 for NaN, in place: 0 times an infinity, the difference of two, 0 divided by 0."""
    return values.nan_to_num_(nan=0.0, posinf=torch.inf, neginf=-torch.inf)

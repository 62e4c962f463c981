"""Target against drafter at many steps: analysis.acceptance.divergences, on the processor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from analysis.acceptance.divergences import SERIES, SERIES_BELOW
from pipeline.models.forced import Found, joined
from pipeline.models.logit_statistics import CPU_CHUNK, MASKED_LOGIT

Rows = NDArray[np.float64]

BLOCK = 256  # terms of a partial sum: rounding grows with it and with the number of partial sums
COEFFICIENTS = SERIES[::-1]
SUMS = ("kl", "reverse_kl", "tv", "hellinger", "harmonic_mean")
AT_DEPTH = ("kl", "tv", "draft_token_id", "draft_rank", "draft_log_prob", "argmax_rank")


def divergence_sums(log_p: Tensor, p: Tensor, log_q: Tensor, q: Tensor) -> Found:
    """Return the `SUMS` (B,) of two (B, V) distributions of float64, given with their logarithms.

    See analysis.acceptance.divergences.Comparison.
    """
    out = torch.empty((len(SUMS), len(p)), dtype=torch.float64)
    log_a, a, log_b, b = (one.contiguous().numpy() for one in (log_p, p, log_q, q))
    _sum(log_a, a, log_b, b, out.numpy())
    return dict(zip(SUMS, out, strict=True))


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
    """Write the sums (5, B), in the order of `SUMS`."""
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


def compare(
    target: Tensor, drafts: Sequence[Tensor], temperature: float, sampled: float | None = None
) -> Found:
    """Compare raw logits (B, V) with those of a drafter at each depth, a few rows at a time.

    Ranks are those of the raw logits; the distributions are at `temperature`. The drafter at depth
    1 is also compared by the laws of stochastic verification, there and at `sampled`, NaN for None.

    Returns:
        (B,) each: see analysis.acceptance.divergences.Comparison; and of `AT_DEPTH` (B, depths).
    """
    rows = max(1, CPU_CHUNK // target.shape[1])
    return joined(
        [
            _compare(
                target[begin : begin + rows],
                [draft[begin : begin + rows] for draft in drafts],
                temperature,
                sampled,
            )
            for begin in range(0, len(target), rows)
        ]
    )


def _compare(
    target: Tensor, drafts: Sequence[Tensor], temperature: float, sampled: float | None
) -> Found:
    # argmax leaves open which of equal logits it takes; of booleans, the first is wanted
    first = _first(target == target.amax(1, keepdim=True))[:, None]
    below = _below(target)
    log_p, p = _distribution(below, temperature)
    pair: Found = {}
    depths = []
    for draft in drafts:
        token, rank = _drafted(target, draft)
        below_q = _below(draft)
        log_q, q = _distribution(below_q, temperature)
        found = divergence_sums(log_p, p, log_q, q) | {
            "draft_token_id": token,
            "draft_rank": rank,
            "draft_log_prob": log_p.gather(1, token[:, None])[:, 0],
            "argmax_rank": (draft >= draft.gather(1, first)).sum(1),
        }
        depths.append(found)
        if pair:
            continue
        # log(p/q) has one order at all temperatures: the two largest logits and T do not change it
        order = _decreasing(_numbers(below - below_q))
        pair = found | {
            "draft_entropy": -torch.linalg.vecdot(q, log_q.clamp_(min=MASKED_LOGIT)),
            "erss_acceptance": _erss_acceptance(p, q, order),
            **_sampled((below, below_q), order, token, sampled),
        }
    return pair | {f"depth_{name}": torch.stack([d[name] for d in depths], 1) for name in AT_DEPTH}


def _sampled(
    below: tuple[Tensor, Tensor], order: Tensor, token: Tensor, temperature: float | None
) -> Found:
    """Return the acceptance laws of stochastic verification at a temperature; NaN for None."""
    names = ("kl", "tv", "erss_acceptance", "harmonic_mean", "draft_prob")
    if temperature is None:
        unknown = torch.full((len(token),), torch.nan, dtype=torch.float64, device=token.device)
        return {f"sampled_{name}": unknown for name in names}
    (log_p, p), (log_q, q) = (_distribution(z, temperature) for z in below)
    found = divergence_sums(log_p, p, log_q, q)
    found["erss_acceptance"] = _erss_acceptance(p, q, order)
    found["draft_prob"] = p.gather(1, token[:, None])[:, 0]
    return {f"sampled_{name}": found[name] for name in names}


def _below(logits: Tensor) -> Tensor:
    """Return how far logits lie below the largest; exact, whatever its size."""
    z = logits.double()
    return z - z.amax(1, keepdim=True)


def _distribution(below: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and probabilities."""
    log_p = below / temperature
    p = log_p.exp()
    total = p.sum(1, keepdim=True)
    return log_p.sub_(total.log()), p.div_(total)


def _numbers(values: Tensor) -> Tensor:
    """Put 0 for NaN, in place: 0 times an infinity, the difference of two, 0 divided by 0."""
    return values.nan_to_num_(nan=0.0, posinf=torch.inf, neginf=-torch.inf)


def _erss_acceptance(p: Tensor, q: Tensor, order: Tensor) -> Tensor:
    """Return the acceptance of exponential races.

    `order` (B, V) holds the tokens by decreasing p/q; where the ratio ties, any order gives the
    same sums. A token without probability under p and q contributes nothing.
    """
    p, q = p.gather(1, order), q.gather(1, order)
    back = torch.zeros_like(q)
    back[:, :-1] = q[:, 1:].flip(1).cumsum(1).flip(1)
    below = p.cumsum(1).mul_(q).add_(back.mul_(p))
    return _numbers(p.mul_(q).div_(below)).sum(1)


def _decreasing(values: Tensor) -> Tensor:
    """Return the columns (B, V) of each row by decreasing value, those of equal ones in any order.

    NumPy sorts several times as fast as torch.
    """
    return torch.from_numpy(np.argsort(values.neg().numpy(), axis=1))


def _drafted(target: Tensor, draft: Tensor) -> tuple[Tensor, Tensor]:
    """Return the drafter's argmax, of tied ones that of worst target rank, and this rank."""
    tied = draft == draft.amax(1, keepdim=True)
    worst = torch.where(tied, target, torch.inf).amin(1, keepdim=True)
    equal = target == worst
    token = draft.shape[1] - 1 - _first((tied & equal).flip(1))
    ids = torch.arange(draft.shape[1], device=draft.device)
    ahead = (target > worst) | (equal & (ids < token[:, None]))
    return token, 1 + ahead.sum(1)


def _first(flags: Tensor) -> Tensor:
    """Return the first true column of each row."""
    columns = torch.arange(flags.shape[1], 0, -1, device=flags.device, dtype=torch.int32)
    return flags.shape[1] - (flags * columns).amax(1).long()

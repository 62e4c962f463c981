"""Target against drafter at many steps: analysis.acceptance.divergences on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from analysis.acceptance.divergences import SERIES, SERIES_BELOW
from pipeline.models.logit_statistics import CPU_CHUNK, MASKED_LOGIT

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


CUDA_CHUNK = 1 << 23  # float64 values of one array; about ten are held at once


class PairStatistics(NamedTuple):
    """See analysis.acceptance.divergences.Comparison; (B,) each, float64 and int64."""

    kl: Tensor
    reverse_kl: Tensor
    tv: Tensor
    hellinger: Tensor
    draft_token_id: Tensor
    draft_rank: Tensor
    draft_log_prob: Tensor
    argmax_rank: Tensor
    draft_entropy: Tensor
    erss_acceptance: Tensor
    harmonic_mean: Tensor
    sampled_kl: Tensor
    sampled_tv: Tensor
    sampled_erss_acceptance: Tensor
    sampled_harmonic_mean: Tensor
    sampled_draft_prob: Tensor


class DepthStatistics(NamedTuple):
    """What is known of the drafter at each depth: (B, depths), inside this module also (B,)."""

    depth_kl: Tensor
    depth_tv: Tensor
    depth_draft_token_id: Tensor
    depth_draft_rank: Tensor
    depth_draft_log_prob: Tensor
    depth_argmax_rank: Tensor


class _Target(NamedTuple):
    """What is known of a few rows of the target, whatever they are compared with."""

    logits: Tensor  # (B, V)
    below: Tensor  # (B, V) float64
    log_p: Tensor  # (B, V)
    p: Tensor  # (B, V)
    first: Tensor  # (B, 1) the argmax; of equal logits the first

    @classmethod
    def of(cls, logits: Tensor, temperature: float) -> _Target:
        """Compute it."""
        # argmax leaves open which of equal logits it takes; of booleans, the first is wanted
        first = _first(logits == logits.amax(1, keepdim=True))[:, None]
        below = _below(logits)
        return cls(logits, below, *_distribution(below, temperature), first)


def compare(
    target: Tensor, drafts: Sequence[Tensor], temperature: float, sampled: float | None = None
) -> tuple[PairStatistics, DepthStatistics]:
    """Compare raw logits (B, V) with those of a drafter at each depth, a few rows at a time.

    Ranks are those of the raw logits; the distributions are at `temperature`. The drafter at depth
    1 is also compared by the laws of stochastic verification, there and at `sampled`, NaN for None.
    """
    rows = max(1, (CUDA_CHUNK if target.is_cuda else CPU_CHUNK) // target.shape[1])
    pairs, depths = [], []
    for begin in range(0, len(target), rows):
        known = _Target.of(target[begin : begin + rows], temperature)
        first, *deeper = (draft[begin : begin + rows] for draft in drafts)
        pair = _compare(known, first, temperature, sampled)
        at_depths = [_of(pair), *(_at_depth(known, draft, temperature) for draft in deeper)]
        pairs.append(pair)
        depths.append([torch.stack(column, 1) for column in zip(*at_depths, strict=True)])
    return (
        PairStatistics(*(torch.cat(column) for column in zip(*pairs, strict=True))),
        DepthStatistics(*(torch.cat(column) for column in zip(*depths, strict=True))),
    )


def _of(pair: PairStatistics) -> DepthStatistics:
    """Return the part of all that is known at a depth."""
    names = (name.removeprefix("depth_") for name in DepthStatistics._fields)
    return DepthStatistics(*(getattr(pair, name) for name in names))


def _at_depth(target: _Target, draft: Tensor, temperature: float) -> DepthStatistics:
    token, rank = _drafted(target.logits, draft)
    sums = divergence_sums(target.log_p, target.p, *_distribution(_below(draft), temperature))
    return DepthStatistics(
        depth_kl=sums.kl,
        depth_tv=sums.tv,
        depth_draft_token_id=token,
        depth_draft_rank=rank,
        depth_draft_log_prob=target.log_p.gather(1, token[:, None])[:, 0],
        depth_argmax_rank=(draft >= draft.gather(1, target.first)).sum(1),
    )


def _compare(
    target: _Target, draft: Tensor, temperature: float, sampled: float | None
) -> PairStatistics:
    token, rank = _drafted(target.logits, draft)
    below = target.below, _below(draft)
    # log(p/q) has one order at all temperatures: the two largest logits and T do not change it
    order = _decreasing(_numbers(below[0] - below[1]))
    log_q, q = _distribution(below[1], temperature)
    sums = divergence_sums(target.log_p, target.p, log_q, q)
    return PairStatistics(
        **sums._asdict(),
        draft_token_id=token,
        draft_rank=rank,
        draft_log_prob=target.log_p.gather(1, token[:, None])[:, 0],
        argmax_rank=(draft >= draft.gather(1, target.first)).sum(1),
        draft_entropy=-torch.linalg.vecdot(q, log_q.clamp_(min=MASKED_LOGIT)),
        erss_acceptance=_erss_acceptance(target.p, q, order),
        **_sampled(below, order, token, sampled),
    )


def _sampled(
    below: tuple[Tensor, Tensor], order: Tensor, token: Tensor, temperature: float | None
) -> dict[str, Tensor]:
    """Return the acceptance laws of stochastic verification at a temperature, by column."""
    if temperature is None:
        unknown = torch.full((len(token),), torch.nan, dtype=torch.float64, device=token.device)
        return {name: unknown for name in PairStatistics._fields if name.startswith("sampled_")}
    (log_p, p), (log_q, q) = (_distribution(z, temperature) for z in below)
    sums = divergence_sums(log_p, p, log_q, q)
    return {
        "sampled_kl": sums.kl,
        "sampled_tv": sums.tv,
        "sampled_erss_acceptance": _erss_acceptance(p, q, order),
        "sampled_harmonic_mean": sums.harmonic_mean,
        "sampled_draft_prob": p.gather(1, token[:, None])[:, 0],
    }


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

    NumPy sorts several times as fast as torch on a CPU.
    """
    if values.is_cuda:
        return values.argsort(dim=1, descending=True)
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

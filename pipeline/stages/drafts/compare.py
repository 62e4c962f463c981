"""Target against drafter at many steps: analysis.acceptance.divergences on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from analysis.acceptance.divergences import SERIES, SERIES_BELOW
from pipeline.models.logit_statistics import CPU_CHUNK, MASKED_LOGIT


class PairStatistics(NamedTuple):
    """See analysis.acceptance.divergences.Comparison; (B,) each, float64 and int64."""

    kl: Tensor
    reverse_kl: Tensor
    tv: Tensor
    draft_token_id: Tensor
    draft_rank: Tensor
    draft_log_prob: Tensor
    argmax_rank: Tensor
    draft_entropy: Tensor
    erss_acceptance: Tensor
    harmonic_mean: Tensor
    sampled_tv: Tensor
    sampled_erss_acceptance: Tensor
    sampled_harmonic_mean: Tensor
    sampled_draft_prob: Tensor


def pair_statistics(
    target: Tensor, draft: Tensor, temperature: float, sampled: float | None = None
) -> PairStatistics:
    """Compare two (B, V) tensors of raw logits, a few rows at a time.

    Ranks are those of the raw logits; the distributions are at `temperature`, and the laws of
    stochastic verification also at `sampled`, NaN for None.
    """
    rows = max(1, CPU_CHUNK // target.shape[1])
    parts = [
        _compare(target[i : i + rows], draft[i : i + rows], temperature, sampled)
        for i in range(0, len(target), rows)
    ]
    return PairStatistics(*(torch.cat(column) for column in zip(*parts, strict=True)))


class DepthStatistics(NamedTuple):
    """What is known of the drafter by depth of the draft, (B, depths); see PairStatistics."""

    depth_kl: Tensor
    depth_tv: Tensor
    depth_draft_token_id: Tensor
    depth_draft_rank: Tensor
    depth_draft_log_prob: Tensor
    depth_argmax_rank: Tensor


def by_depth(depths: Sequence[PairStatistics]) -> DepthStatistics:
    """Put together what is known at each depth, from 1."""
    return DepthStatistics(
        *(
            torch.stack([getattr(one, name.removeprefix("depth_")) for one in depths], dim=1)
            for name in DepthStatistics._fields
        )
    )


def _compare(
    target: Tensor, draft: Tensor, temperature: float, sampled: float | None
) -> PairStatistics:
    token, rank = _drafted(target, draft)
    # argmax leaves open which of several equal logits it takes; of booleans, the first is wanted
    first = _first(target == target.amax(1, keepdim=True))[:, None]
    log_p, log_q = _log_softmax(target, temperature), _log_softmax(draft, temperature)
    p, q = log_p.exp(), log_q.exp()
    d = _numbers(log_p - log_q)  # of a token that both mask: 0
    return PairStatistics(
        kl=_kl(p, q, d),
        reverse_kl=_kl(q, p, -d),
        tv=(p - q).abs().sum(1) / 2,
        draft_token_id=token,
        draft_rank=rank,
        draft_log_prob=log_p.gather(1, token[:, None])[:, 0],
        argmax_rank=(draft >= draft.gather(1, first)).sum(1),
        draft_entropy=-torch.linalg.vecdot(q, log_q.clamp(min=MASKED_LOGIT)),
        erss_acceptance=_erss(p, q, d),
        harmonic_mean=_ratio(p * q, p + q).sum(1),
        **_sampled(target, draft, token, sampled),
    )


def _sampled(
    target: Tensor, draft: Tensor, token: Tensor, temperature: float | None
) -> dict[str, Tensor]:
    """Return the acceptance laws of stochastic verification at a temperature, by column."""
    if temperature is None:
        unknown = torch.full((len(target),), torch.nan, dtype=torch.float64, device=target.device)
        return {name: unknown for name in PairStatistics._fields if name.startswith("sampled_")}
    log_p, log_q = (_log_softmax(z, temperature) for z in (target, draft))
    p, q = log_p.exp(), log_q.exp()
    d = _numbers(log_p - log_q)
    return {
        "sampled_tv": (p - q).abs().sum(1) / 2,
        "sampled_erss_acceptance": _erss(p, q, d),
        "sampled_harmonic_mean": _ratio(p * q, p + q).sum(1),
        "sampled_draft_prob": p.gather(1, token[:, None])[:, 0],
    }


def _log_softmax(logits: Tensor, temperature: float) -> Tensor:
    """Return log-probabilities; what is above the largest logit is exact, whatever its size."""
    z = logits.double()
    return torch.log_softmax(z.sub_(z.amax(1, keepdim=True)).div_(temperature), dim=1)


def _numbers(values: Tensor) -> Tensor:
    """Put 0 for NaN, in place: 0 times an infinity, and the difference of two."""
    return values.nan_to_num_(nan=0.0, posinf=torch.inf, neginf=-torch.inf)


def _kl(p: Tensor, q: Tensor, d: Tensor) -> Tensor:
    """Return sum q phi(p/q - 1) for d = log(p/q), without cancellation."""
    x = d.clamp(-SERIES_BELOW, SERIES_BELOW)
    series = torch.zeros_like(x)
    for coefficient in reversed(SERIES):
        series = series.mul_(x).add_(coefficient)
    large = _numbers(p * d) - (p - q)
    return torch.where(d.abs() < SERIES_BELOW, q * x * x * series, large).sum(1)


def _erss(p: Tensor, q: Tensor, d: Tensor) -> Tensor:
    """Return the acceptance of exponential races by sorting p/q."""
    order = d.argsort(dim=1, descending=True, stable=True)
    p, q = p.gather(1, order), q.gather(1, order)
    front = p.cumsum(1)
    back = torch.zeros_like(q)
    back[:, :-1] = q[:, 1:].flip(1).cumsum(1).flip(1)
    return _ratio(p * q, front * q + back * p).sum(1)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """Divide; a token without probability under p and q contributes nothing."""
    return torch.where(below > 0, above / below, 0.0)


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

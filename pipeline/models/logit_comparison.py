"""Compares the logits of target and drafter after the same text: KL divergence, ranks, acceptance.

Everything is over the full vocabulary, and is computed on the models' device a few rows at a time.
Ties are broken against the drafter: of its equally probable first choices, the one with the worst
target rank counts as drafted; and a token that q rates equal to the target's argmax ranks before
it. Tests compare all of it with plain formulas (tests/divergences.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pipeline.models.logit_statistics import CPU_CHUNK, StatisticsColumns, argmax, ranks_of

CUDA_CHUNK = 1 << 23  # float64 values of an array on a GPU; about ten are alive at once
AT_DEPTH = ("kl", "draft_rank", "draft_log_prob", "argmax_rank")


@torch.inference_mode()
def compare_logits(
    target: Tensor,
    drafts: Sequence[Tensor],
    temperature: float,
    sampled: float | None = None,
    completed: Tensor | None = None,
) -> StatisticsColumns:
    """Compare raw logits (B, V) with those of a drafter at each depth of a draft.

    Args:
        target: raw logits (B, V) of the target.
        drafts: raw logits (B, V) of the drafter, by depth.
        temperature: of all distributions; ranks do not depend on it.
        sampled: the temperature at which the answers were sampled; None if they are greedy.
        completed: for a drafter that lacks some tokens, logits (B, V) of a q' that extends q to the
            whole vocabulary.

    Returns:
        The columns of stage drafts about the pair: (B,) at depth 1, and (B, depths) for the names
        in `AT_DEPTH`. `full_kl` only with `completed`, `sampled_*` only with `sampled`.
    """
    rows = max(1, (CUDA_CHUNK if target.is_cuda else CPU_CHUNK) // target.shape[1])
    parts = []
    for begin in range(0, len(target), rows):
        part = slice(begin, begin + rows)
        z = target[part]
        qs = [draft[part] for draft in drafts]
        columns = _compare(z, qs, temperature, None if completed is None else completed[part])
        if sampled is not None:
            columns |= _sampled(z, qs[0], sampled)
        parts.append(columns)
    return {name: torch.cat([columns[name] for columns in parts]) for name in parts[0]}


def _compare(
    target: Tensor, drafts: Sequence[Tensor], temperature: float, completed: Tensor | None
) -> StatisticsColumns:
    first = argmax(target)[:, None]
    log_p, p = _distribution(target, temperature)
    depths = []
    for draft in drafts:
        token, rank = _drafted(target, draft)
        depths.append({
            "kl": _kl(log_p, p, draft, temperature),
            "draft_token_id": token,
            "draft_rank": rank,
            "draft_log_prob": log_p.gather(1, token[:, None])[:, 0],
            "argmax_rank": (draft >= draft.gather(1, first)).sum(1),
        })  # fmt: skip
    by_depth = {f"depth_{name}": torch.stack([d[name] for d in depths], 1) for name in AT_DEPTH}
    columns = depths[0] | by_depth
    if completed is not None:  # KL(p||q') if q and q' have the same first choice, else inf
        token = columns["draft_token_id"][:, None]
        first = completed.gather(1, token)[:, 0] >= completed.amax(1)
        kl = _kl(log_p, p, completed, temperature)
        columns["full_kl"] = torch.where(first, kl, torch.inf)
    return columns


def _distribution(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    z = logits.to(torch.float64, copy=True)
    log_p = z.sub_(z.amax(1, keepdim=True)).div_(temperature)  # exact for logits of any size
    p = log_p.exp()
    total = p.sum(1, keepdim=True)
    return log_p.sub_(total.log()), p.div_(total)


def _kl(log_p: Tensor, p: Tensor, draft: Tensor, temperature: float) -> Tensor:
    """Return KL(p||q) (B,), in nats: the sum of p (d + e^-d - 1) with d = log(p/q).

    No term is negative, so little cancels if p and q nearly agree: rounding errors are relative to
    p |d|, and p = q gives exactly 0.
    """
    missing = ((draft == -torch.inf) & (p > 0)).any(1)
    if bool(missing.all()):  # as for most heads with a reduced vocabulary
        return torch.full_like(p[:, 0], torch.inf)
    log_q, q = _distribution(draft, temperature)
    d = _zero_for_nan(log_q.sub_(log_p).neg_())  # a token that both mask counts 0
    apart = torch.where(d.abs() < 1, torch.expm1(-d).mul_(p), q.sub_(p))
    return _zero_for_nan(d.mul_(p)).add_(apart).sum(1).clamp_(min=0)


def _sampled(target: Tensor, draft: Tensor, temperature: float) -> StatisticsColumns:
    """Return the total variation, and the acceptance rate of Gumbel coupling with a lower bound.

    An exponential race with shared noise has the same winner under p and q with probability
    sum_i 1 / sum_j max(p_j / p_i, q_j / q_i) (arXiv 2504.15475, Lemma C.2). With tokens sorted by
    decreasing p/q the maximum is p_j / p_i for j up to i and q_j / q_i after it, so two cumulative
    sums give it: of p from the front, of q from the back. The lower bound is sum p q / (p + q),
    equation (10) and Lemma C.1.
    """
    (log_p, p), (log_q, q) = (_distribution(z, temperature) for z in (target, draft))
    columns = {
        "sampled_tv": (p - q).abs().sum(1) / 2,
        "sampled_harmonic_mean": _zero_for_nan(p * q / (p + q)).sum(1),
    }
    order = _decreasing(_zero_for_nan(log_p - log_q))  # tied ratios in any order
    p = p.gather(1, order)
    q = q.gather(1, order)
    after = torch.zeros_like(q)
    after[:, :-1] = q[:, 1:].flip(1).cumsum(1).flip(1)
    below = p.cumsum(1).mul_(q).add_(after.mul_(p))
    # a token without probability under p and q contributes nothing
    columns["sampled_erss_acceptance"] = _zero_for_nan(p.mul_(q).div_(below)).sum(1)
    return columns


def _decreasing(values: Tensor) -> Tensor:
    """Return the indices that sort each row in decreasing order; on a CPU NumPy is faster."""
    if values.is_cuda:
        return values.argsort(dim=1, descending=True)
    return torch.from_numpy(np.argsort(values.neg().numpy(), axis=1))


def _zero_for_nan(values: Tensor) -> Tensor:
    """Replace NaN by 0, in place: the result of 0 * inf, inf - inf or 0 / 0."""
    return values.nan_to_num_(nan=0.0, posinf=torch.inf, neginf=-torch.inf)


def _drafted(target: Tensor, draft: Tensor) -> tuple[Tensor, Tensor]:
    """Return the drafter's argmax and its target rank; of tied tokens, the one ranked worst."""
    tied = draft == draft.amax(1, keepdim=True)
    worst = torch.where(tied, target, torch.inf).amin(1, keepdim=True)
    token = draft.shape[1] - 1 - argmax((tied & (target == worst)).flip(1).float())
    return token, ranks_of(token, target)

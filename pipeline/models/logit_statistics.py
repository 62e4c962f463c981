"""Statistics of logits, as they are stored: the top K, log-sum-exp, tail mass and entropy."""

from __future__ import annotations

import torch
from torch import Tensor

CPU_CHUNK = 1 << 18  # float64 values converted at once: 2 MB, which fit a processor's cache
CUDA_VALUES = 1 << 26  # the same on a GPU: 512 MB are cheaper there than many small kernels
MASKED_LOGIT = -1e300  # stands for -inf: its exp is 0, and 0 times it is 0

STATISTICS = ("top_surprisal", "log_tail", "entropy")
StatisticsColumns = dict[str, Tensor]  # by column: (N, ...) or (B, n, ...)


def logit_statistics(logits: Tensor, k: int, temperature: float = 1.0) -> StatisticsColumns:
    """Return statistics of `logits` (B, V), by column; raw logits, the rest in nats.

    All sums are relative to the largest logit m, in float64, a few rows at a time: with
    e_i = exp((z_i - m) / T) and d the sum of all e_i but the first, -log p0 is log1p(d), and the
    entropy is log1p(d) + sum e_i (m - z_i) / T / (1 + d), a sum of non-negative terms. The sum over
    the tail is relative to its own largest logit, so that it neither cancels nor underflows. A
    logit of -inf is a masked token, with probability 0. The entropy is NaN if a row has a NaN, a
    +inf, or only masked tokens.

    Returns:
        top_ids: (B, K) int64, by decreasing logit, ties by id.
        top_logits: (B, K) float32, -inf for masked tokens.
        logsumexp: (B,) float64, for users of the data; here `top_surprisal` is used instead.
        top_surprisal: (B,) float64, -log p0.
        log_tail: (B,) float64, log of the mass outside the top K; -inf when K = V.
        entropy: (B,) float64, over the full vocabulary.
    """
    top_logits, top_ids = top_k(logits, k)
    rows = max(1, (CUDA_VALUES if logits.is_cuda else CPU_CHUNK) // logits.shape[1])
    statistics = torch.cat([
        _of_chunk(
            logits[i : i + rows], top_logits[i : i + rows], top_ids[i : i + rows], temperature
        )
        for i in range(0, len(logits), rows)
    ], dim=1)  # fmt: skip
    logsumexp = top_logits[:, 0].double() / temperature + statistics[0]
    return {
        "top_ids": top_ids,
        "top_logits": top_logits.float(),
        "logsumexp": logsumexp,
        **dict(zip(STATISTICS, statistics, strict=True)),
    }


def _of_chunk(logits: Tensor, top_logits: Tensor, top_ids: Tensor, temperature: float) -> Tensor:
    z = logits.to(torch.float64, copy=True)
    z.sub_(top_logits[:, :1]).clamp_(min=MASKED_LOGIT)
    below = z.gather(1, top_ids) / temperature
    drop = None  # largest logit of the tail, minus that of the row
    if top_ids.shape[1] < z.shape[1]:
        z.scatter_(1, top_ids, -torch.inf)
        drop = z.amax(1)
        z.sub_(drop[:, None]).scatter_(1, top_ids, MASKED_LOGIT)
    weight = below.exp()
    others = weight[:, 1:].sum(1)
    spread = (weight * below).sum(1)
    log_tail = torch.full_like(others, -torch.inf)
    if drop is not None:
        tail = torch.div(z, temperature).exp_()
        tail_sum = tail.sum(1)
        fallen = drop / temperature
        tail_spread = torch.linalg.vecdot(tail, z) / temperature + fallen * tail_sum
        others = others + fallen.exp() * tail_sum
        spread = spread + fallen.exp() * tail_spread
        log_tail = torch.where(drop > MASKED_LOGIT, fallen + tail_sum.log(), -torch.inf)
    log_sum = others.log1p()
    entropy = log_sum - spread * torch.exp(-log_sum)
    return torch.stack([log_sum, log_tail - log_sum, entropy])


def argmax(logits: Tensor) -> Tensor:
    """Return the ids (B,) of the largest logits (B, V), the first of equal ones.

    On a CPU NumPy is ten times as fast as torch, whose argmax is not vectorised.
    """
    if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(logits.numpy().argmax(-1))
    return logits.argmax(-1)


def ranks_of(tokens: Tensor, logits: Tensor) -> Tensor:
    """Return the ranks (B,), from 1, of tokens (B,) by decreasing logit (B, V), ties by id."""
    token_logits = logits.gather(1, tokens[:, None])
    before = torch.arange(logits.shape[1], device=logits.device) < tokens[:, None]
    return 1 + ((logits > token_logits) | ((logits == token_logits) & before)).sum(1)


def top_k(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest logits and their ids, by decreasing logit, ties by id.

    torch.topk does not say which of several equal logits it takes, nor in which order. Two sorts of
    the k fix the order. Where the k-th logit equals one outside, the whole row is sorted. A GPU
    would have to wait to know these rows, so there the choice is made by counting, for all rows.
    """
    if k == 1:
        ids = argmax(logits)[:, None]
        return logits.gather(1, ids), ids
    if logits.is_cuda:
        return _top_k_by_counting(logits, k)
    more = min(k + 1, logits.shape[1])
    ids = logits.topk(more, dim=1, sorted=False).indices
    ids = ids.sort(dim=1).values
    values, order = logits.gather(1, ids).sort(dim=1, descending=True, stable=True)
    ids = ids.gather(1, order)
    tied = (values[:, k - 1 : k] == values[:, k:]).any(1).nonzero()[:, 0]
    values = values[:, :k]
    ids = ids[:, :k]
    if len(tied):
        by_value = logits[tied].sort(dim=1, descending=True, stable=True)
        values[tied] = by_value.values[:, :k]
        ids[tied] = by_value.indices[:, :k]
    return values, ids


def _top_k_by_counting(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return what `top_k` does, without a branch on the logits that the host would wait for."""
    kth = logits.topk(k, dim=1, sorted=False).values.amin(1, keepdim=True)
    above = logits > kth
    equal = logits == kth
    room = k - above.sum(1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(1) <= room))
    ids = chosen.int().topk(k, dim=1, sorted=False).indices.sort(dim=1).values
    values, order = logits.gather(1, ids).sort(dim=1, descending=True, stable=True)
    return values, ids.gather(1, order)


def inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Sample tokens (n,) from distributions (n, V) with uniform numbers (n,), by the inverse CDF.

    The rows need not sum to 1. A NaN in a row gives some token, never one beyond the vocabulary.
    """
    cumulated = weights.cumsum(-1)
    total = cumulated[:, -1:].contiguous()
    indices = torch.searchsorted(cumulated, uniforms[:, None] * total, right=True)
    # the last token with positive weight: the product can be rounded up to the total
    last = torch.searchsorted(cumulated, total)
    return torch.minimum(indices, last)[:, 0].clamp(max=weights.shape[1] - 1)  # NaN: beyond all

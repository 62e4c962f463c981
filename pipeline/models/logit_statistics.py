"""What is stored of a row of logits: its top K, and statistics of the whole."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

CPU_CHUNK = 1 << 18  # float64 values held at once: 2 MB, which stay in a processor's cache
CUDA_CHUNK = 1 << 26  # the same on a GPU, where many small kernels cost more than 512 MB
MASKED_LOGIT = -1e300  # stands for -inf: its exp is 0, and 0 times it is 0


class LogitStatistics(NamedTuple):
    """Statistics of B rows of logits; logits raw, the rest in nats at the certified temperature."""

    top_ids: Tensor  # (B, K) int64, by decreasing logit, ties by id
    top_logits: Tensor  # (B, K) float32, -inf for masked tokens
    logsumexp: Tensor  # (B,) float64, for readers: probabilities follow from the next
    top_surprisal: Tensor  # (B,) float64, -log p0
    log_tail: Tensor  # (B,) float64, log of the mass outside the top K; -inf when K = V
    entropy: Tensor  # (B,) float64, over the full vocabulary


def logit_statistics(logits: Tensor, k: int, temperature: float = 1.0) -> LogitStatistics:
    """Return the statistics of `logits` (B, V).

    Everything is measured from the largest logit m, in float64, a few rows at a time:
    with e_i = exp((z_i - m) / T) and d the sum of all e_i but the first, -log p0 is log1p(d), and
    the entropy log1p(d) + sum e_i (m - z_i) / T / (1 + d), a sum of non-negative terms. The tail's
    sum is taken relative to its own largest logit: it neither cancels nor underflows. -inf is a
    masked token, of probability 0. A NaN or +inf in a row, or nothing else than masked tokens,
    makes its entropy NaN.
    """
    top_logits, top_ids = top_k(logits, k)
    rows = max(1, (CUDA_CHUNK if logits.is_cuda else CPU_CHUNK) // logits.shape[1])
    parts = [
        _of_chunk(logits[i : i + rows], top_ids[i : i + rows], temperature)
        for i in range(0, len(logits), rows)
    ]
    whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return LogitStatistics(top_ids=top_ids, top_logits=top_logits.float(), **whole)


def _of_chunk(logits: Tensor, top_ids: Tensor, temperature: float) -> dict[str, Tensor]:
    """Return the statistics (B,) float64 of whole rows, by name."""
    z = logits.double()
    largest = z.gather(1, top_ids[:, :1])
    z.sub_(largest).div_(temperature).clamp_(min=MASKED_LOGIT)
    below = z.gather(1, top_ids)
    weight = below.exp()
    others = weight[:, 1:].sum(1)
    spread = (weight * below).sum(1)
    log_tail = torch.full_like(others, -torch.inf)
    if top_ids.shape[1] < z.shape[1]:
        z.scatter_(1, top_ids, -torch.inf)
        tail_largest = z.amax(1, keepdim=True)
        z -= tail_largest
        tail = z.exp()
        tail_sum = tail.sum(1)
        z.scatter_(1, top_ids, 0.0)
        drop = tail_largest[:, 0]
        tail_spread = torch.linalg.vecdot(tail, z) + drop * tail_sum
        others = others + drop.exp() * tail_sum
        spread = spread + drop.exp() * tail_spread
        log_tail = torch.where(drop > MASKED_LOGIT, drop + tail_sum.log(), -torch.inf)
    log_sum = others.log1p()
    entropy = log_sum - spread * torch.exp(-log_sum)
    return {
        "logsumexp": largest[:, 0] / temperature + log_sum,
        "top_surprisal": log_sum,
        "log_tail": log_tail - log_sum,
        "entropy": entropy,
    }


def top_k(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest logits and their ids, by decreasing logit, ties by id.

    torch.topk leaves open which of several equal logits it takes and in which order. The order
    is fixed by two sorts of the k; the choice, in rows where the k-th logit has an equal outside,
    by sorting the whole row.
    """
    ids = logits.topk(k, dim=1, sorted=False).indices
    ids = ids.sort(dim=1).values
    values, order = logits.gather(1, ids).sort(dim=1, descending=True, stable=True)
    ids = ids.gather(1, order)
    tied = ((logits >= values[:, -1:]).sum(1) > k).nonzero()[:, 0]
    if len(tied):
        by_value = logits[tied].sort(dim=1, descending=True, stable=True)
        values[tied], ids[tied] = by_value.values[:, :k], by_value.indices[:, :k]
    return values, ids

"""Attention of the few queries of a verification to a cache, as plain matrix products.

Torch's attention on a CPU is made for long texts: it takes a copy of keys and values for every head
that shares them, and for 2 to 8 queries two to three times as long as the products themselves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "few_queries"  # among transformers' kinds of attention
TRIED = ("llama", "qwen2", "qwen3")  # types of models: attention without more than a mask
MOST_QUERIES = 16  # of all sequences together


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return what transformers' sdpa does, within rounding, in its layout (B, n, heads, d).

    Args:
        module: the layer.
        query: (B, heads, n, d).
        key: (B, groups, columns, d), heads / groups neighbouring heads share one.
        value: as `key`.
        attention_mask: (B, 1, n, columns) True where attended to, or what is added to the scores.
        scaling: of the scores.
        options: of sdpa, which reads all but 2 to MOST_QUERIES queries.
    """
    batch, heads, n, width = query.shape
    if attention_mask is None or n == 1 or batch * n > MOST_QUERIES:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
    added = attention_mask
    if added.dtype == torch.bool:  # not -inf: a row of padding sees nothing and would be NaN
        added = torch.where(added, 0.0, torch.finfo(query.dtype).min)
    groups, columns = key.shape[1:3]
    shape = (batch * groups, heads // groups * n, columns)
    added = added[:, :, None].expand(batch, groups, heads // groups, n, columns).reshape(shape)
    rows, keys, values = (t.reshape(batch * groups, -1, width) for t in (query, key, value))
    scores = torch.baddbmm(added, rows, keys.transpose(1, 2), alpha=scaling)
    seen = torch.bmm(scores.softmax(-1), values).view(batch, heads, n, width)
    return seen.transpose(1, 2).contiguous(), None


def use_few_queries(module: Any) -> None:
    """Let a float32 model attend so; one of another type or attention stays as it is."""
    config, float32 = module.config, module.dtype == torch.float32
    if float32 and config.model_type in TRIED and config._attn_implementation == "sdpa":
        config._attn_implementation = NAME


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)

"""Attention of a decoding step over the true lengths of its sequences: no padding is read.

On CUDA it is torch's varlen attention, told by `seqused_k` how many keys each sequence has in use.
Keys lie in slots of a fixed size, so no block table is needed, which only some of the kernels take.
On a CPU, and to check the kernel, it is an ordinary attention under a mask.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface
from transformers.cache_utils import DynamicLayer

from pipeline.errors import first_line
from pipeline.models import few_queries

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # a torch before 2.10
    varlen_attn = None  # type: ignore[assignment]

NAME = "true_lengths"  # among transformers' kinds of attention
ARGUMENTS = {"scale", "enable_gqa", "seqused_k"}  # which varlen_attn must have
APART = 0.03  # of attended values of magnitude 1, bfloat16


class SlotLayer(DynamicLayer):
    """Keys and values of one layer; those of each sequence begin with its slot."""

    def __init__(
        self, padded: DynamicLayer, capacity: int, padding: Tensor, column: Tensor
    ) -> None:
        """Take over what `padded` holds of left-padded sequences.

        Args:
            padded: with keys and values (B, groups, width, d).
            capacity: columns of a slot.
            padding: (B,) columns of `padded` before the first token.
            column: (B,) where the next token goes, at the time it comes; the caller changes it.
        """
        super().__init__()
        self._rows, self._column = torch.arange(len(padding), device=padding.device), column
        columns = torch.arange(capacity, device=padding.device) + padding[:, None]
        # what is not in use repeats the last token: it is never seen, but must be finite
        columns = columns.clamp(max=padded.get_seq_length() - 1)
        self.keys, self.values = (
            states.transpose(1, 2)[self._rows[:, None], columns].contiguous().transpose(1, 2)
            for states in (padded.keys, padded.values)
        )
        self.dtype, self.device, self.is_initialized = self.keys.dtype, self.keys.device, True

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Put the states (B, groups, 1, d) of one token into place; return all slots."""
        for slots, states in ((self.keys, key_states), (self.values, value_states)):
            slots[self._rows, :, self._column] = states[:, :, 0]
        return self.keys, self.values


def by_mask(query: Tensor, keys: Tensor, values: Tensor, used: Tensor, scaling: float) -> Tensor:
    """Return the attention (B, heads, d) of one query a sequence to its first `used` keys.

    Args:
        query: (B, heads, d).
        keys: (B, columns, groups, d), heads / groups neighbouring heads share one.
        values: as `keys`.
        used: (B,) int32, at least 1.
        scaling: of the scores.
    """
    seen = torch.arange(keys.shape[1], device=keys.device) < used[:, None]
    grouped = query.unflatten(1, (keys.shape[2], -1))
    found = functional.scaled_dot_product_attention(
        grouped,
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=seen[:, None, None],
        scale=scaling,
    )
    return found.flatten(1, 2)


def by_kernel(query: Tensor, keys: Tensor, values: Tensor, used: Tensor, scaling: float) -> Tensor:
    """Return what `by_mask` does, from torch's kernel; 16-bit tensors on CUDA, slots unbroken."""
    batch, columns = keys.shape[:2]
    queries_begin, slots_begin = _begins(batch, columns, keys.device)
    found = varlen_attn(
        query,
        keys.flatten(0, 1),
        values.flatten(0, 1),
        queries_begin,
        slots_begin,
        1,
        columns,
        scale=scaling,
        enable_gqa=True,
        seqused_k=used,
    )
    assert isinstance(found, Tensor)  # nothing else is asked for
    return found


@cache
def _begins(batch: int, columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return where queries and slots begin, and the last ends; kept, since graphs read them."""
    ends = torch.arange(batch + 1, dtype=torch.int32, device=device)
    return ends, ends * columns


def attend(
    module: nn.Module,  # noqa: ARG001 as transformers calls it
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    *,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, None]:
    """Return the attention (B, 1, heads, d) to the slots of `SlotLayer`, as transformers has it.

    Args:
        module: the layer.
        query: (B, heads, 1, d).
        key: (B, groups, columns, d).
        value: as `key`.
        attention_mask: (B, 1, 1, 1) int32, how many columns each sequence has in use.
        scaling: of the scores.
    """
    attention = by_kernel if query.is_cuda else by_mask
    keys, values = key.transpose(1, 2), value.transpose(1, 2)
    return attention(query[:, :, 0], keys, values, attention_mask.flatten(), scaling)[:, None], None


@contextmanager
def over_true_lengths(module: Any) -> Iterator[None]:
    """Let a transformers model attend so, to a cache of `SlotLayer`s."""
    config = module.config
    before, config._attn_implementation = config._attn_implementation, NAME
    try:
        yield
    finally:
        config._attn_implementation = before


def refusal(module: Any, device: torch.device) -> str | None:
    """Return why a transformers model can't attend so on `device`, or None."""
    config, attention = module.config, module.config._attn_implementation
    if attention not in ("sdpa", few_queries.NAME):
        return f"attention: {attention} is another arithmetic"
    if config.model_type not in few_queries.TRIED:
        return f"models of type {config.model_type} were not tried"
    if device.type != "cuda":
        return None
    if module.dtype not in (torch.bfloat16, torch.float16):
        return "torch's varlen attention takes bfloat16 and float16"
    if varlen_attn is None or not set(inspect.signature(varlen_attn).parameters) >= ARGUMENTS:
        return f"torch {torch.__version__} has no varlen attention that takes lengths of a cache"
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return kernel_refusal(heads, groups, width, module.dtype, device)


@cache
def kernel_refusal(
    heads: int, groups: int, width: int, dtype: torch.dtype, device: torch.device
) -> str | None:
    """Return why the kernel does not do here what its twin does, or None; tried once a shape."""
    columns, used = 64, torch.tensor([1, 37, 64], dtype=torch.int32, device=device)
    generator = torch.Generator().manual_seed(0)
    query, keys, values = (
        torch.randn((len(used), *shape), generator=generator).to(device, dtype)
        for shape in ((heads, width), (columns, groups, width), (columns, groups, width))
    )
    inputs = query, keys, values, used, width**-0.5
    try:
        found = by_kernel(*inputs)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError) as error:
        return f"torch's varlen attention does not run here: {first_line(error)}"
    if torch.allclose(found.float(), by_mask(*inputs).float(), rtol=0.0, atol=APART):
        return None
    return "torch's varlen attention gives something else than attention under a mask"


AttentionInterface.register(NAME, attend)

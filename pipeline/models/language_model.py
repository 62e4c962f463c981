"""A causal language model, its output projection and its key-value cache."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from pipeline.core.errors import PipelineError


@dataclass(frozen=True)
class LanguageModel:
    """A loaded model, ready to be run."""

    module: Any
    label: str
    device: torch.device
    vocab_size: int  # the length of a row of logits
    eos: tuple[int, ...]  # tokens that end an answer

    @property
    def context(self) -> float:
        """The longest sequence it was made for, in tokens; infinite if its config does not say."""
        limit = getattr(self.module.config.get_text_config(), "max_position_embeddings", None)
        return math.inf if limit is None else limit

    def check_context(self, longest: int, key: str) -> None:
        """Check that the longest prompt and its answer fit."""
        if longest > self.context:
            raise PipelineError(
                f"{self.label} takes {self.context} tokens, the longest prompt and its answer "
                f"have {longest}: lower prompts.max_tokens or {key}"
            )

    def new_cache(self, capacity: int) -> DynamicCache:
        """Return an empty key-value cache for sequences of at most `capacity` tokens."""
        return new_cache(self.module.config, capacity)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of hidden states and attention."""
        return self.module.dtype

    def forward(
        self,
        ids: Tensor,
        cache: DynamicCache,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        *,
        keep: int = 0,
        layers: Sequence[int] = (),
        features: Tensor | None = None,  # noqa: ARG002 (only heads read them)
    ) -> tuple[Tensor, Tensor | None]:
        """Run the model; return the logits after the last tokens, and hidden states of all tokens.

        Args:
            ids: (B, n) tokens that are not in the cache yet.
            cache: keys and values of the tokens before; those of `ids` are added in place.
            mask: (B, cached + n), 1 for tokens and 0 for padding; or an attention bias (B, 1, n,
                columns of the cache); None if there is no padding.
            positions: (B, n) of `ids` in their sequence, from 0; None if they follow the cache.
            keep: how many of the last tokens logits are wanted for; 0 for all.
            layers: which hidden states are wanted: those after so many layers; 0 is the embedding.
                The state after the last layer is the one before the final norm.
            features: only for heads: (B, n, d) fused hidden states of the target after the
                preceding tokens, or outputs of the head.

        Returns:
            Logits (B, keep, V) in the dtype of the projection (some models return all n), and
            hidden states (B, n, layers, d), None without `layers`; a head returns its outputs
            (B, n, d) instead.
        """
        out = self.module(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=keep,
            output_hidden_states=list(layers),
        )
        if not layers:
            return out.logits, None
        return out.logits, torch.stack([out.hidden_states[layer] for layer in layers], dim=2)

    @property
    def takes_masks(self) -> bool:
        """Whether it takes an attention bias and positions, as draft trees need."""
        full = all(type(layer) is PreallocatedLayer for layer in self.new_cache(1).layers)
        masked = self.module.config._attn_implementation in ("sdpa", "eager")
        positioned = "position_ids" in inspect.signature(self.module.forward).parameters
        return full and masked and positioned

    @property
    def has_experts(self) -> bool:
        """Whether it is a mixture of experts."""
        config = self.module.config.get_text_config()
        names = ("num_experts", "num_local_experts", "n_routed_experts")
        return any((getattr(config, name, None) or 0) > 1 for name in names)

    def check_drafts(self, key: str) -> None:
        """Check that rejected tokens can be removed from the cache of every layer."""
        layers = self.new_cache(1).layers
        if names := {type(layer).__name__ for layer in layers if not layer.is_croppable}:
            raise PipelineError(
                f"{key}: {self.label} can't decode with drafts: its layers "
                f"({', '.join(sorted(names))}) keep a state from which no token can be taken back. "
                "Take a model with attention in all layers, drafter=none, or leave decoding out: "
                "stage=acceptance, or decoding.report=false for a report without it"
            )

    def check_trees(self) -> None:
        """Check that the model can read all branches of a draft tree in one pass."""
        if not self.takes_masks:
            raise PipelineError(
                f"decoding.methods: {self.label} can't read draft trees: they need a model with "
                "full attention in all layers that takes positions, and attention: sdpa or eager. "
                "Take another model, or methods without a tree"
            )

    def check_tokens(self, ids: Sequence[int], prompt: str) -> None:
        """Check that the model has the tokens `ids` of a prompt."""
        rows = self.module.get_input_embeddings().weight.shape[0]
        if max(ids) >= rows:
            raise PipelineError(
                f"the tokenizer of {self.label} is larger than its vocabulary: {prompt} has token "
                f"{max(ids)}, the model has {rows} tokens. Take the model's own tokenizer"
            )

    @torch.inference_mode()
    def cache_bytes(self) -> int:
        """Return the bytes of keys and values of one token."""
        cache = self.new_cache(1)
        self.forward(torch.zeros((1, 1), dtype=torch.long, device=self.device), cache)
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)

    def memory_bytes(self) -> int:
        """Return the bytes of all parameters and buffers."""
        return sum(t.nbytes for t in (*self.module.parameters(), *self.module.buffers()))


class LMHead(nn.Module):
    """The output projection, whose logits may have another dtype than the model.

    The product of two 16-bit numbers is exact in float32. On CUDA tensor cores take 16-bit inputs
    and sum in float32, so a 16-bit weight gives float32 logits without a float32 copy of it.

    Attributes:
        dtype: of the logits and of the sums.
    """

    def __init__(self, projection: nn.Linear, dtype: torch.dtype) -> None:
        """Take weight and bias of `projection`, in `dtype` unless only the sums have to be."""
        super().__init__()
        weight = projection.weight.detach()
        bias = projection.bias
        narrow = weight.is_cuda and weight.dtype.itemsize == 2 and dtype == torch.float32
        if not narrow or bias is not None:
            weight = weight.to(dtype)
        self.dtype = dtype
        self.projection = linear_of(weight, None if bias is None else bias.detach().to(dtype))

    @property
    def weight(self) -> Tensor:
        """The weight (V, d)."""
        return self.projection.weight

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logits (..., V) of the hidden states (..., d)."""
        hidden = hidden.to(self.weight.dtype)
        if self.weight.dtype != self.dtype:
            rows = torch.mm(hidden.flatten(0, -2), self.weight.T, out_dtype=self.dtype)
            return rows.unflatten(0, hidden.shape[:-1])
        logits: Tensor = self.projection(hidden)
        return logits


def linear_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear layer with this weight (n, d) and bias (n,), without gradients."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear


class PreallocatedLayer(DynamicLayer):
    """Keys and values of one layer in preallocated buffers; a growing cache copies itself."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the buffers, once the shape of the states is known."""
        self._buffers = [  # if memory does not suffice, the layer must not count as initialized
            states.new_empty((*states.shape[:2], self._capacity, states.shape[3]))
            for states in (key_states, value_states)
        ]
        super().lazy_initialization(key_states, value_states)

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values (B, heads, n, d); return all that are in use."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        begin = self.get_seq_length()
        end = begin + key_states.shape[2]
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, begin:end] = states
        self.set_length(end)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep the sequences with indices `beam_idx`, in this order."""
        if self.is_initialized:
            self._buffers = [buffer[beam_idx] for buffer in self._buffers]
            self.set_length(self.get_seq_length())

    def move_columns(self, columns: Tensor, begin: int) -> None:
        """Copy `columns` (n,) to the n columns from `begin` on."""
        for buffer in self._buffers:
            buffer[:, :, begin : begin + len(columns)] = buffer.index_select(2, columns)

    def set_length(self, length: int) -> None:
        """Set how many columns are in use."""
        self.keys, self.values = (buffer[:, :, :length] for buffer in self._buffers)


def new_cache(config: Any, capacity: int) -> DynamicCache:
    """Return an empty cache for `capacity` tokens; one attention layer if `config` is None."""
    cache = DynamicCache(config=config)
    cache.layers = [
        PreallocatedLayer(capacity) if type(layer) is DynamicLayer else layer
        for layer in cache.layers or [DynamicLayer()]
    ]
    return cache

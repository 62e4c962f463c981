"""The key-value caches of models: their kinds, and the operations that each supports."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicIndexedLayer, DynamicLayer, DynamicSlidingWindowLayer

Cache = DynamicCache  # of a model, all layers


class PreallocatedLayer(DynamicLayer):
    """Keys and values of one layer in buffers of full length: a growing cache copies itself."""

    def __init__(self, capacity: int) -> None:
        """Make room for `capacity` tokens a sequence, when the first ones come."""
        super().__init__()
        self._capacity = capacity

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the buffers, whose shape is known only now."""
        super().lazy_initialization(key_states, value_states)
        self._buffers = [
            states.new_empty((*states.shape[:2], self._capacity, states.shape[3]))
            for states in (key_states, value_states)
        ]

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Append the states (B, heads, n, d); return all that are in use."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        begin = self.get_seq_length()
        end = begin + key_states.shape[2]
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, begin:end] = states
        self._show(end)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep only the sequences `beam_idx`, indices in their new order."""
        if self.is_initialized:
            self._buffers = [buffer[beam_idx] for buffer in self._buffers]
            self._show(self.get_seq_length())

    def _show(self, length: int) -> None:
        self.keys, self.values = (buffer[:, :, :length] for buffer in self._buffers)


# layers that can forget their last tokens; any other kind keeps a state that holds all tokens
CROPPABLE = (PreallocatedLayer, DynamicLayer, DynamicSlidingWindowLayer, DynamicIndexedLayer)


def new_cache(module: Any, capacity: int) -> DynamicCache:
    """Return an empty cache of a transformers model for sequences of at most `capacity` tokens."""
    cache = DynamicCache(config=module.config)
    cache.layers = [
        PreallocatedLayer(capacity) if type(layer) is DynamicLayer else layer
        for layer in cache.layers
    ]
    return cache


def one_layer(capacity: int) -> DynamicCache:
    """Return an empty cache of one layer of full attention."""
    cache = DynamicCache()
    cache.layers = [PreallocatedLayer(capacity)]
    return cache


def cache_refusal(kind: type) -> str | None:
    """Return why transformers models of class `kind` can't be run a token at a time, or None.

    A model that takes no `past_key_values` swallows them silently, and reads every token as if
    nothing came before it.
    """
    if "past_key_values" in inspect.signature(kind.forward).parameters:  # type: ignore[attr-defined]
        return None
    return f"{kind.__name__} takes no key-value cache (past_key_values)"


def draft_refusal(module: Any) -> str | None:
    """Return why drafted tokens of a transformers model can't be taken back, or None."""
    kinds = {type(layer) for layer in new_cache(module, 1).layers} - set(CROPPABLE)
    if not kinds:
        return None
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    return f"its layers ({names}) keep a state from which no token can be taken back"

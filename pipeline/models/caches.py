"""The key-value caches of models, with room for a whole answer from the start."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

Cache = DynamicCache  # of a model, all layers


class PreallocatedLayer(DynamicLayer):
    """Keys and values of one layer in buffers of full length: a growing cache copies itself."""

    def __init__(self, capacity: int) -> None:
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


def new_cache(config: Any, capacity: int) -> DynamicCache:
    """Return an empty cache for `capacity` tokens; a `config` of None is one layer of attention."""
    cache = DynamicCache(config=config)
    cache.layers = [
        PreallocatedLayer(capacity) if type(layer) is DynamicLayer else layer
        for layer in cache.layers or [DynamicLayer()]
    ]
    return cache

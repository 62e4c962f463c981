"""A model and its key-value cache: texts are appended to, and rolled back.

One class serves a single text and left-padded batches, a language model and an EAGLE-3 head.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from pipeline.models.devices import to_device
from pipeline.models.padding import padded_positions
from pipeline.models.recorded_passes import MAX_TOKENS, Model, acquire_recorder, release_recorder

TreePass = Callable[[int], tuple[Tensor, Tensor]]  # cached columns -> mask, positions: `tree_pass`


def tree_pass(seen: Tensor, offsets: Tensor, dtype: torch.dtype) -> TreePass:
    """Return a function that gives the mask and positions of a pass over nodes of a draft tree.

    The pass reads the last n of m nodes. The other m - n are in the cache already, after the text,
    which every node sees. The function takes the number of columns in the cache and returns the
    attention bias (1, 1, n, columns + n), 0 where a node sees a column and else the lowest number
    of the dtype, and the positions (1, n).

    Args:
        seen: (n, m) which of the m nodes each sees; the last n columns are those of the pass.
        offsets: (n,) how many tokens are between the text and each node.
        dtype: of the bias.
    """
    n, m = seen.shape
    bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    bias.masked_fill_(~seen, torch.finfo(dtype).min)

    def mask_and_positions(columns: int) -> tuple[Tensor, Tensor]:
        text = columns - (m - n)
        return pad(bias, (text, 0))[None, None], (offsets + text)[None]

    return mask_and_positions


def _prefill_segments(padding: Sequence[int], width: int) -> list[tuple[int, int]]:
    """Return the (rows, end column) of each stage of a prefill.

    A stage reads fewer rows than the next one, and so skips more than 1/16 of the B x n tokens.
    """
    parts = list[tuple[int, int]]()
    begin = 0
    count = len(padding)
    for rows in range(1, count):
        end = min(padding[rows:])
        if (count - rows) * (end - begin) * 16 > count * width:
            parts.append((rows, end))
            begin = end
    return parts


class KVSession:
    """B texts that a model has read into its cache, left-padded to equal length.

    Draft trees can be read after a single text only (B = 1).

    Attributes:
        length: how many columns of the cache are in use.
        layers: which hidden states are kept: those after so many layers.
        hidden: (B, n, ...) hidden states of the tokens read last, or a head's outputs; None if none
            are kept.
    """

    def __init__(
        self,
        model: Model,
        capacity: int,
        layers: Sequence[int] = (),
        padding: Tensor | None = None,
        *,
        rolls_back: bool = False,
    ) -> None:
        """Start with an empty cache.

        Args:
            model: a language model, or a head.
            capacity: the most columns: tokens of a text, with its padding.
            layers: see the attribute.
            padding: (B,) columns before the first token of each text; None for a single text.
            rolls_back: whether `truncate` or `commit_path` will remove tokens again.
        """
        self.model = model
        self.length = 0
        self.hidden: Tensor | None = None
        self.layers = layers
        self._capacity = capacity
        self._padding = padding
        self._rolls_back = rolls_back
        self._allocate()
        self._windows = [layer for layer in self.cache.layers if rolls_back and layer.is_sliding]
        for layer in self._windows:  # keeps states that leave the window until the next roll-back
            layer.activate_past_recording()

    def _allocate(self) -> None:
        """Allocate the cache: a recorder's buffers if passes are recorded, else one that grows."""
        single = self._padding is None and self._rolls_back  # only these share buffers
        self._recorder = acquire_recorder(self.model, self._capacity, self.layers, shared=single)
        if self._recorder is None:
            self.cache = self.model.new_cache(self._capacity)
            return
        self.cache = self._recorder.cache
        if single:
            weakref.finalize(self, release_recorder, self._recorder)

    def prefill(self, ids: Tensor, keep: int = 1) -> Tensor:
        """Read prompts (B, n); return the logits (B, keep, V) after the last `keep` tokens.

        Leading columns that hold tokens in the first few rows only are read for those rows only,
        so put the longest prompts of a batch first.
        """
        padding = self._padding
        if padding is None or not all(layer.is_croppable for layer in self.cache.layers):
            return self.append(ids, keep=keep)
        parts = [(0, 0), *_prefill_segments(padding.tolist(), ids.shape[1]), ids.shape]
        for (before, begin), (rows, end) in pairwise(parts):
            if before:  # a row that joins begins as a copy of the last one; its padding masks that
                self.keep_rows(torch.arange(rows, device=ids.device).clamp(max=before - 1))
            self._padding = padding[:rows]
            logits = self.append(ids[:rows, begin:end], keep=keep)
        return logits

    def append(
        self,
        ids: Tensor,
        tree: TreePass | None = None,
        features: Tensor | None = None,
        keep: int = 0,
    ) -> Tensor:
        """Read tokens (B, n) and return the logits (B, keep, V) after the last `keep` of them.

        Args:
            ids: the tokens.
            tree: if they are nodes of a draft tree, its `tree_pass`; None if they are a chain.
            features: (B, n, d) of a head: hidden states that it reads beside the tokens.
            keep: how many logits are wanted; 0 for all n.
        """
        count = ids.shape[1]
        nodes = None if tree is None else tree(self.length)
        if self._recorder is not None and self.length > 0 and count <= MAX_TOKENS:
            logits, self.hidden = self._recorder.run(
                ids, self.length, self._padding, nodes, features, keep
            )
        else:
            logits, self.hidden = self._pass(ids, nodes, features, keep)
        self.length += count
        if 0 < keep < logits.shape[1]:  # some models always return all
            logits = logits[:, -keep:]
        rows = self.model.vocab_size  # may be cut to the logits that target and drafter share
        return logits if logits.shape[2] == rows else logits[..., :rows]

    def _pass(
        self, ids: Tensor, nodes: tuple[Tensor, Tensor] | None, features: Tensor | None, keep: int
    ) -> tuple[Tensor, Tensor | None]:
        """Run the model without a recording; `nodes` are mask and positions of a tree."""
        self._set_cache_length()
        mask, positions = nodes or (None, None)
        if nodes is None and self._padding is not None:
            columns = torch.arange(self.length + ids.shape[1], device=ids.device)
            mask = (columns >= self._padding[:, None]).long()
            positions = padded_positions(columns[self.length :], self._padding)
        return self.model.forward(
            ids, self.cache, mask, positions, keep=keep, layers=self.layers, features=features
        )

    def _set_cache_length(self) -> None:
        """Set the length of a recorder's cache, which recorded passes do not update."""
        if self._recorder is not None and self._recorder.is_initialized:
            for layer in self._recorder.cache.layers:
                layer.set_length(self.length)

    def truncate(self, length: int) -> None:
        """Keep the first `length` columns.

        Layers with a sliding window also drop the states that they held for a roll-back.
        """
        kept = min(length, self.length)
        if self._recorder is not None:
            self.length = kept
            return
        for layer in self.cache.layers if kept < self.length else self._windows:
            layer.crop(kept - self.length)
        self.length = kept

    def commit_path(self, length: int, path: Sequence[int]) -> None:
        """Keep the first `length` columns, and of the draft after them the nodes of `path`."""
        if list(path) != list(range(len(path))):
            index = to_device([length + node for node in path], self.model.device)
            for layer in self.cache.layers:
                layer.move_columns(index, length)
        self.truncate(length + len(path))

    def hidden_after(self, path: Sequence[int]) -> Tensor | None:
        """Return `hidden` (B, 1 + p, ...) of the token before a draft and the p nodes of `path`."""
        if self.hidden is None:
            return None
        return self.hidden[:, to_device([0, *(node + 1 for node in path)], self.hidden.device)]

    def copy(self, layers: Sequence[int]) -> KVSession:
        """Return a session with a copy of the cache, which keeps hidden states after `layers`."""
        other = copy.copy(self)
        other.layers = layers
        if self._recorder is None:
            other.cache, other._windows = copy.deepcopy((self.cache, self._windows))
            return other
        other._allocate()
        assert other._recorder is not None
        other._recorder.copy_from(self._recorder, self.length)
        return other

    def keep_rows(self, rows: Tensor) -> None:
        """Keep the texts with indices `rows` (b,), in this order."""
        self._set_cache_length()
        self.cache.reorder_cache(rows)
        if self._padding is not None:
            self._padding = self._padding[rows]
        if self._recorder is not None:
            self._recorder.drop_recordings()

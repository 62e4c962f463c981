"""Passes of a model over texts that grow and are rolled back: its cache, and nothing else.

One class for a text and for left-padded batches, for a language model and for a head on it.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from pipeline.models.devices import send
from pipeline.models.recorded_passes import MOST_TOKENS, Model, give_back, recorder_of

TreePass = Callable[[int], tuple[Tensor, Tensor]]  # `tree_pass`


def tree_pass(seen: Tensor, offsets: Tensor, dtype: torch.dtype) -> TreePass:
    """Return what gives the mask and positions of a pass over the last n of a tree's m nodes.

    The other m - n are in the cache, after the text, which every node sees. Given the number of
    columns in the cache, it returns what is added to the attention scores (1, 1, n, columns + n), 0
    where a node sees a column, else the least number of the dtype; and the positions (1, n).

    Args:
        seen: (n, m) which of the m nodes each sees; the last n columns are those of the pass.
        offsets: (n,) how many tokens are between the text and each node.
        dtype: of the scores.
    """
    n, m = seen.shape
    bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    bias.masked_fill_(~seen, torch.finfo(dtype).min)

    def after(columns: int) -> tuple[Tensor, Tensor]:
        text = columns - (m - n)
        return pad(bias, (text, 0))[None, None], (offsets + text)[None]

    return after


def _prefill_segments(padding: Sequence[int], width: int) -> list[tuple[int, int]]:
    """Return (rows, end column) segments of a staged prefill; each saves 1/16 of all work."""
    parts = list[tuple[int, int]]()
    begin = 0
    count = len(padding)
    for rows in range(1, count):
        end = min(padding[rows:])
        if (count - rows) * (end - begin) * 16 > count * width:
            parts = [*parts, (rows, end)]
            begin = end
    return parts


class KVSession:
    """B texts that a model has read, equally long in columns of its cache; drafts follow one text.

    Attributes:
        length: how many columns are in use.
        layers: after how many layers hidden states are kept.
        hidden: (B, n, ...) of the tokens that were read last: hidden states, or a head's outputs;
            None where none are kept.
    """

    def __init__(
        self,
        model: Model,
        capacity: int,
        layers: Sequence[int] = (),
        padding: Tensor | None = None,
        *,
        drafts: bool = False,
    ) -> None:
        """Start empty.

        Args:
            model: a language model, or a head.
            capacity: the most tokens, padding included.
            layers: as the attribute.
            padding: (B,) columns before the first token of each text.
            drafts: whether some of what is read is taken back by `truncate` or `commit_path`.
        """
        self.model = model
        self.length = 0
        self.hidden: Tensor | None = None
        self.layers = layers
        self._capacity = capacity
        self._padding = padding
        self._drafts = drafts
        self._open()
        self._windows = [layer for layer in self.cache.layers if drafts and layer.is_sliding]
        for layer in self._windows:  # until the next roll-back they keep more than their window
            layer.activate_past_recording()

    def _open(self) -> None:
        """Take buffers for keys and values: where passes are recorded, those of a recorder."""
        single = self._padding is None and self._drafts  # others are read once, or in batches
        self._recorder = recorder_of(self.model, self._capacity, self.layers, shared=single)
        if self._recorder is None:
            self.cache = self.model.new_cache(self._capacity)
            return
        self.cache = self._recorder.cache
        if single:
            weakref.finalize(self, give_back, self._recorder)

    def prefill(self, ids: Tensor, keep: int = 1) -> Tensor:
        """Read prompts (B, n) as `append` does; return the logits after the last token only.

        Leading columns that are padding in all rows but the first few are read for those few rows
        only. So put a batch's longest prompts first.
        """
        padding = self._padding
        if padding is None or not all(layer.is_croppable for layer in self.cache.layers):
            return self.append(ids, keep=keep)
        parts = [(0, 0), *_prefill_segments(padding.tolist(), ids.shape[1]), ids.shape]
        for (before, begin), (rows, end) in pairwise(parts):
            if before:  # rows that join start as copies of the last one, which padding hides
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
        """Read tokens (B, n) and return the logits (B, keep, V) after the last of them, all with 0.

        `tree` is what they see, as nodes of a draft tree after the text, None is a chain;
        `features` (B, n, d) are read by a head beside them.
        """
        count = ids.shape[1]
        nodes = None if tree is None else tree(self.length)
        if self._recorder is not None and self.length > 0 and count <= MOST_TOKENS:
            logits, self.hidden = self._recorder.run(
                ids, self.length, self._padding, nodes, features, keep
            )
        else:
            logits, self.hidden = self._pass(ids, nodes, features, keep)
        self.length += count
        if 0 < keep < logits.shape[1]:  # a model may give all
            logits = logits[:, -keep:]
        rows = self.model.vocab_size  # a drafter may have fewer
        return logits if logits.shape[2] == rows else logits[..., :rows]

    def _pass(
        self, ids: Tensor, nodes: tuple[Tensor, Tensor] | None, features: Tensor | None, keep: int
    ) -> tuple[Tensor, Tensor | None]:
        """Run the model over tokens (B, n), which are a chain unless `nodes` are given."""
        self._show()
        mask, positions = nodes or (None, None)
        if nodes is None and self._padding is not None:
            end = self.length + ids.shape[1]
            at = torch.arange(end, device=ids.device) - self._padding[:, None]
            mask = (at >= 0).long()
            positions = at[:, self.length :].clamp(min=0)
        return self.model.forward(
            ids, self.cache, mask, positions, keep=keep, layers=self.layers, features=features
        )

    def _show(self) -> None:
        """Let the cache know how many columns are in use, which recorded passes do not tell it."""
        if self._recorder is not None and self._recorder.is_initialized:
            for layer in self._recorder.cache.layers:
                layer.show(self.length)

    def truncate(self, length: int) -> None:
        """Keep the first `length` columns.

        A layer with a sliding window also drops the states that it held for the roll-back.
        """
        kept = min(length, self.length)
        if self._recorder is not None:
            self.length = kept
            return
        for layer in self.cache.layers if kept < self.length else self._windows:
            layer.crop(kept - self.length)
        self.length = kept

    def commit_path(self, length: int, path: Sequence[int]) -> None:
        """Keep the first `length` columns and, of the ones read after them, those of `path`."""
        if list(path) != list(range(len(path))):
            index = send([length + at for at in path], self.model.device)
            for layer in self.cache.layers:
                layer.move(index, length)
        self.truncate(length + len(path))

    def hidden_after(self, path: Sequence[int]) -> Tensor | None:
        """Return those of `hidden` (B, 1 + p, ...) of the token before a draft, and of a path."""
        if self.hidden is None:
            return None
        return self.hidden[:, send([0, *(at + 1 for at in path)], self.hidden.device)]

    def copy(self, layers: Sequence[int]) -> KVSession:
        """Return the same texts with a cache of their own; hidden states follow after `layers`."""
        other = copy.copy(self)
        other.layers = layers
        if self._recorder is None:
            other.cache, other._windows = copy.deepcopy((self.cache, self._windows))
            return other
        other._open()
        assert other._recorder is not None
        other._recorder.take(self._recorder, self.length)
        return other

    def keep_rows(self, rows: Tensor) -> None:
        """Keep only the texts `rows` (b,), indices in their new order."""
        self._show()
        self.cache.reorder_cache(rows)
        if self._padding is not None:
            self._padding = self._padding[rows]
        if self._recorder is not None:
            self._recorder.forget()

"""Passes of fixed shapes, which are graphs on CUDA, and passes over nodes of draft trees.

A pass of fixed shape reads one token of each text, or as many as the longest draft has: fewer are
padded. Attention covers all columns of the cache, those not in use masked; cache, inputs and graphs
stay in their places from one text to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from pipeline.errors import PipelineError
from pipeline.execution.graphs import captured, captures
from pipeline.models.caches import UNATTENDED, Cache
from pipeline.models.heads.hidden_drafter import HiddenDrafter
from pipeline.models.language_model import LanguageModel

Model = LanguageModel | HiddenDrafter  # both have the same `read`
COLUMN_BLOCK = 256  # columns: a kept cache has whole blocks, so that few texts need a larger one


def fixed_shapes(cache: str, model: Model) -> bool:
    """Whether passes of a model have fixed shapes, by the configuration key device.cache.

    Args:
        cache: dynamic; static; or auto, which is static on CUDA where the model can have it.
        model: what decodes.

    Raises:
        PipelineError: static shapes are asked for and the model can't have them.
    """
    if cache == "dynamic" or (cache == "auto" and model.device.type != "cuda"):
        return False
    why = model.static_refusal()
    if why and cache == "static":
        raise PipelineError(
            f"device.cache=static: {model.label} can't decode so: {why}. "
            "Give device.cache=dynamic, or auto"
        )
    return not why


class TreePass(NamedTuple):
    """A pass over n nodes of a tree of which m - n were read before, all of them after a text.

    Attributes:
        bias: (n, m) added to the attention scores: 0 where a node sees one of the m, else the
            least number of the dtype. The last n columns are those of the pass.
        offsets: (n,) how many tokens are between the text and each node.
    """

    bias: Tensor
    offsets: Tensor

    def after(self, columns: int) -> tuple[Tensor, Tensor]:
        """Return what is added to all scores (1, 1, n, columns + n), and the positions (1, n).

        Args:
            columns: of the cache: the text, which every node sees, and the m - n nodes.
        """
        n, m = self.bias.shape
        text = columns - (m - n)
        return pad(self.bias, (text, 0))[None, None], (self.offsets + text)[None]


def tree_pass(seen: Tensor, offsets: Tensor, dtype: torch.dtype) -> TreePass:
    """Return the pass in which node i sees the nodes where row i of `seen` (n, m) is true."""
    bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return TreePass(bias.masked_fill_(~seen, torch.finfo(dtype).min), offsets)


class FixedPass:
    """A pass over `width` tokens of each of B texts, or fewer and padding; on CUDA a graph.

    Padding repeats the last token and sees what it sees, so it is finite where that is. It comes
    last: nothing sees its columns, and they are rolled back.

    Attributes:
        hidden: (B, width, ...) hidden states of the latest pass; None where none are kept.
    """

    def __init__(
        self, model: Model, cache: Cache, batch: int, width: int, layers: Sequence[int]
    ) -> None:
        """Make room for the inputs; on CUDA capture the pass. The cache must not be in use."""
        self.hidden: Tensor | None = None
        self._model, self._cache, self._layers = model, cache, layers
        device, dtype = model.device, model.dtype
        self._rows = torch.arange(width, device=device)
        self._columns = self._rows.clone()  # of the cache, that the pass writes
        for layer in cache.layers:
            layer.fix(self._columns)
        self._ids, self._positions = (self._rows.new_zeros((batch, width)) for _ in range(2))
        capacity = cache.layers[0].keys.shape[2]
        self._bias = torch.full((batch, 1, width, capacity), UNATTENDED, dtype=dtype, device=device)
        self._chain = tree_pass(self._rows[:, None] >= self._rows, self._rows, dtype)
        self._features: Tensor | None = None
        if model.feature_width:
            shape = (batch, width, model.feature_width)
            self._features = torch.zeros(shape, dtype=dtype, device=device)
        self._replay: Callable[[], Tensor] | None = None
        if captures(device):
            self._place(self._ids.clone(), 0, None, None)
            self._replay = captured(self._forward, model.label)

    @property
    def graph(self) -> bool:
        """Whether it is replayed from a CUDA graph."""
        return self._replay is not None

    def __call__(
        self,
        ids: Tensor,
        length: int,
        tree: TreePass | None = None,
        features: Tensor | None = None,
        padding: Tensor | None = None,
    ) -> Tensor:
        """Return the logits (B, n, rows) after n tokens (B, n) that follow `length` columns.

        They are valid until the next pass, as is `hidden`; for the others see `Texts.extend`.
        """
        for layer in self._cache.layers:
            layer.fix(self._columns)
        rows = self._place(ids, length, tree, padding)
        if self._features is not None and features is not None:
            self._features.copy_(features[:, rows])
        logits = self._forward() if self._replay is None else self._replay()
        return logits[:, : ids.shape[1]]

    def _place(
        self, ids: Tensor, length: int, tree: TreePass | None, padding: Tensor | None
    ) -> Tensor:
        """Put tokens where the pass reads; return (width,) which of them each row is."""
        n = ids.shape[1]
        if tree is None:
            tree = TreePass(self._chain.bias[:n, :n], self._chain.offsets[:n])
        bias, positions = tree.after(length)
        rows = self._rows.clamp(max=n - 1)
        self._ids.copy_(ids[:, rows])
        self._columns.copy_(self._rows + length)
        self._bias.fill_(UNATTENDED)
        self._bias[..., : length + n] = bias[:, :, rows]
        if padding is None:
            self._positions.copy_(positions[:, rows])
        else:
            self._positions.copy_((positions[:, rows] - padding[:, None]).clamp(min=0))
            column = torch.arange(self._bias.shape[3], device=padding.device)
            self._bias.masked_fill_((column < padding[:, None])[:, None, None], UNATTENDED)
        return rows

    def _forward(self) -> Tensor:
        logits, self.hidden = self._model.read(  # the captured call is the last: replays write here
            self._ids,
            self._cache,
            self._bias,
            self._positions,
            layers=self._layers,
            features=self._features,
        )
        return logits


class Passes:
    """A model's cache and passes of fixed shapes, kept from one text, or batch, to the next.

    One `Texts` at a time reads with them: a new one takes the place of the one before.
    """

    def __init__(self, model: Model, batch: int = 1, block: int = COLUMN_BLOCK) -> None:
        """Keep nothing yet; for `batch` texts, in a cache of whole blocks of columns."""
        self._model, self._batch, self._block = model, batch, block
        self._expected = self._capacity = 0
        self._cache: Cache | None = None
        self._passes: dict[tuple[int, tuple[int, ...]], FixedPass] = {}

    @property
    def graph(self) -> bool:
        """Whether there are passes, and all are replayed from CUDA graphs."""
        return bool(self._passes) and all(one.graph for one in self._passes.values())

    def expect(self, columns: int) -> None:
        """Let the first cache have room for so many tokens, drafts and padding included."""
        self._expected = columns

    def cache(self, columns: int) -> Cache:
        """Return an empty cache of so many columns or more; a larger one replaces the kept."""
        if self._cache is None or columns > self._capacity:
            self._passes.clear()
            self._cache = None  # before there is another
            self._capacity = -(-max(columns, self._expected) // self._block) * self._block
            cache = self._model.new_cache(self._capacity)
            shape = (self._batch, 1)
            token = torch.zeros(shape, dtype=torch.long, device=self._model.device)
            features = token.new_zeros((*shape, self._model.feature_width), dtype=self._model.dtype)
            self._model.read(token, cache, features=features)  # allocates the buffers
            self._cache = cache
        for layer in self._cache.layers:
            layer.grow(0)
        return self._cache

    def of_width(self, width: int, layers: Sequence[int] = ()) -> FixedPass:
        """Return the pass over so many tokens that keeps hidden states after so many layers.

        It reads and writes what `cache` returned last; a new one overwrites its first columns.
        """
        key = width, tuple(layers)
        if key not in self._passes:
            assert self._cache is not None
            made = FixedPass(self._model, self._cache, self._batch, width, layers)
            for layer in self._cache.layers:
                layer.grow(0)
            self._passes[key] = made
        return self._passes[key]

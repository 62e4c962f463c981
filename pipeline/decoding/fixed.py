"""Passes of fixed shapes over a text that grows and is rolled back; on CUDA they are graphs.

A model reads one token, or as many as its longest draft has: shorter ones are padded. Attention
covers all columns of the cache, those not in use masked. Cache, inputs and graphs stay in their
places from one answer to the next.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from typing import Generic, TypeVar

import torch
from torch import Tensor

from pipeline.decoding.sequence import CachedSequence, run
from pipeline.execution.graphs import captured, captures
from pipeline.models.caches import MASKED, Cache
from pipeline.models.language_model import LanguageModel, Model
from pipeline.models.tree_pass import TreePass, tree_pass

BLOCK = 256  # columns: a cache has whole blocks, so that few texts need a larger one


class Inputs:
    """Where a pass of a fixed shape reads its tokens, their places, and what they see.

    Padding repeats the last token and sees what it sees, so it is finite where that is. It comes
    last: nothing sees its columns, and they are rolled back.

    Attributes:
        ids: (1, width).
        positions: (1, width).
        columns: (width,) of the cache, that the pass writes.
        bias: (1, 1, width, capacity) added to the attention scores.
    """

    def __init__(self, columns: Tensor, capacity: int, dtype: torch.dtype) -> None:
        """Make room for as many tokens as `columns`, 0, 1, ..., of the `capacity` of a cache."""
        device, width = columns.device, len(columns)
        self._rows = columns.clone()
        self.columns = columns
        self.ids, self.positions = (self._rows.new_zeros((1, width)) for _ in range(2))
        self.bias = torch.full((1, 1, width, capacity), MASKED, dtype=dtype, device=device)
        self._chain = tree_pass(self._rows[:, None] >= self._rows, self._rows, dtype)

    def place(self, ids: Tensor, length: int, tree: TreePass | None) -> Tensor:
        """Put n tokens after `length` others where the pass reads.

        Returns:
            (width,) which of the n tokens each row is.
        """
        n = len(ids)
        if tree is None:
            tree = TreePass(self._chain.bias[:n, :n], self._chain.offsets[:n])
        bias, positions = tree.after(length)
        rows = self._rows.clamp(max=n - 1)
        self.ids.copy_(ids[rows])
        self.positions.copy_(positions[:, rows])
        self.columns.copy_(self._rows + length)
        self.bias.fill_(MASKED)
        self.bias[..., : length + n] = bias[:, :, rows]
        return rows


class Replayed(ABC):
    """A pass of a fixed shape: replayed from a graph, or run."""

    def __init__(self, model: Model, inputs: Inputs) -> None:
        """On CUDA capture the pass, whose own attributes are all there; no cache is in use."""
        self._inputs = inputs
        self._replay: Callable[[], Tensor] | None = None
        if captures(model.device):
            inputs.place(inputs.ids[0].clone(), 0, None)
            self._replay = captured(self._forward, model.label)

    @property
    def graph(self) -> bool:
        """Whether it is replayed from a CUDA graph."""
        return self._replay is not None

    def _run(self) -> Tensor:
        return self._forward() if self._replay is None else self._replay()

    @abstractmethod
    def _forward(self) -> Tensor:
        """Return the logits (width, rows) of what the inputs hold."""


Kept = TypeVar("Kept")
Made = TypeVar("Made", bound=Replayed)


class FixedPass(Replayed):
    """A pass over `width` tokens, or fewer and padding.

    Attributes:
        hidden: (width, layers, d) hidden states of the latest pass; None where none are kept.
    """

    def __init__(self, model: LanguageModel, cache: Cache, width: int, layers: Tokens[int]) -> None:
        """Make room for the inputs; on CUDA capture the pass. The cache must not be in use."""
        self.hidden: Tensor | None = None
        self._model, self._cache, self._layers = model, cache, layers
        columns = torch.arange(width, device=model.device)
        for layer in cache.layers:
            layer.fix(columns)
        capacity = cache.layers[0].keys.shape[2]
        super().__init__(model, Inputs(columns, capacity, model.module.dtype))

    def __call__(self, ids: Tensor, length: int, tree: TreePass | None) -> Tensor:
        """Return the logits (n, rows of the head) after n tokens that follow `length` others.

        They are valid until the next pass, as is `hidden`. For `tree` see `CachedSequence.extend`.
        """
        for layer in self._cache.layers:
            layer.fix(self._inputs.columns)
        self._inputs.place(ids, length, tree)
        return self._run()[: len(ids)]

    def _forward(self) -> Tensor:
        logits, self.hidden = run(  # the captured call is the last: replays write to its results
            self._model,
            self._inputs.ids,
            self._cache,
            self._layers,
            attention_mask=self._inputs.bias,
            position_ids=self._inputs.positions,
        )
        return logits


class Passes(ABC, Generic[Kept, Made]):
    """What one model has read and its passes, kept from one answer to the next.

    One text at a time is read with them: a new one takes the place of the one before.
    """

    def __init__(self) -> None:
        """Keep nothing yet."""
        self._expected = 0
        self._cache: Kept | None = None
        self._capacity = 0
        self._passes: dict[tuple[int, tuple[int, ...]], Made] = {}

    @property
    def graph(self) -> bool:
        """Whether there are passes, and all are replayed from CUDA graphs."""
        return bool(self._passes) and all(one.graph for one in self._passes.values())

    def expect(self, columns: int) -> None:
        """Let the first cache have room for so many tokens, drafts and padding included."""
        self._expected = columns

    def cache(self, columns: int) -> Kept:
        """Return a cache of so many columns or more; a larger one takes the place of the kept."""
        if self._cache is None or columns > self._capacity:
            self._passes.clear()
            self._cache = None  # before there is another
            self._capacity = -(-max(columns, self._expected) // BLOCK) * BLOCK
            self._cache = self._new_cache(self._capacity)
        return self._cache

    def of_width(self, width: int, layers: Tokens[int] = ()) -> Made:
        """Return the pass over so many tokens that keeps hidden states after so many layers.

        It reads and writes what `cache` returned last; a new one overwrites its first columns.
        """
        key = width, tuple(layers)
        if key not in self._passes:
            assert self._cache is not None
            self._passes[key] = self._new_pass(self._cache, width, layers)
        return self._passes[key]

    @abstractmethod
    def _new_cache(self, columns: int) -> Kept: ...

    @abstractmethod
    def _new_pass(self, cache: Kept, width: int, layers: Tokens[int]) -> Made: ...


class FixedPasses(Passes[Cache, FixedPass]):
    """Those of a language model."""

    def __init__(self, model: LanguageModel) -> None:
        """Keep nothing yet."""
        super().__init__()
        self._model = model

    def _new_cache(self, columns: int) -> Cache:
        cache = self._model.new_cache(columns)
        token = torch.zeros((1, 1), dtype=torch.long, device=self._model.device)
        run(self._model, token, cache, ())  # allocates the buffers
        return cache

    def _new_pass(self, cache: Cache, width: int, layers: Tokens[int]) -> FixedPass:
        return FixedPass(self._model, cache, width, layers)


class FixedSequence(CachedSequence):
    """As the cached sequence, with passes of fixed shapes where they are short; prompts grow it.

    Logits and hidden states are valid until the next pass.
    """

    def __init__(
        self,
        model: LanguageModel,
        capacity: int,
        layers: Tokens[int],
        longest: int,
        passes: FixedPasses,
    ) -> None:
        """Start empty, with room for `capacity` tokens, and padding.

        Args:
            model: that of `passes`.
            capacity: tokens.
            layers: as of `CachedSequence`.
            longest: the most tokens of a pass of fixed shape.
            passes: of no other sequence that is still read with.
        """
        super().__init__(model, capacity, layers, passes.cache(capacity + longest))
        self._longest = longest
        self._one, self._more = (passes.of_width(width, layers) for width in (1, longest))

    def read(self, ids: Tensor, keep: int = 1) -> Tensor:
        """Read tokens (n,) and return the logits (keep, V) after the last of them."""
        self._grow()
        return super().read(ids, keep)

    def extend(self, ids: Tensor, tree: TreePass | None = None) -> Tensor:
        """Read tokens and return the logits (n, V) after each of them; see `CachedSequence`."""
        n = len(ids)
        if n > self._longest:
            self._grow()
            return super().extend(ids, tree)
        fixed = self._one if n == 1 else self._more
        logits = fixed(ids, self.length, tree)
        self.hidden = None if fixed.hidden is None else fixed.hidden[:n]
        self.length += n
        return logits[:, : self.model.vocab_size]

    def crop(self, length: int) -> None:
        """Forget all but the first `length` tokens: later ones are masked, then overwritten."""
        self.length = min(length, self.length)

    def _grow(self) -> None:
        for layer in self.cache.layers:
            layer.grow(self.length)


def new_sequence(
    model: LanguageModel,
    capacity: int,
    layers: Tokens[int],
    longest: int,
    passes: FixedPasses | None,
) -> CachedSequence:
    """Return an empty sequence; without `passes` all its shapes grow. See `FixedSequence`."""
    if passes is None:
        return CachedSequence(model, capacity, layers)
    return FixedSequence(model, capacity, layers, longest, passes)

"""Passes of fixed shapes over a text that grows and is rolled back; on CUDA they are graphs.

A model reads one token, or as many as its longest draft has: shorter ones are padded. Attention
covers all columns of the cache, those not in use masked. Cache, inputs and graphs stay in their
places from one answer to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Tokens

import torch
from torch import Tensor

from pipeline.execution.graphs import captured, captures
from pipeline.models.caches import MASKED, Cache
from pipeline.models.language_model import LanguageModel, kind_of_cache
from pipeline.models.tree_pass import TreePass, tree_pass
from pipeline.stages.decoding.sequence import CachedSequence, run

BLOCK = 256  # columns: a cache has whole blocks, so that few texts need a larger one


class FixedPass:
    """A pass over `width` tokens, or fewer and padding: replayed from a graph, or run.

    Padding repeats the last token and sees what it sees, so it is finite where that is. It comes
    last: nothing sees its columns, and they are rolled back.

    Attributes:
        hidden: (width, layers, d) hidden states of the latest pass; None where none are kept.
    """

    def __init__(self, model: LanguageModel, cache: Cache, width: int, layers: Tokens[int]) -> None:
        """Make room for the inputs; on CUDA capture the pass. The cache must not be in use."""
        self.hidden: Tensor | None = None
        self._model, self._cache, self._layers = model, cache, layers
        device, dtype = model.device, model.module.dtype
        self._rows = torch.arange(width, device=device)
        self._columns = self._rows.clone()
        self._fix()
        self._ids, self._positions = (self._rows.new_zeros((1, width)) for _ in range(2))
        shape = (1, 1, width, cache.layers[0].keys.shape[2])
        self._bias = torch.full(shape, MASKED, dtype=dtype, device=device)
        self._chain = tree_pass(self._rows[:, None] >= self._rows, self._rows, dtype)
        self._replay: Callable[[], Tensor] | None = None
        if captures(device):
            self._place(self._ids[0].clone(), 0, None)
            self._replay = captured(self._forward, model.label)

    @property
    def graph(self) -> bool:
        """Whether it is replayed from a CUDA graph."""
        return self._replay is not None

    def __call__(self, ids: Tensor, length: int, tree: TreePass | None) -> Tensor:
        """Return the logits (n, rows of the head) after n tokens that follow `length` others.

        They are valid until the next pass, as is `hidden`. For `tree` see `CachedSequence.extend`.
        """
        self._fix()
        self._place(ids, length, tree)
        logits = self._forward() if self._replay is None else self._replay()
        return logits[: len(ids)]

    def _fix(self) -> None:
        for layer in self._cache.layers:
            layer.fix(self._columns)

    def _place(self, ids: Tensor, length: int, tree: TreePass | None) -> None:
        """Put n tokens, their positions, their columns and what they see where the pass reads."""
        n = len(ids)
        if tree is None:
            tree = TreePass(self._chain.bias[:n, :n], self._chain.offsets[:n])
        bias, positions = tree.after(length)
        rows = self._rows.clamp(max=n - 1)
        self._ids.copy_(ids[rows])
        self._positions.copy_(positions[:, rows])
        self._columns.copy_(self._rows + length)
        self._bias.fill_(MASKED)
        self._bias[..., : length + n] = bias[:, :, rows]

    def _forward(self) -> Tensor:
        logits, self.hidden = run(  # the captured call is the last: replays write to its results
            self._model,
            self._ids,
            self._cache,
            self._layers,
            attention_mask=self._bias,
            position_ids=self._positions,
        )
        return logits


class FixedPasses:
    """The cache of one model and its passes, kept from one answer to the next.

    One sequence at a time reads with them: a new one takes the place of the one before.
    """

    def __init__(self, model: LanguageModel) -> None:
        """Keep nothing yet."""
        self._model = model
        self._expected = 0
        self._cache: Cache | None = None
        self._capacity = 0
        self._passes: dict[tuple[int, tuple[int, ...]], FixedPass] = {}

    @property
    def graph(self) -> bool:
        """Whether there are passes, and all are replayed from CUDA graphs."""
        return bool(self._passes) and all(one.graph for one in self._passes.values())

    def expect(self, columns: int) -> None:
        """Let the first cache have room for so many tokens, drafts and padding included."""
        self._expected = columns

    def cache(self, columns: int) -> Cache:
        """Return a cache of so many columns or more; a larger one takes the place of the kept."""
        if self._cache is None or columns > self._capacity:
            self._passes.clear()
            self._cache = None  # before there is another
            self._capacity = -(-max(columns, self._expected) // BLOCK) * BLOCK
            cache = self._model.new_cache(self._capacity)
            token = torch.zeros((1, 1), dtype=torch.long, device=self._model.device)
            run(self._model, token, cache, ())  # allocates the buffers
            self._cache = cache
        return self._cache

    def of_width(self, width: int, layers: Tokens[int]) -> FixedPass:
        """Return the pass over so many tokens that keeps hidden states after so many layers.

        It reads and writes what `cache` returned last; a new one overwrites its first columns.
        """
        key = width, tuple(layers)
        if key not in self._passes:
            assert self._cache is not None
            self._passes[key] = FixedPass(self._model, self._cache, width, layers)
        return self._passes[key]


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


def fixed_passes(cache: str, model: LanguageModel) -> FixedPasses | None:
    """Return the passes of a model for the configuration key device.cache; None where shapes grow.

    Attention over true lengths takes one token a sequence: here varlen is static.

    Raises:
        PipelineError: static shapes are asked for and the model can't have them.
    """
    fixed = "varlen" if cache == "varlen" else "static"
    kind = kind_of_cache(cache, model, {fixed: model.static_refusal})
    return None if kind == "dynamic" else FixedPasses(model)

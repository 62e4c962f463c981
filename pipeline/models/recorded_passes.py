"""Records passes over a few tokens as CUDA graphs, since launching their kernels takes longest.

A graph replays the same kernels on the same memory. So keys and values lie in buffers of fixed
size, and a pass always attends to all their columns; a mask hides those that are not in use. A
pass is recorded once for each number of tokens. Texts that are decoded one after another share
buffers and recordings.

Tests set `FIXED_ON_CPU` to run the same passes, unrecorded, on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from pipeline.models.eagle3.drafter import Eagle3Drafter
from pipeline.models.language_model import LanguageModel, PreallocatedLayer
from pipeline.models.padding import padded_positions

MAX_TOKENS = 16  # of a recorded pass; longer ones read prompts, where launches do not matter
COLUMNS = 256  # buffers are rounded up to a multiple of it, so that texts can share them
FIXED_ON_CPU = False

Model = LanguageModel | Eagle3Drafter  # both have the same `forward`


class FixedLayer(PreallocatedLayer):
    """Keys and values of one layer. A recorded pass writes to `columns`; other passes append.

    Attributes:
        columns: (n,) where a recorded pass writes its keys and values; None outside of one.
    """

    columns: Tensor | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the buffers, zeroed: a NaN would get through the mask."""
        super().lazy_initialization(key_states, value_states)
        self.clear()

    def clear(self) -> None:
        """Zero all columns."""
        for buffer in self._buffers if self.is_initialized else ():
            buffer.zero_()

    def copy_columns(self, other: FixedLayer, length: int) -> None:
        """Copy the first `length` columns of another layer with as many rows."""
        if not self.is_initialized:
            self.lazy_initialization(*other._buffers)
        for buffer, source in zip(self._buffers, other._buffers, strict=True):
            buffer[:, :, :length] = source[:, :, :length]

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values (B, heads, n, d); a recorded pass gets back all columns."""
        if self.columns is None:
            return super().update(key_states, value_states, *args, **kwargs)
        keys, values = self._buffers
        keys.index_copy_(2, self.columns, key_states)
        values.index_copy_(2, self.columns, value_states)
        return keys, values


@dataclass(frozen=True)
class _Recording:
    """A recorded pass over n tokens: write its inputs, call `replay`, read its outputs."""

    replay: Callable[[], object]
    ids: Tensor  # (B, n)
    padding: Tensor | None  # (B,) the graph reads it, so it must not be freed before
    columns: Tensor  # (n,) where the tokens' keys and values are written
    tree: tuple[Tensor, Tensor] | None  # mask and positions; None for a chain
    features: Tensor | None  # for a head
    logits: Tensor
    hidden: Tensor | None


class PassRecorder:
    """Buffers for the keys and values of B texts, and the passes recorded over them."""

    def __init__(self, model: Model, capacity: int, layers: Sequence[int]) -> None:
        """Allocate nothing yet; the arguments are those of `KVSession`."""
        self.model = model
        self.capacity = capacity
        self.layers = layers
        # buffers made in inference mode can't be written outside of it
        self.inference = torch.is_inference_mode_enabled()
        self.cache = model.new_cache(capacity)
        self.cache.layers = [FixedLayer(capacity) for _ in self.cache.layers]
        self._all_columns = torch.arange(capacity, device=model.device)
        self._recordings: dict[tuple[int, int, bool], _Recording] = {}
        self._memory: Any = None  # a pool that the graphs share

    def run(
        self,
        ids: Tensor,
        length: int,
        padding: Tensor | None,
        tree: tuple[Tensor, Tensor] | None,
        features: Tensor | None,
        keep: int,
    ) -> tuple[Tensor, Tensor | None]:
        """Read tokens (B, n) after `length` columns; return what `LanguageModel.forward` does.

        `padding` (B,) are the columns before each text; they may change only after
        `drop_recordings`. `tree` is a mask (1, 1, n, length + n) and positions (1, n), None for a
        chain.
        """
        if tree is not None:
            mask, positions = tree
            unused = len(self._all_columns) - mask.shape[-1]
            tree = pad(mask, (0, unused), value=self._masked_score), positions
        columns = self._all_columns[length : length + ids.shape[1]]
        key = (ids.shape[1], keep, tree is not None)
        if key not in self._recordings:
            self._recordings[key] = self._record(ids, columns, padding, tree, features, keep)
        recording = self._recordings[key]
        recording.ids.copy_(ids)
        recording.columns.copy_(columns)
        if tree is not None and recording.tree is not None:
            for buffer, values in zip(recording.tree, tree, strict=True):
                buffer.copy_(values)
        if features is not None and recording.features is not None:
            recording.features.copy_(features)
        recording.replay()
        return (
            recording.logits.clone(),
            None if recording.hidden is None else recording.hidden.clone(),
        )

    @property
    def is_initialized(self) -> bool:
        """Whether the buffers are allocated, as they are once something was read."""
        return all(layer.is_initialized for layer in self.cache.layers)

    def clear(self) -> None:
        """Zero the buffers for the next text: a NaN would get through its mask."""
        for layer in self.cache.layers:
            layer.clear()

    def copy_from(self, other: PassRecorder, length: int) -> None:
        """Copy the first `length` columns of another recorder's buffers."""
        if other.is_initialized:
            for layer, source in zip(self.cache.layers, other.cache.layers, strict=True):
                layer.copy_columns(source, length)

    def drop_recordings(self) -> None:
        """Drop the recordings, because the padding and buffers that they read were replaced."""
        self._recordings.clear()
        self._memory = None

    @property
    def _masked_score(self) -> float:
        return float(torch.finfo(self.model.dtype).min)

    def _chain_inputs(self, columns: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the mask (B or 1, 1, n, capacity) and positions (B or 1, n) of a chain."""
        seen = (self._all_columns <= columns[:, None])[None, None]
        positions = columns[None]
        if padding is not None:
            seen = seen & (self._all_columns >= padding[:, None, None, None])
            positions = padded_positions(columns, padding)
        mask = torch.zeros_like(seen, dtype=self.model.dtype).masked_fill_(
            ~seen, self._masked_score
        )
        return mask, positions

    def _record(
        self,
        ids: Tensor,
        columns: Tensor,
        padding: Tensor | None,
        tree: tuple[Tensor, Tensor] | None,
        features: Tensor | None,
        keep: int,
    ) -> _Recording:
        ids = ids.clone()
        columns = columns.clone()
        if tree is not None:
            tree = tree[0].clone(), tree[1].clone()
        if features is not None:
            features = features.clone()

        def run() -> tuple[Tensor, Tensor | None]:
            mask, positions = self._chain_inputs(columns, padding) if tree is None else tree
            for layer in self.cache.layers:
                layer.columns = columns
            try:
                return self.model.forward(
                    ids,
                    self.cache,
                    mask.expand(len(ids), -1, -1, -1),
                    positions.expand(len(ids), -1),
                    keep=keep,
                    layers=self.layers,
                    features=features,
                )
            finally:
                for layer in self.cache.layers:
                    layer.columns = None

        replay, (logits, hidden) = self._capture(run)
        return _Recording(replay, ids, padding, columns, tree, features, logits, hidden)

    def _capture(
        self, run: Callable[[], tuple[Tensor, Tensor | None]]
    ) -> tuple[Callable[[], object], tuple[Tensor, Tensor | None]]:
        """Return a function that repeats a pass, and the outputs that every repeat overwrites."""
        if self.model.device.type != "cuda":
            return _repeat_uncaptured(run)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # in the first passes libraries allocate memory
            for _ in range(2):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            outputs = run()
        self._memory = graph.pool()
        return graph.replay, outputs


def _repeat_uncaptured(
    run: Callable[[], tuple[Tensor, Tensor | None]],
) -> tuple[Callable[[], object], tuple[Tensor, Tensor | None]]:
    """Return what `_capture` does, without a graph."""
    logits, hidden = run()
    logits = logits.clone()
    hidden = None if hidden is None else hidden.clone()

    def replay() -> None:
        new_logits, new_hidden = run()
        logits.copy_(new_logits)
        if hidden is not None and new_hidden is not None:
            hidden.copy_(new_hidden)

    return replay, (logits, hidden)


def acquire_recorder(
    model: Model, capacity: int, layers: Sequence[int], *, shared: bool
) -> PassRecorder | None:
    """Return a recorder for texts of at most `capacity` columns; None if passes are not recorded.

    A `shared` one may have served an earlier text of the model, and is released after this one.
    """
    if not can_record(model):
        return None
    capacity = -(-capacity // COLUMNS) * COLUMNS
    if not shared:
        return PassRecorder(model, capacity, layers)
    free = _free_recorders(model, layers, torch.is_inference_mode_enabled())
    free[:] = [recorder for recorder in free if recorder.capacity >= capacity]
    if not free:
        return PassRecorder(model, capacity, layers)
    recorder = free.pop()
    recorder.clear()
    return recorder


def release_recorder(recorder: PassRecorder) -> None:
    """Let the next text reuse a recorder, unless its buffers could not all be allocated."""
    if recorder.is_initialized:
        _free_recorders(recorder.model, recorder.layers, recorder.inference).append(recorder)


class _Pool(dict[tuple[Any, ...], list[PassRecorder]]):
    """Free recorders of a model; a copy of the model starts with none."""

    def __deepcopy__(self, _: object) -> _Pool:
        return _Pool()


def _free_recorders(model: Model, layers: Sequence[int], inference: bool) -> list[PassRecorder]:
    """Return the list of a model's free recorders, which lives as long as its weights."""
    weights = model.head if isinstance(model, Eagle3Drafter) else model.module
    pool: _Pool = weights.__dict__.setdefault("free_pass_recorders", _Pool())
    return pool.setdefault((tuple(layers), model.vocab_size, inference), [])


def can_record(model: Model) -> bool:
    """Say whether passes of a model can be recorded: on CUDA, with full attention in all layers.

    Sliding windows and the states of linear attention have no fixed columns. In a mixture of
    experts the host waits to know which tokens each expert reads, which a graph does not allow.
    """
    if model.device.type != "cuda" and not (FIXED_ON_CPU and model.device.type == "cpu"):
        return False
    return isinstance(model, Eagle3Drafter) or (model.takes_masks and not model.has_experts)

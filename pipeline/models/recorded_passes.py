"""Passes over a few tokens as CUDA graphs: on a GPU, launching kernels outweighs their work.

A graph replays the same kernels on the same memory. So keys and values lie in buffers of fixed
size, of which a pass always reads all columns; a mask hides those that hold nothing yet. Each
number of tokens is recorded once. Texts one after another share buffers and recordings.

On a CPU the same passes run unrecorded where `FIXED_ON_CPU` says so; the tests do.
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

MOST_TOKENS = 16  # of a row; longer passes read prompts, and their work outweighs their launches
COLUMNS = 256  # to a multiple of which buffers are rounded up, so that texts can share them
FIXED_ON_CPU = False

Model = LanguageModel | Eagle3Drafter  # both have the same `forward`


class FixedLayer(PreallocatedLayer):
    """Keys and values of one layer. A recorded pass writes to `columns`, any other pass appends.

    Attributes:
        columns: (n,) of the cache that the next states take; None outside recorded passes.
    """

    columns: Tensor | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the buffers; a column that is hidden may not hold NaN."""
        super().lazy_initialization(key_states, value_states)
        self.clear()

    def clear(self) -> None:
        """Let all columns hold zeros."""
        for buffer in self._buffers if self.is_initialized else ():
            buffer.zero_()

    def copy_columns(self, other: FixedLayer, length: int) -> None:
        """Copy the first `length` columns of another layer, which holds as many rows."""
        if not self.is_initialized:
            self.lazy_initialization(*other._buffers)
        for buffer, source in zip(self._buffers, other._buffers, strict=True):
            buffer[:, :, :length] = source[:, :, :length]

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the states (B, heads, n, d); return all columns of the buffers."""
        if self.columns is None:
            return super().update(key_states, value_states, *args, **kwargs)
        keys, values = self._buffers
        keys.index_copy_(2, self.columns, key_states)
        values.index_copy_(2, self.columns, value_states)
        return keys, values


@dataclass(frozen=True)
class _Recording:
    """A pass over a fixed number of tokens: fill the inputs, replay, read the outputs."""

    replay: Callable[[], object]
    ids: Tensor  # (B, n)
    padding: Tensor | None  # (B,) which a graph reads, so that it has to live as long
    columns: Tensor  # (n,) of the cache that the tokens take
    tree: tuple[Tensor, Tensor] | None  # mask and positions of a tree; None: of a chain
    features: Tensor | None  # of a head
    logits: Tensor
    hidden: Tensor | None


class PassRecorder:
    """Buffers for the keys and values of B texts, and the passes recorded over them."""

    def __init__(self, model: Model, capacity: int, layers: Sequence[int]) -> None:
        """Start empty; see `KVSession`."""
        self.model = model
        self.capacity = capacity
        self.layers = layers
        self.inference = torch.is_inference_mode_enabled()  # outside, its tensors can't be written
        self.cache = model.new_cache(capacity)
        self.cache.layers = [FixedLayer(capacity) for _ in self.cache.layers]
        self._all_columns = torch.arange(capacity, device=model.device)
        self._recordings: dict[tuple[int, int, bool], _Recording] = {}
        self._memory: Any = None  # of graphs, which share it

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

        `padding` (B,) are columns before each text, the same until `forget`; `tree` is a mask
        (1, 1, n, length + n) and positions (1, n), None for a chain.
        """
        if tree is not None:
            mask, positions = tree
            hidden_columns = len(self._all_columns) - mask.shape[-1]
            tree = pad(mask, (0, hidden_columns), value=self._least), positions
        columns = self._all_columns[length : length + ids.shape[1]]
        key = (ids.shape[1], keep, tree is not None)
        if key not in self._recordings:
            self._recordings[key] = self._record(ids, columns, padding, tree, features, keep)
        found = self._recordings[key]
        found.ids.copy_(ids)
        found.columns.copy_(columns)
        if tree is not None and found.tree is not None:
            for buffer, values in zip(found.tree, tree, strict=True):
                buffer.copy_(values)
        if features is not None and found.features is not None:
            found.features.copy_(features)
        found.replay()
        return found.logits.clone(), None if found.hidden is None else found.hidden.clone()

    @property
    def is_initialized(self) -> bool:
        """Whether anything was read, so that there are buffers."""
        return all(layer.is_initialized for layer in self.cache.layers)

    def clear(self) -> None:
        """Forget what was read: a NaN in a hidden column would spoil the next text."""
        for layer in self.cache.layers:
            layer.clear()

    def take(self, other: PassRecorder, length: int) -> None:
        """Copy the first `length` columns of another's buffers."""
        if other.is_initialized:
            for layer, source in zip(self.cache.layers, other.cache.layers, strict=True):
                layer.copy_columns(source, length)

    def forget(self) -> None:
        """Drop the recordings: they refer to texts, padding and buffers that were replaced."""
        self._recordings.clear()
        self._memory = None

    @property
    def _least(self) -> float:
        return float(torch.finfo(self.model.dtype).min)

    def _chain(self, columns: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the mask (B or 1, 1, n, capacity) and positions (B or 1, n) of a chain."""
        seen = (self._all_columns <= columns[:, None])[None, None]
        positions = columns[None]
        if padding is not None:
            seen = seen & (self._all_columns >= padding[:, None, None, None])
            positions = (columns - padding[:, None]).clamp(min=0)
        mask = torch.zeros_like(seen, dtype=self.model.dtype).masked_fill_(~seen, self._least)
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
            mask, positions = self._chain(columns, padding) if tree is None else tree
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

        replay, (logits, hidden) = self._recorded(run)
        return _Recording(replay, ids, padding, columns, tree, features, logits, hidden)

    def _recorded(
        self, run: Callable[[], tuple[Tensor, Tensor | None]]
    ) -> tuple[Callable[[], object], tuple[Tensor, Tensor | None]]:
        """Return what repeats a pass, and its outputs, which every repetition overwrites."""
        if self.model.device.type != "cuda":
            return _repeated(run)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries allocate what they need in the first passes
            for _ in range(2):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            outputs = run()
        self._memory = graph.pool()
        return graph.replay, outputs


def _repeated(
    run: Callable[[], tuple[Tensor, Tensor | None]],
) -> tuple[Callable[[], object], tuple[Tensor, Tensor | None]]:
    """Return the same as a graph does, without one."""
    logits, hidden = run()
    logits = logits.clone()
    hidden = None if hidden is None else hidden.clone()

    def replay() -> None:
        new_logits, new_hidden = run()
        logits.copy_(new_logits)
        if hidden is not None and new_hidden is not None:
            hidden.copy_(new_hidden)

    return replay, (logits, hidden)


def recorder_of(
    model: Model, capacity: int, layers: Sequence[int], *, shared: bool
) -> PassRecorder | None:
    """Return buffers for texts of at most `capacity` tokens; None where nothing is recorded.

    Those of a single text can be `shared` with texts before and after it, which may be shorter.
    """
    if not can_record(model):
        return None
    capacity = -(-capacity // COLUMNS) * COLUMNS
    if not shared:
        return PassRecorder(model, capacity, layers)
    free = _free(model, layers, torch.is_inference_mode_enabled())
    free[:] = [recorder for recorder in free if recorder.capacity >= capacity]
    if not free:
        return PassRecorder(model, capacity, layers)
    recorder = free.pop()
    recorder.clear()
    return recorder


def give_back(recorder: PassRecorder) -> None:
    """Let another text have the buffers and recordings of a single text that is gone.

    Not where memory did not suffice for all of them.
    """
    if recorder.is_initialized:
        _free(recorder.model, recorder.layers, recorder.inference).append(recorder)


class _Pool(dict[tuple[Any, ...], list[PassRecorder]]):
    """Recorders that no text uses, of one model's weights; a copy of these begins without any."""

    def __deepcopy__(self, _: object) -> _Pool:
        return _Pool()


def _free(model: Model, layers: Sequence[int], inference: bool) -> list[PassRecorder]:
    """Return the recorders of a model that no text uses; they live as long as its weights."""
    weights = model.head if isinstance(model, Eagle3Drafter) else model.module
    pool: _Pool = weights.__dict__.setdefault("free_pass_recorders", _Pool())
    return pool.setdefault((tuple(layers), model.vocab_size, inference), [])


def can_record(model: Model) -> bool:
    """Say whether passes of a model can be recorded: on CUDA, with full attention in all layers.

    Windows and states of linear attention are no columns of a buffer, and a mixture of experts
    waits for the device to know which tokens an expert reads.
    """
    if model.device.type != "cuda" and not (FIXED_ON_CPU and model.device.type == "cpu"):
        return False
    return isinstance(model, Eagle3Drafter) or (model.takes_masks and not model.has_experts)

"""A batch of prompts on a model, run a step at a time: with shapes that grow, or fixed ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from pipeline.execution.graphs import captured, captures
from pipeline.models.caches import ALIGNED, MASKED, select
from pipeline.models.language_model import LanguageModel, fixed_shapes


def pad_left(
    prompts: list[list[int]], steps: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids (B, W), a mask (B, W + steps) that covers the answer too, and lengths (B,)."""
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    width = int(lengths.max())
    ids = torch.zeros((len(prompts), width), dtype=torch.long)
    mask = torch.ones((len(prompts), width + steps), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, : width - len(prompt)] = 0
    return ids.to(device), mask.to(device), lengths.to(device)


class PaddedBatch(ABC):
    """Left-padded prompts, read by one pass; a subclass says how a step runs.

    Attributes:
        width: columns of the prompts.
    """

    def __init__(self, model: LanguageModel, prompts: list[list[int]], steps: int) -> None:
        """Lay out `prompts` (tokens) with room for `steps` more."""
        self.model = model
        self.ids, self.mask, self.lengths = pad_left(prompts, steps, model.device)
        self.width = self.ids.shape[1]
        self.capacity = -(-self.mask.shape[1] // ALIGNED) * ALIGNED
        self.cache = model.new_cache(self.capacity)

    def prefill(self) -> Tensor:
        """Read the prompts; return the logits (B, V) of the first step."""
        mask = self.mask[:, : self.width]
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        return self.model.forward(self.ids, mask, positions, self.cache)

    @property
    def graph(self) -> bool:
        """Whether steps are replayed from a CUDA graph."""
        return False

    @abstractmethod
    def step(self, token: Tensor, step: int) -> Tensor:
        """Read the tokens (B,) of step `step`; return the logits (B, V), valid until the next."""


class GrowingBatch(PaddedBatch):
    """Every step attends to one column more; sequences can leave the batch."""

    def step(self, token: Tensor, step: int) -> Tensor:
        """Read the tokens (B,) of step `step`; return the logits (B, V) of the next."""
        seen, positions = self.mask[:, : self.width + step + 1], (self.lengths + step)[:, None]
        return self.model.forward(token[:, None], seen, positions, self.cache)

    def keep(self, running: Tensor) -> None:
        """Keep only the sequences `running` (B,), a mask."""
        self.mask, self.lengths = self.mask[running], self.lengths[running]
        select(self.cache, running)


class StaticBatch(PaddedBatch):
    """Every step has the same shapes and reads its inputs from fixed places.

    Attention runs over all columns, those not in use masked. On CUDA the first step is captured as
    a graph and the others replay it: a step is then one launch instead of some hundred.
    """

    _replay: Callable[[], Tensor] | None = None

    @property
    def graph(self) -> bool:
        """Whether steps are replayed from a CUDA graph."""
        return self._replay is not None

    def prefill(self) -> Tensor:
        """Read the prompts, then fix the shapes."""
        logits = super().prefill()
        self._token = self.lengths.new_zeros((len(self.lengths), 1))
        self._position = torch.zeros_like(self._token)
        self._fix()
        return logits

    def _fix(self) -> None:
        """Fix the shapes of the cache, and of what says which of it is in use."""
        device, dtype = self.model.device, self.model.module.dtype
        self._column = torch.zeros(1, dtype=torch.long, device=device)
        self._bias = torch.full((len(self.lengths), 1, 1, self.capacity), MASKED,
                                dtype=dtype, device=device)  # fmt: skip
        self._bias[:, 0, 0, : self.width].masked_fill_(self.mask[:, : self.width].bool(), 0)
        for layer in self.cache.layers:
            layer.fix(self._column)

    def _use_column(self, step: int) -> None:
        """Let the token of step `step` be the last that is in use."""
        self._column.fill_(self.width + step)
        self._bias[..., self.width + step] = 0

    def step(self, token: Tensor, step: int) -> Tensor:
        """Read the tokens (B,) of step `step`; return the logits (B, V), valid until the next."""
        self._token[:, 0] = token
        self._position[:, 0] = self.lengths + step
        self._use_column(step)
        if step == 0 and captures(self.model.device):
            self._replay = captured(self._forward, self.model.label)
        return self._forward() if self._replay is None else self._replay()

    def _forward(self) -> Tensor:
        return self.model.forward(self._token, self._bias, self._position, self.cache)


def running_batch(cache: str, model: LanguageModel) -> type[PaddedBatch]:
    """Return how batches are run for the configuration key device.cache.

    Raises:
        PipelineError: static shapes are asked for and the model can't have them.
    """
    return StaticBatch if fixed_shapes(cache, model) else GrowingBatch

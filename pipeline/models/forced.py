"""Teacher-forced passes: prompts and answers that are given, read together a block at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

HELD = {"cpu": 1 << 25, "cuda": 1 << 27}  # logits of one model at once: 128 and 512 MB in float32
Found = dict[str, Tensor]  # what is known of rows, by column: fields (N, ...) or (B, n, ...)


@dataclass(frozen=True)
class Batch:
    """Prompts, left-padded, and their answers, right-padded: B rows of W + n tokens."""

    ids: Tensor  # (B, W + n)
    mask: Tensor  # (B, W + n), 0 left of the prompts
    positions: Tensor  # (B, W + n)
    padding: Tensor  # (B,) columns left of the prompts
    width: int  # W
    lengths: Tensor  # (B,) tokens of each answer

    @classmethod
    def make(
        cls, prompts: Sequence[list[int]], answers: Sequence[list[int]], device: torch.device
    ) -> Batch:
        """Pad prompts and answers; every prompt ends, and every answer begins, at column W."""
        width, steps = max(map(len, prompts)), max(map(len, answers))
        ids = torch.zeros((len(prompts), width + steps), dtype=torch.long)
        mask = torch.ones_like(ids)
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            ids[row, width - len(prompt) : width + len(answer)] = torch.tensor(prompt + answer)
            mask[row, : width - len(prompt)] = 0
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        lengths = torch.tensor([len(answer) for answer in answers])
        padding = width - torch.tensor([len(prompt) for prompt in prompts])
        ids, mask, positions, padding, lengths = (
            one.to(device) for one in (ids, mask, positions, padding, lengths)
        )
        return cls(ids, mask, positions, padding, width, lengths)

    def blocks(self, values: int, vocabulary: int) -> Iterator[tuple[int, int, int]]:
        """Yield the columns of each block that is read, from begin to end, and its answer steps.

        The logits of a step are those after the token before it: the first block is the prompts
        without their last token, and has none. A block has as many columns as `values` logits
        allow: it bounds what a full vocabulary takes, and a key-value cache makes all one pass.
        """
        if self.width > 1:
            yield 0, self.width - 1, 0
        length = max(1, values // (len(self.ids) * vocabulary))
        for begin in range(self.width - 1, self.ids.shape[1] - 1, length):
            end = min(begin + length, self.ids.shape[1] - 1)
            yield begin, end, end - begin


def joined(parts: Sequence[Mapping[str, Tensor]], dim: int = 0) -> Found:
    """Return the columns of all parts, one behind the other along a dimension."""
    return {name: torch.cat([part[name] for part in parts], dim) for name in parts[0]}

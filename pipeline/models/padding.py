"""Texts of different lengths in one tensor: padded on the left, so that all end together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def left_padded(texts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the tokens (B, n) of B texts, padded with token 0, and the padding (B,) of each."""
    width = max(map(len, texts))
    padding = [width - len(text) for text in texts]
    rows = [[0] * pad + list(text) for pad, text in zip(padding, texts, strict=True)]
    return torch.tensor(rows, device=device), torch.tensor(padding, device=device)


def padded_positions(columns: Tensor, padding: Tensor) -> Tensor:
    """Return the positions (B, n) in their texts of tokens in `columns` (n,); of padding, 0."""
    return (columns - padding[:, None]).clamp(min=0)

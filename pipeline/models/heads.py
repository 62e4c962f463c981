"""The final projection in a precision of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Head(nn.Module):
    """The final projection in a dtype of its own: hidden states and weight are cast to it."""

    def __init__(self, projection: nn.Linear, dtype: torch.dtype) -> None:
        """Keep a copy of the weight (and bias) of `projection` in `dtype`."""
        super().__init__()
        weight, bias = projection.weight, projection.bias
        rows, width = weight.shape
        self.projection = nn.Linear(width, rows, bias=bias is not None, device="meta")
        self.projection.weight = nn.Parameter(weight.detach().to(dtype), requires_grad=False)
        if bias is not None:
            self.projection.bias = nn.Parameter(bias.detach().to(dtype), requires_grad=False)

    @property
    def weight(self) -> Tensor:
        """The weight (V, d)."""
        return self.projection.weight

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logits (..., V) of the hidden states (..., d)."""
        logits: Tensor = self.projection(hidden.to(self.weight.dtype))
        return logits

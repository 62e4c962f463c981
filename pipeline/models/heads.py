"""The final projection in a precision of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Head(nn.Module):
    """The final projection in a dtype of its own: hidden states and weight are cast to it."""

    def __init__(self, projection: nn.Linear, dtype: torch.dtype) -> None:
        """Keep a copy of the weight (and bias) of `projection` in `dtype`."""
        super().__init__()
        self.weight = nn.Parameter(projection.weight.detach().to(dtype), requires_grad=False)
        bias = projection.bias
        self.bias = None if bias is None else nn.Parameter(bias.detach().to(dtype), False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logits (..., V) of the hidden states (..., d)."""
        return nn.functional.linear(hidden.to(self.weight.dtype), self.weight, self.bias)

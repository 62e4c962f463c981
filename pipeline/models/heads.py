"""The final projection in a precision of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Head(nn.Module):
    """The final projection in a dtype of its own: hidden states and weight are cast to it."""

    def __init__(self, projection: nn.Linear, dtype: torch.dtype) -> None:
        """Keep a copy of the weight (and bias) of `projection` in `dtype`."""
        super().__init__()
        bias = projection.bias
        self.projection = linear_of(
            projection.weight.detach().to(dtype), None if bias is None else bias.detach().to(dtype)
        )

    @property
    def weight(self) -> Tensor:
        """The weight (V, d)."""
        return self.projection.weight

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logits (..., V) of the hidden states (..., d)."""
        logits: Tensor = self.projection(hidden.to(self.weight.dtype))
        return logits


def linear_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return the linear map of a weight (n, d) and a bias (n,), which is not trained."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear

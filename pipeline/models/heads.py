"""The final projection in a precision of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Head(nn.Module):
    """The final projection with logits in a dtype of its own.

    Attributes:
        dtype: of the logits, and of the sums that give them.
    """

    def __init__(self, projection: nn.Linear, dtype: torch.dtype) -> None:
        """Keep the weight (and bias) of `projection`, in `dtype` unless it does as it is."""
        super().__init__()
        self.dtype = dtype
        weight, bias = projection.weight.detach(), projection.bias
        kept = weight.dtype if bias is None and sums_wide(weight, dtype) else dtype
        self.projection = linear_of(
            weight.to(kept), None if bias is None else bias.detach().to(kept)
        )

    @property
    def weight(self) -> Tensor:
        """The weight (V, d)."""
        return self.projection.weight

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logits (..., V) of the hidden states (..., d)."""
        hidden = hidden.to(self.weight.dtype)
        if self.weight.dtype != self.dtype:
            return wide_product(hidden, self.weight)
        logits: Tensor = self.projection(hidden)
        return logits


def sums_wide(weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether `wide_product` gives `dtype` from a weight of a narrower one at no cost: on CUDA."""
    return weight.is_cuda and weight.dtype.itemsize == 2 and dtype == torch.float32


def wide_product(hidden: Tensor, weight: Tensor) -> Tensor:
    """Return hidden (..., d) times the transpose of weight (V, d), summed and given in float32.

    A product of two numbers of 16 bits is exact in float32, so on CUDA, where tensor cores take
    both as they are, nothing is lost and no float32 copy is read. A CPU casts.
    """
    if not hidden.is_cuda:
        return functional.linear(hidden.float(), weight.float())
    rows = torch.mm(hidden.flatten(0, -2), weight.T, out_dtype=torch.float32)
    return rows.unflatten(0, hidden.shape[:-1])


def linear_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return the linear map of a weight (n, d) and a bias (n,), which is not trained."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear

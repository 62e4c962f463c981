"""Faster matrix products with few rows, for MKL on processors that are not Intel's.

A pass over a few tokens is bound by reading the weights, so it should hardly take longer than a
pass over one token. On these processors, however, x Wᵀ with two to nine rows takes up to seven
times as long as W xᵀ, which computes the same sums in another order (docs/log.md). On Intel's x Wᵀ
is no slower; on ARM and macOS torch has no MKL.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

MAX_ROWS = 9  # a draft of eight tokens and the one before it; with a few more x Wᵀ is as fast
CPUINFO = Path("/proc/cpuinfo")  # on Linux


@cache
def weight_first() -> bool:
    """Say whether W xᵀ is used for few rows on this machine: a rule, not a measurement."""
    if not torch.backends.mkl.is_available() or not CPUINFO.is_file():
        return False
    return "GenuineIntel" not in CPUINFO.read_text()


class FewRowsLinear(nn.Linear):
    """A linear layer that computes W xᵀ if its input has few rows."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the outputs (..., m) of inputs (..., d)."""
        rows = input.numel() // self.in_features
        if not 0 < rows <= MAX_ROWS:
            return super().forward(input)
        outputs = product_weight_first(self.weight, input.reshape(rows, self.in_features))
        if self.bias is not None:
            outputs = outputs + self.bias
        return outputs.view(*input.shape[:-1], self.out_features)


def product_weight_first(weight: Tensor, x: Tensor) -> Tensor:
    """Return x Wᵀ (n, m) of x (n, d) and W (m, d), computed as W xᵀ."""
    rows = len(x)
    x = x.contiguous()  # MKL is slow on a strided xᵀ
    if rows == 1:  # for a single column MKL has another function, which takes 1.5 times as long
        x = torch.cat([x, x])
    return torch.mm(weight, x.T)[:, :rows].T.contiguous()


def use_fast_products(*modules: nn.Module) -> None:
    """Make float32 linear layers on a CPU `FewRowsLinear` if this machine needs it."""
    if not weight_first():
        return
    for module in modules:
        for part in module.modules():
            if type(part) is nn.Linear and _is_float32_on_cpu(part.weight):
                part.__class__ = FewRowsLinear  # the weights stay where they are


def _is_float32_on_cpu(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32

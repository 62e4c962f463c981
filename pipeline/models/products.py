"""Products of few rows where MKL runs on a processor that is not Intel's.

A pass over a few tokens waits for the weights, so it should hardly take longer than one over a
single token. On such processors x Wᵀ of two to nine rows takes up to seven times as long as W xᵀ,
which is the same sums in another order (docs/log.md). On Intel's, x Wᵀ is no slower; on ARM and
macOS torch has no MKL.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

MOST_ROWS = 9  # of a draft of eight tokens and the one before; with a few more x Wᵀ is as fast
PROCESSORS = Path("/proc/cpuinfo")  # of Linux


@cache
def weight_first() -> bool:
    """Return whether few rows are multiplied as W xᵀ on this machine: a rule, not a timing."""
    if not torch.backends.mkl.is_available() or not PROCESSORS.is_file():
        return False
    return "GenuineIntel" not in PROCESSORS.read_text()


class FewRowsLinear(nn.Linear):
    """A linear map that multiplies few rows as W xᵀ."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the outputs (..., m) of inputs (..., d)."""
        rows = input.numel() // self.in_features
        if not 0 < rows <= MOST_ROWS:
            return super().forward(input)
        outputs = product_weight_first(self.weight, input.reshape(rows, self.in_features))
        if self.bias is not None:
            outputs = outputs + self.bias
        return outputs.view(*input.shape[:-1], self.out_features)


def product_weight_first(weight: Tensor, x: Tensor) -> Tensor:
    """Return x Wᵀ (n, m) of x (n, d) and W (m, d), computed as W xᵀ."""
    rows = len(x)
    x = x.contiguous()  # MKL is slow on a strided xᵀ
    if rows == 1:  # MKL has another function for a single column, 1.5 times as slow
        x = torch.cat([x, x])
    return torch.mm(weight, x.T)[:, :rows].T.contiguous()


def use_fast_products(*modules: nn.Module) -> None:
    """Let linear maps in float32 on a CPU multiply few rows in the way that is fast here."""
    if not weight_first():
        return
    for module in modules:
        for part in module.modules():
            if type(part) is nn.Linear and _is_float32_on_cpu(part.weight):
                part.__class__ = FewRowsLinear  # the weights stay where they are


def _is_float32_on_cpu(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32

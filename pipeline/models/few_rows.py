"""Products of a weight with the few rows of a decoding step, at the speed of the memory.

A pass over one token and a pass over four read the same weights, so on a CPU they should take
the same time; torch's linear takes twice as long for four. Here each row of the weight is read
once and multiplied with four tokens at a time while it is at hand; fewer are filled up with
zeros. Sums are taken in another order than torch's: results agree within float32 rounding. What
is chosen depends on shapes and on the kind of processor alone, never on a measurement, so that
two runs on a machine give the same bits; the number of threads does not matter either.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Matrix = NDArray[np.float32]

TOKENS = 4  # that a row of the weight is multiplied with at a time
MOST_TOKENS = 16  # beyond, torch's linear is as fast
SLAB = 64  # rows of the weight for one thread at a time; a multiple of four
REORDERED: dict[str, Any] = {"fastmath": {"reassoc", "contract", "nsz"}, "cache": True}
ZERO = np.float32(0)
THREADS: int = numba.get_num_threads()  # that numba can use at most


class FewRows(nn.Module):
    """A linear map of float32 on the CPU; the same numbers as `nn.Linear` within rounding."""

    def __init__(self, linear: nn.Linear) -> None:
        """Share the weight and bias of `linear`."""
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._numpy = linear.weight.detach().numpy()

    def forward(self, x: Tensor) -> Tensor:
        """Map x (..., in_features) to (..., out_features)."""
        tokens = x.numel() // self.in_features
        if not 0 < tokens <= MOST_TOKENS:
            return nn.functional.linear(x, self.weight, self.bias)
        filled = -tokens % TOKENS
        rows = nn.functional.pad(x.reshape(tokens, -1), (0, 0, 0, filled)).contiguous()
        out = torch.empty(tokens + filled, self.out_features)
        multiply(self._numpy, rows.numpy(), out.numpy(), torch.get_num_threads())
        made = out[:tokens].view(*x.shape[:-1], self.out_features)
        return made if self.bias is None else made + self.bias


def use_few_rows(module: nn.Module) -> None:
    """Let the linear maps of a model multiply few rows fast, where that is known to be faster.

    Nothing is changed for weights on a GPU or in another dtype than float32, or on a processor
    other than x86: Apple's have a matrix unit that only their own library uses.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return
    for name, inner in list(module.named_modules()):
        if type(inner) is nn.Linear and _usable(inner.weight):
            module.set_submodule(name, FewRows(inner))


def _usable(weight: Tensor) -> bool:
    on_cpu = weight.device.type == "cpu" and weight.dtype == torch.float32
    return on_cpu and weight.is_contiguous() and not weight.requires_grad


def multiply(weight: Matrix, x: Matrix, out: Matrix, threads: int) -> None:
    """Write x @ weight.T into `out`.

    Args:
        weight: (m, k).
        x: (n, k), n a multiple of TOKENS.
        out: (n, m).
        threads: how many may work.
    """
    one_by_one = len(x) <= TOKENS  # one stream from memory is the fastest, four spare reads
    if threads == 1:
        (_one_row if one_by_one else _four_rows)(weight, x, out, 0, len(weight))
        return
    numba.set_num_threads(min(threads, THREADS))
    (_shared_one_row if one_by_one else _shared_four_rows)(weight, x, out)


@numba.njit(nogil=True, **REORDERED)
def _one_row(weight: Matrix, x: Matrix, out: Matrix, begin: int, end: int) -> None:
    """Multiply the rows begin to end of `weight`, one at a time with four of `x`."""
    for j in range(begin, end):
        w = weight[j]
        for i in range(0, x.shape[0], 4):
            x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
            s0 = s1 = s2 = s3 = ZERO
            for k in range(w.shape[0]):
                v = w[k]
                s0 += v * x0[k]
                s1 += v * x1[k]
                s2 += v * x2[k]
                s3 += v * x3[k]
            out[i, j], out[i + 1, j], out[i + 2, j], out[i + 3, j] = s0, s1, s2, s3


@numba.njit(nogil=True, **REORDERED)
def _four_rows(weight: Matrix, x: Matrix, out: Matrix, begin: int, end: int) -> None:
    """Multiply the rows begin to end of `weight`, four at a time with four of `x`.

    Sixteen sums in registers need eight reads for sixteen products; `_one_row` needs five for four.
    """
    whole = begin + (end - begin) // 4 * 4
    for j in range(begin, whole, 4):
        w0, w1, w2, w3 = weight[j], weight[j + 1], weight[j + 2], weight[j + 3]
        for i in range(0, x.shape[0], 4):
            x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
            s00 = s01 = s02 = s03 = ZERO
            s10 = s11 = s12 = s13 = ZERO
            s20 = s21 = s22 = s23 = ZERO
            s30 = s31 = s32 = s33 = ZERO
            for k in range(w0.shape[0]):
                a0, a1, a2, a3 = w0[k], w1[k], w2[k], w3[k]
                b0, b1, b2, b3 = x0[k], x1[k], x2[k], x3[k]
                s00 += a0 * b0
                s01 += a0 * b1
                s02 += a0 * b2
                s03 += a0 * b3
                s10 += a1 * b0
                s11 += a1 * b1
                s12 += a1 * b2
                s13 += a1 * b3
                s20 += a2 * b0
                s21 += a2 * b1
                s22 += a2 * b2
                s23 += a2 * b3
                s30 += a3 * b0
                s31 += a3 * b1
                s32 += a3 * b2
                s33 += a3 * b3
            out[i + 0, j], out[i + 0, j + 1] = s00, s10
            out[i + 0, j + 2], out[i + 0, j + 3] = s20, s30
            out[i + 1, j], out[i + 1, j + 1] = s01, s11
            out[i + 1, j + 2], out[i + 1, j + 3] = s21, s31
            out[i + 2, j], out[i + 2, j + 1] = s02, s12
            out[i + 2, j + 2], out[i + 2, j + 3] = s22, s32
            out[i + 3, j], out[i + 3, j + 1] = s03, s13
            out[i + 3, j + 2], out[i + 3, j + 3] = s23, s33
    _one_row(weight, x, out, whole, end)


def _shared(tile: Callable[..., None]) -> Callable[..., None]:
    """Return `tile` with its rows shared among numba's threads."""

    def shared(weight: Matrix, x: Matrix, out: Matrix) -> None:
        rows = weight.shape[0]
        for slab in numba.prange((rows + SLAB - 1) // SLAB):
            tile(weight, x, out, slab * SLAB, min(rows, (slab + 1) * SLAB))

    compiled: Callable[..., None] = numba.njit(parallel=True)(shared)
    return compiled


_shared_one_row = _shared(_one_row)
_shared_four_rows = _shared(_four_rows)

"""Skinny matrix products: a weight times the few rows of a decoding step, at memory speed.

A pass over one token and a pass over four read the same weights, so on a CPU they should take about
the same time; torch's linear takes twice as long for four. Here each row of the weight is read from
memory once and multiplied with all tokens, up to five at a time, while it is at hand. Sums are
taken in another order than torch's: results agree within float32 rounding. What is chosen depends
on shapes and on the kind of processor alone, never on a measurement, so that two runs on a machine
give the same bits; the number of threads does not change what is done here either.

Attention of few queries to a cache is two plain products: torch's on a CPU is made for long texts,
takes a copy of keys and values for every head that shares them, and for 2 to 8 queries two to three
times as long.
"""

from __future__ import annotations

import platform
from functools import cache
from threading import Lock
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from llvmlite.binding import get_host_cpu_name
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

Matrix = NDArray[np.float32]
StoredWeights = NDArray[np.float32] | NDArray[np.uint16]  # the latter: the upper halves of float32

# Torch's linear is Intel's library. On Intel's processors it reads at the memory's speed for up to
# three tokens, on AMD's for none.
FEWEST_TOKENS = 1 if get_host_cpu_name().startswith("znver") else 4
MOST_ROWS = 24  # beyond, torch's linear is as fast
LEAST_BYTES = 2**24  # of weights; fewer stay in the cache, where torch's linear is cheaper to call
REORDERED: dict[str, Any] = {"fastmath": {"reassoc", "contract", "nsz"}, "cache": True}
NOUGHT = np.float32(0)
UNROLLED = 5  # tokens: for each number up to it a loop, whose sums stay in registers
ROWS_AT_ONCE = 64  # of the weight, which stay in the cache until all tokens are done
HALF = 16  # bits
NAME = "few_queries"  # among transformers' kinds of attention
TRIED = ("llama", "qwen2", "qwen3")  # types of models: attention without more than a mask
MOST_QUERIES = 16  # of all sequences together
_threads_of_numba = Lock()  # one thread of Python at a time: numba's own layer aborts with two
THREADS: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]  # it has at most


class SkinnyLinear(nn.Linear):
    """A linear map of float32 on the CPU; the same numbers as `nn.Linear` within rounding.

    Its weight is not changed any more.
    """

    def __init__(self, linear: nn.Linear, halves: bool = False) -> None:
        """Share the weight and bias of `linear`.

        Args:
            linear: a map of float32.
            halves: keep weights that are numbers of bfloat16 in 16 bits as well, and read these
                for few rows: half the bytes, the same products, half as much memory again.
        """
        nn.Module.__init__(self)
        self.weight, self.bias = linear.weight, linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features
        kept = upper_halves(self.weight) if halves else None
        self._read: StoredWeights = self.weight.detach().numpy() if kept is None else kept

    def forward(self, x: Tensor) -> Tensor:
        """Map x (..., in_features) to (..., out_features)."""
        tokens = x.numel() // self.in_features
        if not FEWEST_TOKENS <= tokens <= MOST_ROWS or x.dtype != torch.float32:
            return nn.functional.linear(x, self.weight, self.bias)
        rows = x.reshape(tokens, self.in_features).contiguous()
        out = torch.empty(tokens, self.out_features)
        multiply(self._read, rows.numpy(), out.numpy(), torch.get_num_threads())
        made = out.view(*x.shape[:-1], self.out_features)
        return made if self.bias is None else made + self.bias


def upper_halves(weight: Tensor) -> NDArray[np.uint16] | None:
    """Return the upper 16 bits of each number of `weight`, or None where the lower ones matter."""
    bits = weight.detach().numpy().view(np.uint32)
    upper = (bits >> HALF).astype(np.uint16)
    return upper if np.array_equal(bits, upper.astype(np.uint32) << HALF) else None


def use_skinny_matmul(module: nn.Module, halves: bool = False) -> bool:
    """Let the linear maps of a model multiply few rows fast, where that is known to be faster.

    Nothing is changed for weights on a GPU or in another dtype than float32; for a model so small
    that it stays in the processor's cache; or on a processor other than x86: Apple's have a matrix
    unit that only their own library uses.

    Args:
        module: the model.
        halves: as of `SkinnyLinear`.

    Returns:
        Whether any were changed.
    """
    maps = {
        name: inner
        for name, inner in module.named_modules()
        if type(inner) is nn.Linear and _usable(inner.weight)
    }
    small = sum(inner.weight.nbytes for inner in maps.values()) < LEAST_BYTES
    if small or platform.machine() not in ("x86_64", "AMD64"):
        return False
    for name, inner in maps.items():
        module.set_submodule(name, SkinnyLinear(inner, halves))
    return True


def _usable(weight: Tensor) -> bool:
    on_cpu = weight.device.type == "cpu" and weight.dtype == torch.float32
    return on_cpu and weight.is_contiguous() and not weight.requires_grad


def multiply(weight: StoredWeights, x: Matrix, out: Matrix, threads: int) -> None:
    """Write x @ weight.T into `out`.

    Args:
        weight: (m, k); uint16 are the upper halves of float32.
        x: (n, k).
        out: (n, m).
        threads: how many may work.
    """
    if threads > 1 and _threads_of_numba.acquire(blocking=False):
        try:
            _launch()
            numba.set_num_threads(min(threads, THREADS))
            _slabs(weight, x, out, min(threads, THREADS))
        finally:
            _threads_of_numba.release()
    else:
        _slab(weight, x, out, 0, len(weight))


@cache
def _launch() -> None:
    """Let numba start its threads, once: it would leave torch with as many as it has itself."""
    threads = torch.get_num_threads()
    numba.get_num_threads()
    torch.set_num_threads(threads)


def _read(_: Any, stored: Any) -> Any:
    """Return float32 from float32 or, as uint16, its upper half."""

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        if stored == numba.float32:
            return given[0]
        word = ir.IntType(2 * HALF)
        wide = builder.shl(builder.zext(given[0], word), ir.Constant(word, HALF))
        return builder.bitcast(wide, ir.FloatType())

    return numba.float32(stored), generate


_number: Any = intrinsic(_read)


@numba.njit(**REORDERED)
def _one(weight: StoredWeights, x: Matrix, out: Matrix, begin: int, end: int) -> None:
    for j in range(begin, end):
        s0 = NOUGHT
        for k in range(weight.shape[1]):
            s0 += _number(weight[j, k]) * x[0, k]
        out[0, j] = s0


@numba.njit(**REORDERED)
def _two(weight: StoredWeights, x: Matrix, out: Matrix, begin: int, end: int) -> None:
    for j in range(begin, end):
        s0 = s1 = NOUGHT
        for k in range(weight.shape[1]):
            w = _number(weight[j, k])
            s0 += w * x[0, k]
            s1 += w * x[1, k]
        out[0, j], out[1, j] = s0, s1


@numba.njit(**REORDERED)
def _three(weight: StoredWeights, x: Matrix, out: Matrix, begin: int, end: int) -> None:
    for j in range(begin, end):
        s0 = s1 = s2 = NOUGHT
        for k in range(weight.shape[1]):
            w = _number(weight[j, k])
            s0 += w * x[0, k]
            s1 += w * x[1, k]
            s2 += w * x[2, k]
        out[0, j], out[1, j], out[2, j] = s0, s1, s2


@numba.njit(**REORDERED)
def _four(weight: StoredWeights, x: Matrix, out: Matrix, begin: int, end: int) -> None:
    for j in range(begin, end):
        s0 = s1 = s2 = s3 = NOUGHT
        for k in range(weight.shape[1]):
            w = _number(weight[j, k])
            s0 += w * x[0, k]
            s1 += w * x[1, k]
            s2 += w * x[2, k]
            s3 += w * x[3, k]
        out[0, j], out[1, j], out[2, j], out[3, j] = s0, s1, s2, s3


@numba.njit(**REORDERED)
def _five(weight: StoredWeights, x: Matrix, out: Matrix, begin: int, end: int) -> None:
    for j in range(begin, end):
        s0 = s1 = s2 = s3 = s4 = NOUGHT
        for k in range(weight.shape[1]):
            w = _number(weight[j, k])
            s0 += w * x[0, k]
            s1 += w * x[1, k]
            s2 += w * x[2, k]
            s3 += w * x[3, k]
            s4 += w * x[4, k]
        out[0, j], out[1, j], out[2, j], out[3, j], out[4, j] = s0, s1, s2, s3, s4


@numba.njit(**REORDERED)
def _few(weight: StoredWeights, x: Matrix, out: Matrix, begin: int, end: int) -> None:
    if x.shape[0] == 1:
        _one(weight, x, out, begin, end)
    elif x.shape[0] == 2:
        _two(weight, x, out, begin, end)
    elif x.shape[0] == 3:
        _three(weight, x, out, begin, end)
    elif x.shape[0] == 4:
        _four(weight, x, out, begin, end)
    else:
        _five(weight, x, out, begin, end)


@numba.njit(nogil=True, **REORDERED)
def _slab(weight: StoredWeights, x: Matrix, out: Matrix, begin: int, end: int) -> None:
    """Multiply the rows begin to end of `weight`, one after the other: one stream from memory."""
    n = x.shape[0]
    if n <= UNROLLED:
        _few(weight, x, out, begin, end)
        return
    for j in range(begin, end, ROWS_AT_ONCE):
        to, i = min(j + ROWS_AT_ONCE, end), 0
        while n - i > UNROLLED:
            _four(weight, x[i:], out[i:], j, to)
            i += 4
        _few(weight, x[i:], out[i:], j, to)


@numba.njit(parallel=True, cache=True)
def _slabs(weight: StoredWeights, x: Matrix, out: Matrix, threads: int) -> None:
    """Multiply all rows of `weight`, an equal share of them in every one of numba's threads."""
    rows = weight.shape[0]
    for t in numba.prange(threads):
        _slab(weight, x, out, rows * t // threads, rows * (t + 1) // threads)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return attention as transformers' sdpa computes it, within rounding: (B, n, heads, d).

    Args:
        module: the layer.
        query: (B, heads, n, d).
        key: (B, groups, columns, d), heads / groups neighbouring heads share one.
        value: as `key`.
        attention_mask: (B, 1, n, columns) True where attended to, or what is added to the scores.
        scaling: of the scores.
        options: of sdpa, which reads all but 2 to MOST_QUERIES queries.
    """
    batch, heads, n, width = query.shape
    if attention_mask is None or n == 1 or batch * n > MOST_QUERIES:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
    added = attention_mask
    if added.dtype == torch.bool:  # not -inf: a row of padding sees nothing and would be NaN
        added = torch.where(added, 0.0, torch.finfo(query.dtype).min)
    groups, columns = key.shape[1:3]
    shape = (batch * groups, heads // groups * n, columns)
    added = added[:, :, None].expand(batch, groups, heads // groups, n, columns).reshape(shape)
    rows, keys, values = (t.reshape(batch * groups, -1, width) for t in (query, key, value))
    scores = torch.baddbmm(added, rows, keys.transpose(1, 2), alpha=scaling)
    seen = torch.bmm(scores.softmax(-1), values).view(batch, heads, n, width)
    return seen.transpose(1, 2).contiguous(), None


def chain_mask(n: int, before: int) -> Tensor:
    """Return the causal mask (1, 1, n, before + n) that is added to the scores.

    Transformers builds the same as truth values, which every layer has to turn into numbers.
    """
    return nn.functional.pad(_below(n), (before, 0))[None, None]


@cache
def _below(n: int) -> Tensor:
    return torch.full((n, n), torch.finfo(torch.float32).min).triu(1)


def use_few_queries(module: Any) -> None:
    """Let a float32 model attend so; one of another type or attention stays as it is."""
    config, float32 = module.config, module.dtype == torch.float32
    if float32 and config.model_type in TRIED and config._attn_implementation == "sdpa":
        config._attn_implementation = NAME


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)

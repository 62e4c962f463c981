"""The choice of the emitted token, reproducible whatever batch a prompt is decoded in."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.models.nucleus import nucleus


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen; temperature 0 is greedy, top_k 0 and top_p 1 leave all tokens in."""

    temperature: float
    top_p: float
    top_k: int
    seed: int


def uniforms(seed: int, prompt_id: str, steps: int) -> np.ndarray:
    """Return the (steps,) uniform numbers of a prompt: entry i depends on (seed, id, i) only."""
    key = hashlib.sha256(f"{seed}\n{prompt_id}".encode()).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))
    return generator.random(steps)


def choose(logits: Tensor, argmax: Tensor, sampling: Sampling, uniform: Tensor) -> Tensor:
    """Return the (B,) tokens chosen from `logits` (B, V) by the inverse of their distribution.

    Args:
        logits: raw logits.
        argmax: (B,) the most probable tokens, taken when decoding is greedy.
        sampling: how tokens are chosen; top_k is applied before top_p.
        uniform: (B,) float64 numbers in [0, 1).
    """
    if sampling.temperature == 0:
        return argmax
    if sampling.top_k == 0 and sampling.top_p == 1:
        return _invert(torch.softmax(logits.float() / sampling.temperature, dim=1), uniform)
    ordered, ids = logits.float().sort(dim=1, descending=True, stable=True)
    probabilities = nucleus(ordered, sampling.temperature, sampling.top_p, sampling.top_k)
    return ids.gather(1, _invert(probabilities, uniform)[:, None])[:, 0]


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """Return per row the first index whose cumulated weight exceeds `uniform` of the total."""
    cumulated = weights.double().cumsum(1)
    index = torch.searchsorted(cumulated, (uniform * cumulated[:, -1])[:, None], right=True)[:, 0]
    return index.clamp(max=weights.shape[1] - 1)  # NaN logits: reported after the shard

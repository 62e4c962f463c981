"""Decodes one batch of prompts and keeps the statistics of every step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.execution.stopwatch import Stopwatch
from pipeline.models.forced import Batch
from pipeline.models.load import LanguageModel
from pipeline.models.logit_statistics import LogitStatistics, Tempered, nucleus, tempered_statistics
from pipeline.models.passes import Texts

RETIRE_EVERY = 8  # steps between looks at which answers have ended: each makes the host wait
RETIRE_SHARE = 0.2  # of the batch must have ended before it is made smaller


class Sampling(NamedTuple):
    """How tokens are chosen; temperature 0 is greedy, top_k 0 and top_p 1 leave all tokens in."""

    temperature: float
    top_p: float
    top_k: int
    seed: int


class Decoding(NamedTuple):
    """What is decoded and stored of every prompt."""

    steps: int
    k: int
    temperatures: Sequence[float]  # at which distributions are stored, besides 1
    sampling: Sampling


@dataclass
class DecodedBatch:
    """What B prompts gave in at most n steps; of row b the first `lengths[b]` steps count."""

    token_id: Tensor  # (B, n) int32
    statistics: LogitStatistics  # fields (B, n, ...), ids int32, at temperature 1
    tempered: Tempered  # fields (B, n, T), at T others
    lengths: Tensor  # (B,) steps up to and with the token that ends the answer

    @classmethod
    def empty(
        cls, batch: int, steps: int, k: int, temperatures: int, device: torch.device
    ) -> DecodedBatch:
        """Allocate everything once."""

        def zeros(dtype: torch.dtype, *size: int) -> Tensor:
            return torch.zeros((batch, steps, *size), dtype=dtype, device=device)

        return cls(
            token_id=zeros(torch.int32),
            statistics=LogitStatistics(
                zeros(torch.int32, k),
                zeros(torch.float32, k),
                *(zeros(torch.float64) for _ in LogitStatistics._fields[2:]),
            ),
            tempered=Tempered(*(zeros(torch.float64, temperatures) for _ in Tempered._fields)),
            lengths=torch.full((batch,), steps, device=device),
        )

    def store(
        self, rows: Tensor, step: int, token: Tensor, found: LogitStatistics, tempered: Tempered
    ) -> None:
        """Store one step of the prompts `rows`."""
        self.token_id[rows, step] = token.int()
        places = (*self.statistics, *self.tempered)
        for stored, values in zip(places, (*found, *tempered), strict=True):
            stored[rows, step] = values.to(stored.dtype)

    def to_host(self) -> DecodedBatch:
        """Return a copy in the host's memory; all work on the tensors must be done.

        On CUDA the copy runs on a stream of its own, beside what the device is doing meanwhile.
        """
        if self.token_id.device.type != "cuda":
            return self
        stream = _copy_stream(self.token_id.device)

        def copied(there: Tensor) -> Tensor:
            here = torch.empty(there.shape, dtype=there.dtype, pin_memory=True)
            return here.copy_(there, non_blocking=True)

        with torch.cuda.stream(stream):
            token_id, lengths = copied(self.token_id), copied(self.lengths)
            statistics = LogitStatistics(*map(copied, self.statistics))
            tempered = Tempered(*map(copied, self.tempered))
        stream.synchronize()
        return replace(
            self, token_id=token_id, statistics=statistics, tempered=tempered, lengths=lengths
        )


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of copies, always the same: CUDA has 32 and gives them out in turn."""
    return torch.cuda.Stream(device)


@torch.inference_mode()
def decode_batch(
    model: LanguageModel,
    prompts: dict[str, list[int]],
    decoding: Decoding,
    watch: Stopwatch,
    progress: Callable[[int], object],
) -> DecodedBatch:
    """Decode `prompts` (tokens by prompt_id) together.

    Left-padded, with a key-value cache. A step takes the statistics of the logits, chooses the
    token and runs the model on it. Prompts whose answer has ended leave the batch.
    """
    steps, k = decoding.steps, min(decoding.k, model.vocab_size)
    noise = torch.from_numpy(
        np.stack([uniforms(decoding.sampling.seed, name, steps) for name in prompts])
    ).to(model.device)
    eos = torch.tensor(model.eos, dtype=torch.int32, device=model.device)
    temperatures = [1.0, *decoding.temperatures]
    out = DecodedBatch.empty(len(prompts), steps, k, len(decoding.temperatures), model.device)
    rows = torch.arange(len(prompts), device=model.device)  # still decoding

    with watch("prefill"):
        batch = Batch.make(list(prompts.values()), [[]] * len(prompts), model.device)
        texts = Texts(model, batch.width + steps, padding=batch.padding)
        logits = texts.read(batch.ids)[:, -1]
    for step in range(steps):
        with watch("statistics"):
            found, tempered = tempered_statistics(logits, k, temperatures)
            token = choose(logits, found.top_ids[:, 0], decoding.sampling, noise[rows, step])
            out.store(rows, step, token, found, tempered)
        progress(len(rows))
        if step + 1 == steps:
            break
        with watch("decode"):
            if (step + 1) % RETIRE_EVERY == 0:
                going = ~torch.isin(out.token_id[rows, : step + 1], eos).any(1)
                share = float(going.float().mean())
                if share == 0:
                    break
                if share <= 1 - RETIRE_SHARE:
                    rows, token = rows[going], token[going]
                    texts.select(going.nonzero()[:, 0])
            logits = texts.extend(token[:, None])[:, -1]
    with watch("statistics"):
        ended = torch.isin(out.token_id, eos)
        out.lengths = torch.where(ended.any(1), ended.int().argmax(1) + 1, steps)
    return out


def uniforms(seed: int, prompt_id: str, steps: int) -> np.ndarray:
    """Return the (steps,) uniform numbers of a prompt: entry i depends on (seed, id, i) only.

    The choice of a token is so reproducible whatever batch a prompt is decoded in.
    """
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

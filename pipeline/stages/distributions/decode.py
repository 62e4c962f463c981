"""Decodes one batch of prompts and keeps the statistics of every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pipeline.execution.graphs import side_stream
from pipeline.execution.stopwatch import Stopwatch
from pipeline.models.load import LanguageModel
from pipeline.models.logit_statistics import LogitStatistics, Tempered, tempered_statistics
from pipeline.stages.distributions.running import GrowingBatch, PaddedBatch
from pipeline.stages.distributions.sampling import Sampling, choose, uniforms

RETIRE_EVERY = 8  # steps between looks at which answers have ended: each makes the host wait
RETIRE_SHARE = 0.2  # of the batch must have ended before it is made smaller


@dataclass(frozen=True)
class Decoding:
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
    graph: bool = False  # whether they were replayed from a CUDA graph

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
                top_ids=zeros(torch.int32, k),
                top_logits=zeros(torch.float32, k),
                logsumexp=zeros(torch.float64),
                top_surprisal=zeros(torch.float64),
                log_tail=zeros(torch.float64),
                entropy=zeros(torch.float64),
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
        stream = side_stream(self.token_id.device, "copy")

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


@torch.inference_mode()
def decode_batch(
    model: LanguageModel,
    prompts: dict[str, list[int]],
    decoding: Decoding,
    running: type[PaddedBatch],
    watch: Stopwatch,
    progress: Callable[[int], object],
) -> DecodedBatch:
    """Decode `prompts` (tokens by prompt_id) together.

    Left-padded, with a key-value cache. A step takes the statistics of the logits, chooses the
    token and runs the model on it. Prompts whose answer has ended leave a batch that can shrink.
    """
    steps, k = decoding.steps, min(decoding.k, model.vocab_size)
    batch = running(model, list(prompts.values()), steps)
    noise = torch.from_numpy(
        np.stack([uniforms(decoding.sampling.seed, name, steps) for name in prompts])
    ).to(model.device)
    eos = torch.tensor(model.eos, dtype=torch.int32, device=model.device)
    temperatures = [1.0, *decoding.temperatures]
    out = DecodedBatch.empty(len(prompts), steps, k, len(decoding.temperatures), model.device)
    rows = torch.arange(len(prompts), device=model.device)  # still decoding

    with watch("prefill"):
        logits = batch.prefill()
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
                if share <= 1 - RETIRE_SHARE and isinstance(batch, GrowingBatch):
                    rows, token = rows[going], token[going]
                    batch.keep(going)
            logits = batch.step(token, step)
    with watch("statistics"):
        ended = torch.isin(out.token_id, eos)
        out.lengths = torch.where(ended.any(1), ended.int().argmax(1) + 1, steps)
    out.graph = batch.graph
    return out

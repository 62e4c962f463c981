"""Decodes one batch of prompts and keeps the statistics of every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.execution.stopwatch import Stopwatch
from pipeline.models.load import LanguageModel
from pipeline.models.logit_statistics import Statistics, summarise
from pipeline.stages.distributions.running import GrowingBatch, PaddedBatch
from pipeline.stages.distributions.sampling import Sampling, choose, uniforms

RETIRE_EVERY = 8  # steps between looks at which answers have ended: each makes the host wait
RETIRE_SHARE = 0.2  # of the batch must have ended before it is made smaller


@dataclass(frozen=True)
class Decoding:
    """What is decoded and stored of every prompt."""

    steps: int
    k: int
    certified_temperature: float
    sampling: Sampling


@dataclass
class Trajectories:
    """Statistics of B prompts over at most n steps; of row b the first `lengths[b]` steps count."""

    token_id: Tensor  # (B, n) int32
    top_ids: Tensor  # (B, n, K) int32
    top_logits: Tensor  # (B, n, K) float32
    moments: Tensor  # (B, n, 4) float64: logsumexp, top_surprisal, log_tail, entropy
    lengths: Tensor  # (B,) steps up to and with the token that ends the answer
    kv_tokens: int  # cached tokens read in all decoding steps together
    forwards: int  # decoding steps, each of which reads the weights
    graph: bool = False  # whether they were replayed from a CUDA graph

    @classmethod
    def empty(cls, batch: int, steps: int, k: int, device: torch.device) -> Trajectories:
        """Allocate everything once."""
        return cls(
            torch.zeros((batch, steps), dtype=torch.int32, device=device),
            torch.zeros((batch, steps, k), dtype=torch.int32, device=device),
            torch.zeros((batch, steps, k), dtype=torch.float32, device=device),
            torch.zeros((batch, steps, 4), dtype=torch.float64, device=device),
            torch.full((batch,), steps, device=device),
            0,
            0,
        )

    def store(self, rows: Tensor, step: int, token: Tensor, found: Statistics) -> None:
        """Store one step of the prompts `rows`."""
        self.token_id[rows, step] = token.int()
        self.top_ids[rows, step] = found.top_ids.int()
        self.top_logits[rows, step] = found.top_logits
        self.moments[rows, step] = torch.stack(found[2:], dim=1)

    def to_host(self) -> Trajectories:
        """Return a copy in the host's memory; all work on the tensors must be done.

        On CUDA the copy runs on a stream of its own, beside what the device is doing meanwhile.
        """
        if self.token_id.device.type != "cuda":
            return self
        stream = torch.cuda.Stream(self.token_id.device)
        copies: dict[str, Any] = {}
        with torch.cuda.stream(stream):
            for name in ("token_id", "top_ids", "top_logits", "moments", "lengths"):
                there = getattr(self, name)
                here = torch.empty(there.shape, dtype=there.dtype, pin_memory=True)
                copies[name] = here.copy_(there, non_blocking=True)
        stream.synchronize()
        return replace(self, **copies)


@torch.inference_mode()
def decode(
    model: LanguageModel,
    prompts: dict[str, list[int]],
    decoding: Decoding,
    running: type[PaddedBatch],
    watch: Stopwatch,
    progress: Callable[[int], object],
) -> Trajectories:
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
    out = Trajectories.empty(len(prompts), steps, k, model.device)
    rows = torch.arange(len(prompts), device=model.device)  # still decoding

    with watch("prefill"):
        logits = batch.prefill()
    for step in range(steps):
        with watch("statistics"):
            found = summarise(logits, k, decoding.certified_temperature)
            token = choose(logits, found.top_ids[:, 0], decoding.sampling, noise[rows, step])
            out.store(rows, step, token, found)
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
        out.forwards += 1
        out.kv_tokens += len(rows) * (batch.width + step + 1)
    with watch("statistics"):
        ended = torch.isin(out.token_id, eos)
        out.lengths = torch.where(ended.any(1), ended.int().argmax(1) + 1, steps)
    out.graph = batch.graph
    return out

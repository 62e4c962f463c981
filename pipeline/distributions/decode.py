"""Decodes one batch of prompts and keeps the statistics of every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.distributions.sampling import Sampling, choose, uniforms
from pipeline.measure import Stopwatch
from pipeline.models import LanguageModel
from pipeline.moments import Statistics, summarise

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
    moments: Tensor  # (B, n, 3) float64: logsumexp, log_tail, entropy
    lengths: Tensor  # (B,) steps up to and with the token that ends the answer
    kv_tokens: int  # cached tokens read in all decoding steps together
    forwards: int  # decoding steps, each of which reads the weights

    @classmethod
    def empty(cls, batch: int, steps: int, k: int, device: torch.device) -> Trajectories:
        """Allocate everything once."""
        return cls(
            torch.zeros((batch, steps), dtype=torch.int32, device=device),
            torch.zeros((batch, steps, k), dtype=torch.int32, device=device),
            torch.zeros((batch, steps, k), dtype=torch.float32, device=device),
            torch.zeros((batch, steps, 3), dtype=torch.float64, device=device),
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

    def to_cpu(self) -> Trajectories:
        """Return a copy in the host's memory."""
        return Trajectories(
            self.token_id.cpu(),
            self.top_ids.cpu(),
            self.top_logits.cpu(),
            self.moments.cpu(),
            self.lengths.cpu(),
            self.kv_tokens,
            self.forwards,
        )


@torch.inference_mode()
def decode(
    model: LanguageModel,
    prompts: dict[str, list[int]],
    decoding: Decoding,
    watch: Stopwatch,
    progress: Callable[[int], object],
) -> Trajectories:
    """Decode `prompts` (tokens by prompt_id) together.

    Left-padded, with a key-value cache. A step takes the statistics of the logits, chooses the
    token and runs the model on it. Prompts whose answer has ended leave the batch.
    """
    steps = decoding.steps
    ids, mask, lengths = pad_left(list(prompts.values()), steps, model.device)
    width = ids.shape[1]
    noise = torch.from_numpy(
        np.stack([uniforms(decoding.sampling.seed, name, steps) for name in prompts])
    ).to(model.device)
    eos = torch.tensor(model.eos, dtype=torch.int32, device=model.device)
    k = min(decoding.k, model.vocab_size)
    out = Trajectories.empty(len(prompts), steps, k, model.device)
    rows = torch.arange(len(prompts), device=model.device)  # still decoding
    cache = model.new_cache(width + steps)

    with watch("prefill"):
        positions = (mask[:, :width].cumsum(1) - 1).clamp(min=0)
        logits = model.forward(ids, mask[:, :width], positions, cache)
    for step in range(steps):
        with watch("statistics"):
            found = summarise(logits, k, decoding.certified_temperature)
            token = choose(logits, found.top_ids[:, 0], decoding.sampling, noise[rows, step])
            out.store(rows, step, token, found)
        progress(len(rows))
        if (step + 1) % RETIRE_EVERY == 0 or step + 1 == steps:
            running = ~torch.isin(out.token_id[rows, : step + 1], eos).any(1)
            if step + 1 == steps or not running.any():
                break
            if running.float().mean() <= 1 - RETIRE_SHARE:
                rows, mask, lengths, token = (t[running] for t in (rows, mask, lengths, token))
                cache.batch_select_indices(running)
        with watch("decode"):
            logits = model.forward(
                token[:, None], mask[:, : width + step + 1], (lengths + step)[:, None], cache
            )
        out.forwards += 1
        out.kv_tokens += len(rows) * (width + step + 1)
    ended = torch.isin(out.token_id, eos)
    out.lengths = torch.where(ended.any(1), ended.int().argmax(1) + 1, steps)
    return out


def pad_left(
    prompts: list[list[int]], steps: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids (B, W), a mask (B, W + steps) that covers the answer too, and lengths (B,)."""
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    width = int(lengths.max())
    ids = torch.zeros((len(prompts), width), dtype=torch.long)
    mask = torch.ones((len(prompts), width + steps), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, : width - len(prompt)] = 0
    return ids.to(device), mask.to(device), lengths.to(device)

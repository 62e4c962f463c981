"""The distributions of every step of a batch of prompts that are decoded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.models.kv_session import KVSession
from pipeline.models.loading import LanguageModel
from pipeline.models.logit_statistics import StatisticsColumns, invert, logit_statistics

RETIRE_EVERY = 8  # steps between looks at which answers have ended: each makes the host wait
RETIRE_SHARE = 0.2  # of the batch must have ended before it is made smaller


@torch.inference_mode()
def decode_batch(
    model: LanguageModel,
    prompts: Mapping[str, list[int]],
    settings: Mapping[str, Any],
    progress: Callable[[int], object],
) -> StatisticsColumns:
    """Decode B prompts together, left-padded, with a key-value cache.

    A step takes the statistics of the logits, chooses the token and runs the model on it. Prompts
    whose answer has ended leave the batch. `settings` are those of stage distributions; `progress`
    is told the steps done.

    Returns:
        (B, n, ...) of each column that is stored; of row b the first `lengths` (B,) steps count, up
        to and with the token that ends the answer.
    """
    steps = settings["steps"]
    k = min(settings["k"], model.vocab_size)
    temperature = settings["temperature"]
    device = model.device
    by_prompt = [uniforms(settings["seed"], name, steps) for name in prompts]
    noise = torch.from_numpy(np.stack(by_prompt)).to(device)
    eos = torch.tensor(model.eos, dtype=torch.int32, device=device)
    out: StatisticsColumns = {}
    rows = torch.arange(len(prompts), device=device)  # still decoding

    width = max(map(len, prompts.values()))
    padded = [[0] * (width - len(ids)) + ids for ids in prompts.values()]
    padding = torch.tensor([width - len(ids) for ids in prompts.values()], device=device)
    texts = KVSession(model, width + steps, padding=padding)
    logits = texts.prefill(torch.tensor(padded, device=device))[:, -1]
    for step in range(steps):
        columns = logit_statistics(logits, k, settings["certified_temperature"])
        columns["top_ids"] = columns["top_ids"].int()
        token = columns["top_ids"][:, 0].long()
        if temperature > 0:
            token = choose(logits, noise[rows, step], temperature)
        columns["token_id"] = token.int()
        if not out:
            size = (len(prompts), steps)
            out = {name: t.new_zeros((*size, *t.shape[1:])) for name, t in columns.items()}
        for name, values in columns.items():
            out[name][rows, step] = values
        progress(len(rows))
        if step + 1 == steps:
            break
        if (step + 1) % RETIRE_EVERY == 0:
            going = ~torch.isin(out["token_id"][rows, : step + 1], eos).any(1)
            share = float(going.float().mean())
            if share == 0:
                break
            if share <= 1 - RETIRE_SHARE:
                rows = rows[going]
                token = token[going]
                texts.keep_rows(going.nonzero()[:, 0])
        logits = texts.append(token[:, None])[:, -1]
    ended = torch.isin(out["token_id"], eos)
    out["lengths"] = torch.where(ended.any(1), ended.int().argmax(1) + 1, steps)
    return out


def uniforms(seed: int, prompt_id: str, steps: int) -> np.ndarray:
    """Return the (steps,) uniform numbers of a prompt: entry i depends on (seed, id, i) only."""
    key = hashlib.sha256(f"{seed}\n{prompt_id}".encode()).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))
    return generator.random(steps)


def choose(logits: Tensor, uniform: Tensor, temperature: float) -> Tensor:
    """Return the (B,) tokens chosen by inversion: raw logits (B, V), uniform (B,) in [0, 1)."""
    return invert(torch.softmax(logits.float() / temperature, dim=1).double(), uniform)

"""Decodes prompts in batches, and keeps statistics of the distribution at every step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.models.kv_session import KVSession
from pipeline.models.language_model import LanguageModel
from pipeline.models.logit_statistics import StatisticsColumns, inverse_cdf, logit_statistics
from pipeline.models.padding import left_padded

RETIRE_EVERY = 8  # steps between checks for ended answers: a check makes the host wait
RETIRE_SHARE = 0.2  # the batch shrinks once this share of its answers has ended


@torch.inference_mode()
def decode_batch(
    model: LanguageModel,
    prompts: Mapping[str, list[int]],
    settings: Mapping[str, Any],
    progress: Callable[[int], object],
) -> StatisticsColumns:
    """Decode B prompts together, left-padded, with a key-value cache.

    Each step computes statistics of the logits, chooses a token and runs the model on it. Prompts
    whose answer has ended leave the batch.

    Args:
        model: the model.
        prompts: tokens of each prompt, by id; reading them is fastest with the longest first.
        settings: those of stage distributions.
        progress: called at each step with the number of tokens that it decoded.

    Returns:
        The stored columns (B, n, ...), and `lengths` (B,): how many steps of each row count, up to
        and including the token that ends the answer.
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

    ids, padding = left_padded(list(prompts.values()), device)
    texts = KVSession(model, ids.shape[1] + steps, padding=padding)
    logits = texts.prefill(ids)[:, -1]
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
    """Return uniform numbers (steps,) for a prompt; number i depends on (seed, id, i) only."""
    key = hashlib.sha256(f"{seed}\n{prompt_id}".encode()).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))
    return generator.random(steps)


def choose(logits: Tensor, uniform: Tensor, temperature: float) -> Tensor:
    """Sample tokens (B,) from raw logits (B, V) by their inverse CDF, with uniforms (B,)."""
    return inverse_cdf(torch.softmax(logits.float() / temperature, dim=1).double(), uniform)

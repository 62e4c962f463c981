"""Random models in Qwen3's shapes and random prompts, for `benchmarks.gpu`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from pipeline.models import recorded_passes
from pipeline.models.batch_decoding import decode_batch
from pipeline.models.loading import LanguageModel, wrap
from pipeline.models.logit_statistics import StatisticsColumns

COMMON: dict[str, Any] = {
    "vocab_size": 151_936, "head_dim": 128, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 40_960, "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {  # config.json of Qwen/Qwen3-0.6B, 1.7B and 4B
    "Qwen3-0.6B": COMMON | {"hidden_size": 1024, "intermediate_size": 3072,
                            "num_hidden_layers": 28, "num_attention_heads": 16},
    "Qwen3-1.7B": COMMON | {"hidden_size": 2048, "intermediate_size": 6144,
                            "num_hidden_layers": 28, "num_attention_heads": 16},
    "Qwen3-4B": COMMON | {"hidden_size": 2560, "intermediate_size": 9728,
                          "num_hidden_layers": 36, "num_attention_heads": 32},
}  # fmt: skip
REDUCED: dict[str, Any] = {
    "vocab_size": 2048, "head_dim": 32, "num_key_value_heads": 2, "hidden_size": 128,
    "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
STEPS = 24
GREEDY = {"steps": STEPS, "k": 256, "temperature": 0.0, "seed": 0, "certified_temperature": 1.0}
Prompts = dict[str, list[int]]


@contextmanager
def passes(*, recorded: bool) -> Iterator[None]:
    """Run passes recorded (on a CPU: as if they were), or eagerly, where that is possible."""
    asked = recorded_passes.can_record if recorded else lambda _: False
    with (
        patch.object(recorded_passes, "FIXED_ON_CPU", recorded),
        patch.object(recorded_passes, "can_record", asked),
    ):
        yield


def random_prompts(count: int, longest: int, vocabulary: int) -> Prompts:
    """Return random prompts of at least 64 tokens whose lengths have a long tail."""
    generator = np.random.default_rng(0)
    lengths = np.clip(64 + generator.lognormal(4.5, 1.0, count), 64, longest).astype(int)
    return {f"{i:03}": generator.integers(0, vocabulary, n).tolist()
            for i, n in enumerate(lengths)}  # fmt: skip


def random_qwen3(
    shape: dict[str, Any], dtype: str, device: torch.device, label: str
) -> LanguageModel:
    """Return a Qwen3 with random weights, created on `device`, with float32 logits."""
    with device:
        module = AutoModelForCausalLM.from_config(
            Qwen3Config(**shape), dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
    return wrap(module.eval(), label, device, key=label)


def decoded(model: LanguageModel, prompts: Prompts, steps: int = STEPS) -> StatisticsColumns:
    """Decode greedily, and return the stored columns on the host."""
    out = decode_batch(model, prompts, GREEDY | {"steps": steps}, lambda _: None)
    return {name: tensor.cpu() for name, tensor in out.items()}

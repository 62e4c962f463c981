"""A random head on a tiny model."""

from __future__ import annotations

from pathlib import Path

import torch

from pipeline.models.heads.feature_head import FeatureHead
from pipeline.models.heads.hidden_drafter import HiddenDrafter, projection_of
from pipeline.models.language_model import LanguageModel
from pipeline.plan.specs import HeadSpec, ModelRun, ModelSpec, UsedModel
from pipeline.store.identity import Identity


def shape_of(target: LanguageModel) -> dict[str, object]:
    """The shape of a head's layer for a target."""
    config = target.module.config
    return {
        "hidden_size": config.hidden_size, "intermediate_size": 40, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "hidden_act": "silu", "max_position_embeddings": 512, "vocab_size": target.vocab_size,
    }  # fmt: skip


def used(folder: Path, vocabulary: str = "reduced") -> UsedModel:
    """A head in a directory, as a drafter."""
    spec = ModelSpec(
        Identity(), "float32", "float32", attention="sdpa", head=HeadSpec(vocabulary, 2)
    )
    return UsedModel("drafter", spec, ModelRun(str(folder), "h"))


def random_head(
    target: LanguageModel, drafted: torch.Tensor | None = None, layers: tuple[int, ...] = (1, 2)
) -> HiddenDrafter:
    """A head whose attention and outputs are neither flat nor certain, every time the same."""
    torch.manual_seed(4)
    head = FeatureHead(shape_of(target), len(layers)).eval().requires_grad_(False)
    for parameter in head.parameters():
        if parameter.ndim == 2:
            parameter.normal_(std=parameter.shape[1] ** -0.5)
            parameter.mul_(2)
    projection = projection_of(target, drafted)
    return HiddenDrafter(target, head, projection, layers, "head", drafted, target.vocab_size)

"""A random head on a tiny model, and its files."""

import json
from pathlib import Path
from typing import Literal
from unittest.mock import patch

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from conf.schema import HeadConfig
from pipeline.models.heads.feature_head import FeatureHead
from pipeline.models.heads.hidden_drafter import HiddenDrafter, like_target
from pipeline.models.language_model import LanguageModel, linear_of
from pipeline.stage import ModelSpec
from tests.pipeline import tiny

LAYERS = 1, 2


def shape_of(target: LanguageModel) -> dict[str, object]:
    """The shape of a head's layer for a target."""
    config = target.module.config
    return {
        "hidden_size": config.hidden_size, "intermediate_size": 40, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "hidden_act": "silu", "max_position_embeddings": 512, "vocab_size": target.vocab_size,
    }  # fmt: skip


def used(folder: Path, layer_ids: Literal["after", "output"] | None = None) -> ModelSpec:
    """A head in a directory, as a drafter."""
    head = HeadConfig(depths=2, layer_ids=layer_ids)
    return tiny.used(folder, "drafter", label="h", head=head)


@torch.inference_mode()
def states_of(target: LanguageModel, text: list[int], layers: tuple[int, ...]) -> Tensor:
    """Hidden states (n, layers, d) by a plain pass of the target with its final norm taken out."""
    with patch.object(target.module.model, "norm", nn.Identity()):
        out = target.module(input_ids=torch.tensor([text]), output_hidden_states=True)
    return torch.stack([out.hidden_states[layer][0] for layer in layers], 1)


def random_head(target: LanguageModel, drafted: Tensor | None = None) -> HiddenDrafter:
    """A head whose attention and outputs are neither flat nor certain, every time the same."""
    torch.manual_seed(4)
    head = FeatureHead(shape_of(target), len(LAYERS), fc_norm=True)
    head.eval().requires_grad_(False)
    for parameter in head.parameters():
        if parameter.ndim == 2:
            parameter.normal_(std=parameter.shape[1] ** -0.5)
            parameter.mul_(2)
    rows = target.module.get_output_embeddings().weight.data
    if drafted is not None:
        rows = rows[drafted].bfloat16().to(rows.dtype)
    projection = like_target(target, linear_of(rows, None))
    return HiddenDrafter(target, head, projection, LAYERS, "head", drafted, target.vocab_size)


def write(model: HiddenDrafter, folder: Path) -> None:
    """Write a head in EAGLE-3's layout, in bfloat16."""
    rows = model.projection.weight
    weights = model.head.state_dict() | {"lm_head.weight": rows}
    weights = {name: value.bfloat16() for name, value in weights.items()}
    if model.drafted is not None:
        weights["d2t"] = model.drafted - torch.arange(len(model.drafted))
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **shape_of(model.target),
        "draft_vocab_size": len(rows),
        "fc_norm": True,
        "eagle_aux_hidden_state_layer_ids": model.layers,
    }
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))

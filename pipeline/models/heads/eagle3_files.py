"""Published EAGLE-3 heads: what their config.json and their weights say, in the names used here.

Two layouts are read:

- EAGLE's own (`eagle/model/cnets.py` of SafeAILab/EAGLE, arXiv 2503.01840): the config.json of a
  Llama of one layer with `draft_vocab_size`; weights fc, midlayer.*, norm, lm_head, d2t, t2d, and
  embed_tokens where the embedding is not the target's.
- speculators (`src/speculators/models/eagle3/` of vllm-project/speculators): config.json with
  speculators_model_type eagle3 and the layer's shape in transformer_layer_config; weights as above,
  the layer called layers.0.

vLLM reads both (`vllm/model_executor/models/llama_eagle3.py`). d2t is an offset: the i-th drafted
token has the id i + d2t[i]; t2d marks these ids. The hidden states are those after 2, L / 2 and
L - 3 of the target's L layers, unless eagle_aux_hidden_state_layer_ids says otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from pipeline.store.identity import PICKLED

SAFE = "model.safetensors"
SHAPE = (  # keys of a Llama's config.json that decide what its layer computes
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "hidden_act"),
    *("max_position_embeddings", "vocab_size"),
)
PROJECTION, EMBEDDING = "lm_head.weight", "embed_tokens.weight"
DRAFTED, TARGETS = "d2t", "t2d"
VERIFIER = (
    "verifier_lm_head.weight",
    "verifier_norm.weight",
)  # copies of the target's, for training


@dataclass(frozen=True)
class Eagle3:
    """What the config.json of a published head says besides the shape of its layer.

    Attributes:
        drafted: how many tokens can be drafted.
        width: of the target's hidden states.
        norm_before_residual: as of `pipeline.models.heads.feature_head.Layer`.
    """

    drafted: int
    width: int
    norm_before_residual: bool


def published(config: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[int, ...], Eagle3] | None:
    """Return shape, layers (empty: not said) and the rest of a published head; None if it is none.

    Raises:
        ValueError: it is an EAGLE-3 head of a kind that is not read here.
        KeyError: a key is missing.
    """
    names = " ".join(config.get("architectures") or ())
    of_speculators = config.get("speculators_model_type") == "eagle3"
    if not (of_speculators or "eagle3" in names.lower() or "draft_vocab_size" in config):
        return None
    inner = config["transformer_layer_config"] if of_speculators else config
    if inner.get("num_hidden_layers", 1) != 1:
        raise ValueError(f"it has {inner['num_hidden_layers']} layers: heads of one are read")
    if inner.get("model_type", "llama") != "llama":
        raise ValueError(f"its layer is that of a {inner['model_type']}: a Llama's is read")
    shape = {key: inner[key] for key in SHAPE if inner.get(key) is not None}
    said = config.get("eagle_aux_hidden_state_layer_ids")
    said = said or (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    drafted = config.get("draft_vocab_size") or shape["vocab_size"]
    width = config.get("target_hidden_size") or shape["hidden_size"]
    residual = bool(config.get("norm_before_residual", inner.get("norm_before_residual", False)))
    return shape, tuple(map(int, said or ())), Eagle3(int(drafted), int(width), residual)


def default_layers(depth: int) -> tuple[int, ...]:
    """Return after how many of a target's layers a head reads, where its files do not say."""
    return 2, depth // 2, depth - 3


def weight_shapes(folder: Path) -> dict[str, list[int]]:
    """Return the shape of every weight by its name here, without reading them."""
    if (folder / SAFE).is_file():
        with safe_open(folder / SAFE, "pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    else:
        shapes = {name: list(value.shape) for name, value in _pickled(folder).items()}
    return {renamed(name): shape for name, shape in shapes.items() if name not in VERIFIER}


def read_weights(folder: Path, only: Collection[str] | None = None) -> dict[str, Tensor]:
    """Return the weights by their names here; `only` those of these names, where they are there."""

    def wanted(names: Iterable[str]) -> list[str]:
        mine = [name for name in names if name not in VERIFIER]
        return [name for name in mine if only is None or renamed(name) in only]

    if (folder / SAFE).is_file():
        with safe_open(folder / SAFE, "pt") as file:
            return {renamed(name): file.get_tensor(name) for name in wanted(file.keys())}
    read = _pickled(folder)
    return {renamed(name): read[name] for name in wanted(read)}


def _pickled(folder: Path) -> dict[str, Tensor]:
    path = folder / PICKLED
    try:
        read = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:  # a file of before torch 1.6 can't be mapped
        read = torch.load(path, map_location="cpu", weights_only=True)
    return dict(read)


def renamed(name: str) -> str:
    """Return the name used here of a weight.

    >>> renamed("layers.0.self_attn.q_proj.weight"), renamed("model.fc.weight")
    ('midlayer.self_attn.q_proj.weight', 'fc.weight')
    """
    name = name.removeprefix("model.")
    return f"midlayer.{name.removeprefix('layers.0.')}" if name.startswith("layers.0.") else name

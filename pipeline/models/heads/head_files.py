"""The files of an EAGLE-3 head.

Two layouts are read, both as config.json and model.safetensors (or pytorch_model.bin):

- EAGLE's own (`eagle/model/cnets.py` of SafeAILab/EAGLE, arXiv 2503.01840): the config.json of a
  Llama of one layer with `draft_vocab_size`; weights fc, midlayer.*, norm, lm_head, d2t, t2d, and
  embed_tokens where the embedding is not the target's.
- speculators (`src/speculators/models/eagle3/` of vllm-project/speculators): config.json with
  speculators_model_type eagle3 and the layer's shape in transformer_layer_config; weights as above,
  the layer called layers.0.

vLLM reads both (`vllm/model_executor/models/llama_eagle3.py`), and its keys for further norms are
followed (`Norms`). d2t is an offset: the i-th drafted token has the id
i + d2t[i]; t2d marks these ids. The hidden states are those after 2, L / 2 and L - 3 of the
target's L layers, unless eagle_aux_hidden_state_layer_ids says otherwise; the one after all L
layers is read before the final norm.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from pipeline.errors import PipelineError, first_line
from pipeline.hub import HEAD_FILES, PICKLED, model_folder
from pipeline.models.heads.feature_head import FeatureHead, Norms
from pipeline.models.language_model import LanguageModel

WEIGHTS = "model.safetensors"
PROJECTION, EMBEDDING = "lm_head.weight", "embed_tokens.weight"
OFFSETS = "d2t"  # by drafted token, how far its id in the target's vocabulary is from its index
TARGETS = "t2d"
LAYERS = "eagle_aux_hidden_state_layer_ids"
VERIFIER = ("verifier_lm_head.weight", "verifier_norm.weight")  # the target's, for training
LLAMA_KEYS = (  # keys of a Llama's config.json that decide what its layer computes
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "hidden_act"),
    *("max_position_embeddings", "vocab_size"),
)


@dataclass(frozen=True)
class HeadFiles:
    """The content of a head's config.json.

    Attributes:
        folder: of its files.
        shape: of its layer, as in a Llama's.
        layers: after how many of the target's layers it reads a hidden state; empty where a
            head leaves them to the depth of its target.
        width: of the target's hidden states.
        rows: of its projection.
        norms: of the head.
    """

    folder: Path
    shape: dict[str, Any]
    layers: tuple[int, ...]
    width: int
    rows: int
    norms: Norms

    def layers_of(self, target: LanguageModel) -> tuple[int, ...]:
        """Return the layers of this target."""
        depth = target.module.config.get_text_config().num_hidden_layers
        return self.layers or (2, depth // 2, depth - 3)

    def empty(self, count: int) -> FeatureHead:
        """Return a head of this shape that reads `count` hidden states, with random weights."""
        return FeatureHead(self.shape, count, self.norms, self.width)


def read_head(path: str, commit: str | None, key: str) -> HeadFiles:
    """Return the content of the config.json in `path`; errors name the configuration key `key`.

    Raises:
        PipelineError: it is no head's.
    """
    folder = model_folder(path, commit, HEAD_FILES, f"{key}.path")
    try:
        read = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        names = " ".join(read.get("architectures") or ()).lower()
        of_speculators = read.get("speculators_model_type") == "eagle3"
        if not (of_speculators or "eagle3" in names or "draft_vocab_size" in read):
            raise ValueError(f"model_type is {read['model_type']}")
        return _described(folder, read, of_speculators)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PipelineError(
            f"{key}.path={path} is no head: {type(error).__name__}: {first_line(error)}. Wanted: "
            f"the config.json of an EAGLE-3 head, or {key}.head=null for a language model"
        ) from error


def _described(folder: Path, config: dict[str, Any], of_speculators: bool) -> HeadFiles:
    inner = config["transformer_layer_config"] if of_speculators else config
    if inner.get("num_hidden_layers", 1) != 1:
        raise ValueError(f"it has {inner['num_hidden_layers']} layers: only heads of one are read")
    if inner.get("model_type", "llama") != "llama":
        raise ValueError(f"its layer is that of a {inner['model_type']}: only a Llama's is read")
    shape = {key: inner[key] for key in LLAMA_KEYS if inner.get(key) is not None}
    nested = config.get("eagle_config") or {}
    layers = config.get(LAYERS) or nested.get(LAYERS) or ()
    norms = config | {key: nested[key] for key in nested.keys() & {"norm_before_fc"}}
    if of_speculators:  # vLLM's default for this layout
        norms = {"norm_before_residual": True} | norms
    return HeadFiles(
        folder,
        shape,
        tuple(map(int, layers)),
        width=int(config.get("target_hidden_size") or shape["hidden_size"]),
        rows=int(config.get("draft_vocab_size") or shape["vocab_size"]),
        norms=_norms(norms),
    )


def _norms(config: Mapping[str, Any]) -> Norms:
    return Norms(**{spec.name: bool(config.get(spec.name, False)) for spec in fields(Norms)})


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return all weights by the names of EAGLE's own layout."""
    if (folder / WEIGHTS).is_file():
        read = load_file(folder / WEIGHTS)
    else:
        read = torch.load(folder / PICKLED, map_location="cpu", weights_only=True)
    bare = {name.removeprefix("model."): value for name, value in read.items()}
    return {
        f"midlayer.{name.removeprefix('layers.0.')}"
        if name.startswith("layers.0.")
        else name: value
        for name, value in bare.items()
        if name not in VERIFIER
    }


def drafted_ids(offsets: Tensor) -> Tensor:
    """Return the ids (n,) of tokens from how far each is from its index."""
    return torch.arange(len(offsets)) + offsets

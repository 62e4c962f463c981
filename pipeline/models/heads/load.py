"""EAGLE-3 heads: their files, and whether one fits its target.

Two layouts are read, both as config.json and model.safetensors (or pytorch_model.bin):

- EAGLE's own (`eagle/model/cnets.py` of SafeAILab/EAGLE, arXiv 2503.01840): the config.json of a
  Llama of one layer with `draft_vocab_size`; weights fc, midlayer.*, norm, lm_head, d2t, t2d, and
  embed_tokens where the embedding is not the target's.
- speculators (`src/speculators/models/eagle3/` of vllm-project/speculators): config.json with
  speculators_model_type eagle3 and the layer's shape in transformer_layer_config; weights as above,
  the layer called layers.0.

vLLM reads both (`vllm/model_executor/models/llama_eagle3.py`), and its keys for further norms are
followed (`Norms`). d2t is an offset: the i-th drafted token has the id i + d2t[i]; t2d marks these
ids. The hidden states are those after 2, L / 2 and L - 3 of the target's L layers, unless
eagle_aux_hidden_state_layer_ids says otherwise (`HeadFiles.layers_of`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from pipeline.errors import PipelineError, first_line
from pipeline.hub import HEAD_FILES, PICKLED, model_folder
from pipeline.models.heads.feature_head import FeatureHead, Norms
from pipeline.models.heads.hidden_drafter import HiddenDrafter, like_target
from pipeline.models.language_model import LanguageModel, linear_of
from pipeline.models.skinny_matmul import use_skinny_matmul
from pipeline.models.spec import ModelSpec

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
        key: of the drafter in the configuration, for errors.
        folder: of its files.
        shape: of its layer, as in a Llama's.
        layers: the ids of the target's layers whose hidden states it reads; empty where a head
            leaves them to the depth of its target.
        counting: what an id means, "after" so many layers or the "output" of the layer of this
            index; None where neither the files nor the configuration tell.
        width: of the target's hidden states.
        rows: of its projection.
        norms: of the head.
    """

    key: str
    folder: Path
    shape: dict[str, Any]
    layers: tuple[int, ...]
    counting: str | None
    width: int
    rows: int
    norms: Norms

    def layers_of(self, target: LanguageModel) -> tuple[int, ...]:
        """Return after how many layers of this target it reads a hidden state.

        vLLM and speculators count the layers before a state, SpecForge and SGLang name the layer
        that gives it, one less. The ids of a head trained with the defaults of either tell, and so
        does one that only counting reaches.

        Raises:
            PipelineError: they don't tell.
        """
        depth, ids = target.module.config.get_text_config().num_hidden_layers, self.layers
        after = (2, depth // 2, depth - 3)
        if not ids:
            return after
        counting = self.counting
        if counting is None and (ids == after or max(ids) >= depth):
            counting = "after"
        elif counting is None and ids[0] == 1:
            counting = "output"
        if counting is None:
            raise PipelineError(
                f"{self.key}: {LAYERS} of the head is {list(ids)}, and its files do not tell what "
                f"it counts: give {self.key}.head.layer_ids=after (so many layers, as vLLM does) "
                "or output (the output of the layer of this index, as SGLang and SpecForge do)"
            )
        return ids if counting == "after" else tuple(at + 1 for at in ids)

    def empty(self, count: int) -> FeatureHead:
        """Return a head of this shape that reads `count` hidden states, with random weights."""
        return FeatureHead(self.shape, count, self.norms, self.width)


def read_head(spec: ModelSpec) -> HeadFiles:
    """Return the content of a head's config.json.

    Raises:
        PipelineError: it is no head's.
    """
    assert spec.head is not None
    key, path = spec.key, spec.settings.path
    folder = model_folder(path, spec.identity.commit, HEAD_FILES, f"{key}.path")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        names = " ".join(config.get("architectures") or ()).lower()
        of_speculators = config.get("speculators_model_type") == "eagle3"
        if not (of_speculators or "eagle3" in names or "draft_vocab_size" in config):
            raise ValueError(f"model_type is {config['model_type']}")
        inner = config["transformer_layer_config"] if of_speculators else config
        if inner.get("model_type", "llama") != "llama":
            raise ValueError(f"its layer is that of a {inner['model_type']}: Llama's is read")
        shape = {name: inner[name] for name in LLAMA_KEYS if inner.get(name) is not None}
        nested = config.get("eagle_config") or {}
        norms = {"norm_before_residual": of_speculators} | config  # vLLM's default
        norms |= {name: nested[name] for name in nested.keys() & {"norm_before_fc"}}
        return HeadFiles(
            key,
            folder,
            shape,
            tuple(map(int, config.get(LAYERS) or nested.get(LAYERS) or ())),
            spec.head.layer_ids or ("after" if of_speculators else None),
            width=int(config.get("target_hidden_size") or shape["hidden_size"]),
            rows=int(config.get("draft_vocab_size") or shape["vocab_size"]),
            norms=Norms(**{one.name: bool(norms.get(one.name)) for one in fields(Norms)}),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PipelineError(
            f"{key}.path={path} is no head: {type(error).__name__}: {first_line(error)}. Wanted: "
            f"the config.json of an EAGLE-3 head, or {key}.head=null for a language model"
        ) from error


def load_head(spec: ModelSpec, target: LanguageModel) -> HiddenDrafter:
    """Load a head for `target`, on its device and in its dtype.

    Raises:
        PipelineError: it is no head, belongs to another target, or its files are damaged.
    """
    files, label = read_head(spec), spec.settings.label
    weights = check_head(files, target)
    layers = files.layers_of(target)
    head = files.empty(len(layers))
    head.load_state_dict({name: weights[name] for name in head.state_dict()})
    device, dtype = target.device, target.dtype
    drafted = embedding = None
    if OFFSETS in weights:
        drafted = _drafted(weights).to(device)
    projection = like_target(target, linear_of(weights[PROJECTION].to(device, dtype), None))
    if EMBEDDING in weights:
        embedding = nn.Embedding.from_pretrained(weights[EMBEDDING].to(device, dtype))
    parts = nn.ModuleList([head.eval().requires_grad_(False).to(device, dtype), projection])
    use_skinny_matmul(parts, halves=True)
    made = HiddenDrafter(
        target, head, parts[1], layers, label, drafted, target.vocab_size, embedding
    )
    if not made.gives_numbers():
        raise PipelineError(
            f"{spec.key}: {label} gives NaN or infinite logits behind {target.label}: its weights "
            "are damaged, too large, or of another target. Fetch the head again"
        )
    return made


def check_head(files: HeadFiles, target: LanguageModel) -> dict[str, Tensor]:
    """Check that a head can draft for `target`, loaded or without weights; return its weights.

    Raises:
        PipelineError: it was made for a model of another width, depth or vocabulary, its weights
            are not those of its shape, or it does not name its tokens.
    """
    config, where = target.module.config.get_text_config(), f"{files.key}.path={files.folder}"
    other = "take a drafter that was trained for this target"
    layers, depth = files.layers_of(target), config.num_hidden_layers
    rows, d = files.shape.get("vocab_size"), files.shape["hidden_size"]
    most = max(layers) if files.layers else "2, L/2 and L - 3 of L"
    for fits, what, has in (
        (files.width == config.hidden_size, f"reads hidden states of {files.width} numbers",
         config.hidden_size),
        (0 <= min(layers) <= max(layers) <= depth, f"reads hidden states after {most} layers",
         depth),
        (rows == config.vocab_size, f"is for a vocabulary of {rows} tokens", config.vocab_size),
    ):  # fmt: skip
        if not fits:
            raise PipelineError(f"{files.key}: the head {what}, {target.label} has {has}: {other}")
    try:
        with torch.device("meta"):
            head = files.empty(len(layers))
        weights = _weights(files.folder)
    except Exception as error:  # libraries raise many kinds; all mean the same to a user
        raise PipelineError(
            f"{where}: its weights can't be read: {type(error).__name__}: {first_line(error)}"
        ) from error
    shapes = {name: list(weight.shape) for name, weight in weights.items()}
    expected = {name: list(weight.shape) for name, weight in head.state_dict().items()}
    expected[PROJECTION] = [files.rows, d]
    if files.width != d or EMBEDDING in shapes:  # else it is the target's
        expected[EMBEDDING] = [rows, d]
    if files.rows != rows or OFFSETS in shapes:
        expected[OFFSETS] = [files.rows]
    if TARGETS in shapes:
        expected[TARGETS] = [rows]
    wrong = sorted(n for n in expected.keys() | shapes if expected.get(n) != shapes.get(n))
    if wrong:
        raise PipelineError(
            f"{where}: {len(wrong)} weights are missing, unknown or not of the shape in "
            f"config.json ({', '.join(wrong[:3])}): {other}"
        )
    if OFFSETS not in weights:
        return weights
    ids, whole = _drafted(weights), not weights[OFFSETS].dtype.is_floating_point
    if not (whole and ids.min() >= 0 and ids.max() < target.vocab_size and (ids.diff() > 0).all()):
        raise PipelineError(
            f"{where}: {OFFSETS} does not name increasing ids below {target.vocab_size}, which "
            f"{target.label} has: its files are damaged"
        )
    if TARGETS in weights and not torch.equal(weights[TARGETS].nonzero()[:, 0], ids):
        raise PipelineError(
            f"{where}: {TARGETS} marks other tokens than {OFFSETS} names: its files are damaged"
        )
    return weights


def _weights(folder: Path) -> dict[str, Tensor]:
    """Return all weights by the names of EAGLE's own layout."""
    if (folder / WEIGHTS).is_file():
        read = load_file(folder / WEIGHTS)
    else:
        read = torch.load(folder / PICKLED, map_location="cpu", weights_only=True)
    bare = {name.removeprefix("model."): value for name, value in read.items()}
    return {
        f"midlayer.{name.removeprefix('layers.0.')}" if name.startswith("layers.0.") else name: each
        for name, each in bare.items()
        if name not in VERIFIER
    }


def _drafted(weights: Mapping[str, Tensor]) -> Tensor:
    """Return the ids (n,) of the tokens that can be drafted."""
    return torch.arange(len(weights[OFFSETS])) + weights[OFFSETS]

"""EAGLE-3 heads: their files, and whether one fits its target.

The layout is EAGLE's own (`eagle/model/cnets.py` of SafeAILab/EAGLE, arXiv 2503.01840), which vLLM
reads too (`vllm/model_executor/models/llama_eagle3.py`): the config.json of a Llama of one layer
with `draft_vocab_size`; in model.safetensors or pytorch_model.bin fc, midlayer.*, norm, lm_head,
d2t, t2d, and embed_tokens where the embedding is not the target's. d2t is an offset: the i-th
drafted token has the id i + d2t[i]; t2d marks these ids. The hidden states are those after 2, L / 2
and L - 3 of the target's L layers, unless eagle_aux_hidden_state_layer_ids says otherwise.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from pipeline.errors import PipelineError, first_line
from pipeline.hub import HEAD_FILES, PICKLED, model_folder
from pipeline.models.heads.feature_head import FeatureHead
from pipeline.models.heads.hidden_drafter import HiddenDrafter, like_target
from pipeline.models.language_model import LanguageModel, linear_of
from pipeline.models.spec import ModelSpec

WEIGHTS = "model.safetensors"
PROJECTION, EMBEDDING = "lm_head.weight", "embed_tokens.weight"
OFFSETS = "d2t"  # by drafted token, how far its id in the target's vocabulary is from its index
TARGETS = "t2d"
LAYERS = "eagle_aux_hidden_state_layer_ids"
UNREAD = ("norm_before_residual", "norm_before_fc", "norm_output")  # norms that vLLM knows, too
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
            index; None where the configuration does not tell.
        rows: of its projection.
        fc_norm: whether it norms each hidden state.
    """

    key: str
    folder: Path
    shape: dict[str, Any]
    layers: tuple[int, ...]
    counting: str | None
    rows: int
    fc_norm: bool

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


def read_head(spec: ModelSpec) -> HeadFiles:
    """Return the content of a head's config.json.

    Raises:
        PipelineError: it is no head's, or it has norms that are not read.
    """
    assert spec.head is not None
    key, path = spec.key, spec.settings.path
    folder = model_folder(path, spec.identity.commit, HEAD_FILES, f"{key}.path")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        names = " ".join(config.get("architectures") or ()).lower()
        if not ("eagle3" in names or "draft_vocab_size" in config):
            raise ValueError(f"model_type is {config['model_type']}")
        if config.get("model_type", "llama") != "llama":
            raise ValueError(f"its layer is that of a {config['model_type']}: Llama's is read")
        nested = config.get("eagle_config") or {}
        if unread := [name for name in UNREAD if config.get(name) or nested.get(name)]:
            raise ValueError(f"{unread[0]} is not read")
        shape = {name: config[name] for name in LLAMA_KEYS if config.get(name) is not None}
        return HeadFiles(
            key,
            folder,
            shape,
            tuple(map(int, config.get(LAYERS) or nested.get(LAYERS) or ())),
            spec.head.layer_ids,
            rows=int(config.get("draft_vocab_size") or shape["vocab_size"]),
            fc_norm=bool(config.get("fc_norm")),
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
    files = read_head(spec)
    weights, layers = check_head(files, target), files.layers_of(target)
    head = FeatureHead(files.shape, len(layers), files.fc_norm)
    head.load_state_dict({name: weights[name] for name in head.state_dict()})
    device, dtype, embedding = target.device, target.dtype, None
    if EMBEDDING in weights:
        embedding = nn.Embedding.from_pretrained(weights[EMBEDDING].to(device, dtype))
    return HiddenDrafter(
        target,
        head.eval().requires_grad_(False).to(device, dtype),
        like_target(target, linear_of(weights[PROJECTION].to(device, dtype), None)),
        layers,
        spec.settings.label,
        drafted=_drafted(weights).to(device) if OFFSETS in weights else None,
        vocab_size=target.vocab_size,
        embedding=embedding,
    )


def check_head(files: HeadFiles, target: LanguageModel) -> dict[str, Tensor]:
    """Check that a head can draft for `target`, loaded or without weights; return its weights.

    Raises:
        PipelineError: it was made for a model of another width, depth or vocabulary, its weights
            are not those of its shape, or it does not name its tokens.
    """
    config, where = target.module.config.get_text_config(), f"{files.key}.path={files.folder}"
    other = "take a drafter that was trained for this target"
    layers, depth = files.layers_of(target), config.num_hidden_layers
    rows, d = files.shape.get("vocab_size"), files.shape.get("hidden_size")
    most = max(layers) if files.layers else "2, L/2 and L - 3 of L"
    for fits, what, has in (
        (d == config.hidden_size, f"reads hidden states of {d} numbers", config.hidden_size),
        (0 <= min(layers) <= max(layers) <= depth, f"reads hidden states after {most} layers",
         depth),
        (rows == config.vocab_size, f"is for a vocabulary of {rows} tokens", config.vocab_size),
    ):  # fmt: skip
        if not fits:
            raise PipelineError(f"{files.key}: the head {what}, {target.label} has {has}: {other}")
    try:
        with torch.device("meta"):
            head = FeatureHead(files.shape, len(layers), files.fc_norm)
        weights = _weights(files.folder)
    except Exception as error:  # libraries raise many kinds; all mean the same to a user
        raise PipelineError(
            f"{where}: its weights can't be read: {type(error).__name__}: {first_line(error)}"
        ) from error
    shapes = {name: list(weight.shape) for name, weight in weights.items()}
    expected = {name: list(weight.shape) for name, weight in head.state_dict().items()}
    expected[PROJECTION] = [files.rows, d]
    if files.rows != rows:
        expected[OFFSETS] = [files.rows]
    optional: dict[str, list[Any]] = {EMBEDDING: [rows, d], OFFSETS: [files.rows], TARGETS: [rows]}
    expected |= {name: shape for name, shape in optional.items() if name in shapes}
    wrong = sorted(n for n in expected.keys() | shapes if expected.get(n) != shapes.get(n))
    if wrong:
        raise PipelineError(
            f"{where}: {len(wrong)} weights are missing, unknown or not of the shape in "
            f"config.json ({', '.join(wrong[:3])}): {other}"
        )
    if OFFSETS in weights:
        ids = _drafted(weights)
        whole = not weights[OFFSETS].dtype.is_floating_point
        inside = ids.min() >= 0 and ids.max() < target.vocab_size and (ids.diff() > 0).all()
        marked = TARGETS not in weights or torch.equal(weights[TARGETS].nonzero()[:, 0], ids)
        if not (whole and inside and marked):
            raise PipelineError(
                f"{where}: {OFFSETS} does not name increasing ids below {target.vocab_size} (those "
                f"that {TARGETS} marks): its files are damaged"
            )
    return weights


def _weights(folder: Path) -> dict[str, Tensor]:
    """Return all weights by their names in EAGLE's code."""
    if (folder / WEIGHTS).is_file():
        weights = load_file(folder / WEIGHTS)
    else:
        weights = torch.load(folder / PICKLED, map_location="cpu", weights_only=True)
    return {name.removeprefix("model."): weight for name, weight in weights.items()}


def _drafted(weights: dict[str, Tensor]) -> Tensor:
    """Return the ids (n,) of the tokens that can be drafted."""
    return torch.arange(len(weights[OFFSETS])) + weights[OFFSETS]

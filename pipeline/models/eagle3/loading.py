"""Loads EAGLE-3 heads, and checks that they fit their target.

The layout is EAGLE's own (`eagle/model/cnets.py` of SafeAILab/EAGLE, arXiv 2503.01840), which vLLM
reads too (`vllm/model_executor/models/llama_eagle3.py`): the config.json of a Llama of one layer
with `draft_vocab_size`; in model.safetensors or pytorch_model.bin fc, midlayer.*, norm, lm_head,
d2t, t2d, and embed_tokens where the embedding is not the target's. d2t is an offset: the i-th
drafted token has the id i + d2t[i]; t2d marks these ids. The hidden states are those after 2, L / 2
and L - 3 of the target's L layers, unless eagle_aux_hidden_state_layer_ids says otherwise.

The format of vLLM's speculators (`src/speculators/models/eagle3` of vllm-project/speculators) is
read as well: the layer's configuration is in `transformer_layer_config` and its weights are
layers.0.*.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaConfig

from pipeline.core.errors import PipelineError, first_line
from pipeline.core.stage import ModelSpec
from pipeline.inputs.hub import model_folder
from pipeline.inputs.integrity import WHOLE, check_one_form
from pipeline.inputs.local_files import HEAD_FILES, PICKLED
from pipeline.models.eagle3.drafter import Eagle3Drafter, Eagle3Module, like_target
from pipeline.models.language_model import LanguageModel, linear_of
from pipeline.models.products import use_fast_products

SPECULATORS = "speculators_model_type"  # a key that shows the format of vLLM's speculators
SHAPE = "transformer_layer_config"  # in that format, the configuration of the layer
RESIDUAL = "norm_before_residual"
# keys beside SHAPE; vLLM reads them in vllm/transformers_utils/configs/speculators/algos.py
BESIDE_SHAPE = (SPECULATORS, "draft_vocab_size", RESIDUAL, "norm_before_fc", "fc_norm",
                "norm_output", "eagle_aux_hidden_state_layer_ids")  # fmt: skip
OTHERS = {"dflash": "DFlash", "mtp": "MTP", "medusa": "Medusa", "peagle": "P-EAGLE"}  # refused
SEVERAL = re.compile(r"layers\.[1-9]\d*\.")  # weights of a second layer
VERIFIER = ("verifier_norm.weight", "verifier_lm_head.weight")  # copies of the target's
PROJECTION = "lm_head.weight"
EMBEDDING = "embed_tokens.weight"
OFFSETS = "d2t"  # of each drafted token, its id in the target's vocabulary minus its index
TARGETS = "t2d"  # flags over the target's vocabulary: which tokens can be drafted
LAYERS = "eagle_aux_hidden_state_layer_ids"
UNREAD = ("norm_before_fc", "norm_output")  # refused: norms that vLLM supports
OTHER = "take a drafter that was trained for this target"
Weights = dict[str, Tensor]


def load_head(spec: ModelSpec, target: LanguageModel) -> Eagle3Drafter:
    """Load a head for `target`, on its device and in its dtype."""
    shape, layers, weights = check_head(spec, target)
    head = Eagle3Module(shape, len(layers), fc_norm=bool(shape.get("fc_norm")))
    head.load_state_dict({name: weights[name] for name in head.state_dict()})
    device = target.device
    dtype = target.dtype
    embedding = None
    if EMBEDDING in weights:
        embedding = nn.Embedding.from_pretrained(weights[EMBEDDING].to(device, dtype))
    head = head.eval().requires_grad_(False).to(device, dtype)
    projection = like_target(target, linear_of(weights[PROJECTION].to(device, dtype), None))
    use_fast_products(head, projection)
    return Eagle3Drafter(
        target,
        head,
        projection,
        layers,
        spec.settings.label,
        drafted=_drafted(weights).to(device) if OFFSETS in weights else None,
        vocab_size=target.vocab_size,
        embedding=embedding,
    )


def check_head(
    spec: ModelSpec, target: LanguageModel
) -> tuple[dict[str, Any], tuple[int, ...], Weights]:
    """Check that a head can draft for `target`, which may be loaded without weights.

    Returns:
        The head's config.json; which of the target's hidden states it reads, as numbers of layers
        before them; and its weights.

    Raises:
        PipelineError: its files can't be read, or do not fit the target.
    """
    key = spec.key
    path = spec.settings.path
    folder = model_folder(path, spec.identity.commit, HEAD_FILES, f"{key}.path")
    config = _config(folder, spec)
    layers = _layers(config, spec, target)
    wanted = target.module.config.get_text_config()
    for name in ("hidden_size", "vocab_size"):
        if config.get(name) != getattr(wanted, name):
            raise PipelineError(
                f"{key}: the head's {name} is {config.get(name)}, {target.label} has "
                f"{getattr(wanted, name)}: {OTHER}"
            )
    if not 0 <= min(layers) <= max(layers) <= wanted.num_hidden_layers:
        raise PipelineError(
            f"{key}: the head reads hidden states after {layers} layers, {target.label} has "
            f"{wanted.num_hidden_layers}: {OTHER}"
        )
    try:
        with torch.device("meta"):
            head = Eagle3Module(config, len(layers), fc_norm=bool(config.get("fc_norm")))
        weights = _weights(folder)
    except Exception as error:  # libraries raise many kinds; all mean the same to a user
        raise PipelineError(
            f"{key}.path={path}: its weights can't be read: {type(error).__name__}: "
            f"{first_line(error)}"
        ) from error
    if several := sorted(filter(SEVERAL.match, weights)):
        raise PipelineError(
            f"{key}.path={path}: it has several layers ({several[0]}): heads of one layer are read"
        )
    d = wanted.hidden_size
    rows = wanted.vocab_size
    drafted = config.get("draft_vocab_size") or rows
    expected = {name: list(weight.shape) for name, weight in head.state_dict().items()}
    expected |= {PROJECTION: [drafted, d]} | ({OFFSETS: [drafted]} if drafted != rows else {})
    optional = {EMBEDDING: [rows, d], OFFSETS: [drafted], TARGETS: [rows]}
    expected |= {name: shape for name, shape in optional.items() if name in weights}
    shapes = {name: list(weight.shape) for name, weight in weights.items()}
    wrong = sorted(n for n in expected.keys() | shapes if expected.get(n) != shapes.get(n))
    if wrong:
        raise PipelineError(
            f"{key}.path={path}: {len(wrong)} weights are missing, unknown or not of the shape in "
            f"config.json ({', '.join(wrong[:3])}): {OTHER}"
        )
    marked = TARGETS in weights and bool(weights[TARGETS].any())
    if OFFSETS in weights and drafted != rows and not marked and not weights[OFFSETS].any():
        raise PipelineError(
            f"{key}.path={path}: {OFFSETS} is all zeros, as before training, so the head would "
            f"draft the first {drafted} ids: take a trained head, or add {TARGETS} if these are "
            "its tokens"
        )
    if OFFSETS in weights and not _names_tokens(weights, target.vocab_size):
        raise PipelineError(
            f"{key}.path={path}: {OFFSETS} does not name increasing ids below {target.vocab_size} "
            f"(those that {TARGETS} marks): its files are damaged"
        )
    return config, layers, weights


def _config(folder: Path, spec: ModelSpec) -> dict[str, Any]:
    """Return the entries of a head's config.json in EAGLE's layout, without those that are null."""
    try:
        read = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config = {name: value for name, value in read.items() if value is not None}
        kind = str(config.get(SPECULATORS, "eagle3"))
        names = " ".join([kind, *config.get("architectures", ()), config.get("model_type", "")])
        names = names.lower()
        for name, title in OTHERS.items():
            if name in names:
                raise ValueError(f"it is of the kind {title}, whose drafts are not read here")
        if kind != "eagle3":
            raise ValueError(f"{SPECULATORS} is {kind}, eagle3 is read")
        if SPECULATORS in config or SHAPE in config:
            config = _of_speculators(config)
        elif not ("eagle3" in names or "draft_vocab_size" in config):
            raise ValueError(f"model_type is {config['model_type']}")
        if config.get("model_type", "llama") != "llama":
            raise ValueError(f"its layer is that of a {config['model_type']}: Llama's is read")
        settings = config.pop("eagle_config", {}) | config
        settings[LAYERS] = [int(layer) for layer in settings.get(LAYERS, ())]
        if unread := [name for name in UNREAD if settings.get(name)]:
            raise ValueError(f"{unread[0]} is not read")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PipelineError(
            f"{spec.key}.path={spec.settings.path} is no head: {type(error).__name__}: "
            f"{first_line(error)}. Wanted: the config.json of an EAGLE-3 head in EAGLE's own "
            f"layout (a Llama of one layer with draft_vocab_size, as SpecForge writes it) or in "
            f"that of vLLM's speculators, or {spec.key}.head=null for a language model"
        ) from error
    return settings


def _of_speculators(config: dict[str, Any]) -> dict[str, Any]:
    """Convert a config.json of speculators to EAGLE's layout."""
    if RESIDUAL not in config:  # vLLM takes true, speculators false
        raise ValueError(f"{RESIDUAL} is not given, and its default depends on the engine: add it")
    shape = {"model_type": "llama"} | config[SHAPE]
    with_defaults = LlamaConfig(**shape).to_dict() | shape
    return with_defaults | {name: config[name] for name in BESIDE_SHAPE if name in config}


def _layers(config: dict[str, Any], spec: ModelSpec, target: LanguageModel) -> tuple[int, ...]:
    """Return which of the target's hidden states a head reads, as numbers of layers before them."""
    # vLLM counts the layers before a state. SpecForge and SGLang give the index of the layer that
    # outputs it, one less. Their defaults differ, and only a count can equal the number of layers.
    assert spec.head is not None
    depth = target.module.config.get_text_config().num_hidden_layers
    after = (2, depth // 2, depth - 3)
    ids = tuple(config[LAYERS]) or after
    counting = spec.head.layer_ids or ("after" if SPECULATORS in config else None)
    if counting is None and (ids == after or max(ids) >= depth):
        counting = "after"
    elif counting is None and ids[0] == 1:
        counting = "output"
    if counting is None:
        raise PipelineError(
            f"{spec.key}: {LAYERS} of the head is {list(ids)}, and its files do not tell what it "
            f"counts: give {spec.key}.head.layer_ids=after (so many layers, as vLLM does) or "
            "output (the output of the layer of this index, as SGLang and SpecForge do)"
        )
    return ids if counting == "after" or not config[LAYERS] else tuple(layer + 1 for layer in ids)


def _weights(folder: Path) -> Weights:
    check_one_form(folder)
    if (folder / WHOLE).is_file():
        weights = load_file(folder / WHOLE)
    else:
        weights = torch.load(folder / PICKLED, map_location="cpu", weights_only=True)
    named = {name.removeprefix("model."): weight for name, weight in weights.items()}
    return {
        re.sub(r"^layers\.0\.", "midlayer.", name): weight
        for name, weight in named.items()
        if name not in VERIFIER
    }


def _names_tokens(weights: Weights, size: int) -> bool:
    """Whether d2t gives increasing ids of a vocabulary, and t2d marks the same ids."""
    ids = _drafted(weights)
    inside = bool(ids.min() >= 0) and bool(ids.max() < size) and bool((ids.diff() > 0).all())
    marked = TARGETS not in weights or torch.equal(weights[TARGETS].nonzero()[:, 0], ids)
    return inside and marked and not ids.dtype.is_floating_point


def _drafted(weights: Weights) -> Tensor:
    return torch.arange(len(weights[OFFSETS])) + weights[OFFSETS]

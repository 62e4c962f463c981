"""The files of a head, ours or of a published EAGLE-3: checked against its target, and loaded.

Three layouts are read, all as config.json and model.safetensors (or pytorch_model.bin):

- Ours (`save_head`): model_type feature_head, the layer's shape and the target's layers that it
  reads; embedding and projection are the target's.
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

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pipeline.errors import PipelineError, first_line
from pipeline.models.few_rows import use_few_rows
from pipeline.models.heads.feature_head import FeatureHead
from pipeline.models.heads.hidden_drafter import HiddenDrafter, like_target, projection_of
from pipeline.models.language_model import LanguageModel, linear_of
from pipeline.plan.specs import UsedModel
from pipeline.store.hub import HEAD_FILES, PICKLED, hub_files
from pipeline.store.identity import local_path

KIND = "feature_head"  # model_type of ours
WEIGHTS = "model.safetensors"
PROJECTION, EMBEDDING = "lm_head.weight", "embed_tokens.weight"
OFFSETS = "d2t"  # by drafted token, how far its id in the target's vocabulary is from its index
TARGETS = "t2d"
VERIFIER = ("verifier_lm_head.weight", "verifier_norm.weight")  # the target's, for training
LLAMA_KEYS = (  # keys of a Llama's config.json that decide what its layer computes
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "hidden_act"),
    *("max_position_embeddings", "vocab_size"),
)


@dataclass(frozen=True)
class HeadFiles:
    """What the config.json of a head says.

    Attributes:
        folder: of its files.
        shape: of its layer, as in a Llama's.
        layers: after how many of the target's layers it reads a hidden state; empty where a
            published head leaves them to the depth of its target.
        width: of the target's hidden states.
        rows: of a published head's own projection; None for ours, which uses the target's.
        norm_before_residual: as of `pipeline.models.heads.feature_head.Layer`.
    """

    folder: Path
    shape: dict[str, Any]
    layers: tuple[int, ...]
    width: int
    rows: int | None = None
    norm_before_residual: bool = False

    def layers_of(self, target: LanguageModel) -> tuple[int, ...]:
        """Return the layers of this target."""
        depth = target.module.config.get_text_config().num_hidden_layers
        return self.layers or (2, depth // 2, depth - 3)

    def empty(self, count: int) -> FeatureHead:
        """Return a head of this shape that reads `count` hidden states, with random weights."""
        return FeatureHead(self.shape, count, self.width, self.norm_before_residual)


def read_head(path: str, commit: str | None, key: str) -> HeadFiles:
    """Return what the config.json in `path` says; `key` is the configuration key for errors.

    Raises:
        PipelineError: it is no head's.
    """
    folder = local_path(path) or hub_files(path, commit, list(HEAD_FILES), f"{key}.path")
    try:
        read = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        names = " ".join(read.get("architectures") or ()).lower()
        of_speculators = read.get("speculators_model_type") == "eagle3"
        if of_speculators or "eagle3" in names or "draft_vocab_size" in read:
            return _published(folder, read, of_speculators)
        if read["model_type"] != KIND:
            raise ValueError(f"model_type is {read['model_type']}")
        shape, layers = dict(read["shape"]), tuple(map(int, read["layers"]))
        if not layers or min(layers) < 0 or "hidden_size" not in shape:
            raise ValueError("layers is empty or negative, or shape lacks hidden_size")
        return HeadFiles(folder, shape, layers, shape["hidden_size"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PipelineError(
            f"{key}.path={path} is no head: {type(error).__name__}: {first_line(error)}. Wanted: "
            f"config.json with model_type {KIND}, shape and layers, or that of a published EAGLE-3 "
            f"head; or {key}.head=null for a language model"
        ) from error


def _published(folder: Path, config: Mapping[str, Any], of_speculators: bool) -> HeadFiles:
    inner = config["transformer_layer_config"] if of_speculators else config
    if inner.get("num_hidden_layers", 1) != 1:
        raise ValueError(f"it has {inner['num_hidden_layers']} layers: only heads of one are read")
    if inner.get("model_type", "llama") != "llama":
        raise ValueError(f"its layer is that of a {inner['model_type']}: only a Llama's is read")
    shape = {key: inner[key] for key in LLAMA_KEYS if inner.get(key) is not None}
    said = "eagle_aux_hidden_state_layer_ids"
    layers = config.get(said) or (config.get("eagle_config") or {}).get(said) or ()
    return HeadFiles(
        folder,
        shape,
        tuple(map(int, layers)),
        width=int(config.get("target_hidden_size") or shape["hidden_size"]),
        rows=int(config.get("draft_vocab_size") or shape["vocab_size"]),
        norm_before_residual=bool(
            config.get("norm_before_residual", inner.get("norm_before_residual", False))
        ),
    )


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


def check_head(
    files: HeadFiles, target: LanguageModel, vocabulary: str, key: str
) -> dict[str, Tensor]:
    """Check that a head can draft for `target`, and return its weights.

    Args:
        files: of the head.
        target: loaded, or without weights.
        vocabulary: that is asked for, full or reduced.
        key: the drafter's configuration key, for errors.

    Raises:
        PipelineError: it was made for a model of another width, depth or vocabulary, its weights
            are not those of its shape, or it does not name its tokens.
    """
    config = target.module.config.get_text_config()
    other = "take a drafter that was trained for this target"
    layers, depth = files.layers_of(target), config.num_hidden_layers
    rows, ours = files.shape.get("vocab_size"), files.rows is None
    most = max(layers) if files.layers else "2, L/2 and L - 3 of L"
    for fits, what, has in (
        (files.width == config.hidden_size, f"reads hidden states of {files.width} numbers",
         config.hidden_size),
        (0 <= min(layers) <= max(layers) <= depth, f"reads hidden states after {most} layers",
         depth),
        (ours or rows == config.vocab_size, f"is for a vocabulary of {rows} tokens",
         config.vocab_size),
    ):  # fmt: skip
        if not fits:
            raise PipelineError(f"{key}: the head {what}, {target.label} has {has}: {other}")
    try:
        with torch.device("meta"):
            head = files.empty(len(layers))
        weights = read_weights(files.folder)
    except Exception as error:  # libraries raise many kinds; all mean the same to a user
        raise PipelineError(
            f"{key}.path={files.folder}: its weights can't be read: {type(error).__name__}: "
            f"{first_line(error)}"
        ) from error
    shapes = {name: list(weight.shape) for name, weight in weights.items()}
    expected = {name: list(weight.shape) for name, weight in head.state_dict().items()}
    if ours:
        shapes.pop(OFFSETS, None)
    else:
        d = files.shape["hidden_size"]
        expected[PROJECTION] = [files.rows, d]
        if files.width != d or EMBEDDING in shapes:  # else it is the target's
            expected[EMBEDDING] = [rows, d]
        if files.rows != rows or OFFSETS in shapes:
            expected[OFFSETS] = [files.rows]
        if TARGETS in shapes:
            expected[TARGETS] = [rows]
    wrong = sorted(n for n in expected.keys() | shapes if expected.get(n) != shapes.get(n))
    if wrong:
        again = "export the head again" if ours else other
        raise PipelineError(
            f"{key}.path={files.folder}: {len(wrong)} weights are missing, unknown or not of the "
            f"shape in config.json ({', '.join(wrong[:3])}): {again}"
        )
    if ours and vocabulary == "reduced" and OFFSETS not in weights:
        raise PipelineError(
            f"{key}.head.vocabulary=reduced: {files.folder} names no tokens ({OFFSETS}): give full"
        )
    if OFFSETS in weights and (not ours or vocabulary == "reduced"):
        _check_drafted(weights, target, f"{key}.path={files.folder}")
    if not ours and vocabulary == "full" and files.rows != rows:
        raise PipelineError(
            f"{key}.head.vocabulary=full: the head projects on {files.rows} of {rows} tokens: "
            "give reduced"
        )
    return weights


def _check_drafted(weights: Mapping[str, Tensor], target: LanguageModel, where: str) -> None:
    offsets, marked = weights[OFFSETS], weights.get(TARGETS)
    named = offsets.ndim == 1 and len(offsets) > 0 and not offsets.dtype.is_floating_point
    if named:
        ids = drafted_ids(offsets)
        named = bool(ids.min() >= 0 and ids.max() < target.vocab_size and (ids.diff() > 0).all())
    if not named:
        raise PipelineError(
            f"{where}: {OFFSETS} does not name increasing ids below {target.vocab_size}, which "
            f"{target.label} has: its files are damaged"
        )
    if marked is not None and not torch.equal(marked.nonzero()[:, 0], ids):
        raise PipelineError(
            f"{where}: {TARGETS} marks other tokens than {OFFSETS} names: its files are damaged"
        )


def drafted_ids(offsets: Tensor) -> Tensor:
    """Return the ids (n,) of tokens from how far each is from its index."""
    return torch.arange(len(offsets)) + offsets


def load_head(used: UsedModel, target: LanguageModel) -> HiddenDrafter:
    """Load a head for `target`, on its device and in its dtype.

    Raises:
        PipelineError: it is no head, belongs to another target, or its files are damaged.
    """
    assert used.spec.head is not None
    files = read_head(used.run.path, used.spec.identity.commit, used.key)
    vocabulary, label, key = used.spec.head.vocabulary, used.run.label, used.key
    weights = check_head(files, target, vocabulary, key)
    layers = files.layers_of(target)
    head = files.empty(len(layers))
    head.load_state_dict({name: weights[name] for name in head.state_dict()})
    device, dtype = target.device, target.module.dtype
    drafted = embedding = None
    if OFFSETS in weights and (files.rows is not None or vocabulary == "reduced"):
        drafted = drafted_ids(weights[OFFSETS]).to(device)
    if files.rows is None:
        projection = projection_of(target, drafted)
    else:
        projection = like_target(target, linear_of(weights[PROJECTION].to(device, dtype), None))
    if EMBEDDING in weights:
        embedding = nn.Embedding.from_pretrained(weights[EMBEDDING].to(device, dtype))
    parts = nn.ModuleList([head.eval().requires_grad_(False).to(device, dtype), projection])
    use_few_rows(parts, halves=True)
    made = HiddenDrafter(
        target,
        head=head,
        projection=parts[1],
        layers=layers,
        label=label,
        drafted=drafted,
        vocab_size=target.vocab_size,
        embedding=embedding,
        own_projection=files.rows is not None,
    )
    if not made.gives_numbers():
        raise PipelineError(
            f"{key}: {label} gives NaN or infinite logits behind {target.label}: its weights are "
            "damaged, too large, or of another target. Fetch or export the head again"
        )
    return made


def save_head(
    head: FeatureHead,
    shape: Mapping[str, Any],
    layers: tuple[int, ...],
    drafted: Tensor,
    directory: Path,
) -> None:
    """Write a head, in bfloat16, as a directory that `load_head` reads."""
    directory.mkdir(parents=True, exist_ok=True)
    weights = {name: value.bfloat16() for name, value in head.state_dict().items()}
    save_file(weights | {OFFSETS: drafted - torch.arange(len(drafted))}, directory / WEIGHTS)
    described = {"model_type": KIND, "layers": list(layers), "shape": dict(shape)}
    (directory / "config.json").write_text(json.dumps(described, indent=2) + "\n")

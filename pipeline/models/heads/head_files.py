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
from pipeline.store.identity import HEAD_FILES, PICKLED, hub_files, local_path

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
        raise ValueError(f"it has {inner['num_hidden_layers']} layers: heads of one are read")
    if inner.get("model_type", "llama") != "llama":
        raise ValueError(f"its layer is that of a {inner['model_type']}: a Llama's is read")
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


def _weights(folder: Path) -> dict[str, Tensor]:
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


def check_head(files: HeadFiles, target: LanguageModel, vocabulary: str, key: str) -> None:
    """Check that a head can draft for `target`.

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
    if files.width != config.hidden_size:
        raise PipelineError(
            f"{key}: the head reads hidden states of {files.width} numbers, {target.label} has "
            f"{config.hidden_size}: {other}"
        )
    layers = files.layers_of(target)
    if max(layers) > config.num_hidden_layers or min(layers) < 0:
        most = f"{max(layers)}" if files.layers else "2, L/2 and L - 3 of L"
        raise PipelineError(
            f"{key}: the head reads hidden states after {most} layers, {target.label} has "
            f"{config.num_hidden_layers}: {other}"
        )
    rows = files.shape.get("vocab_size")
    if files.rows is not None and rows != config.vocab_size:
        raise PipelineError(
            f"{key}: the head is for a vocabulary of {rows} tokens, {target.label} has "
            f"{config.vocab_size}: {other}"
        )
    try:
        with torch.device("meta"):
            head = files.empty(len(layers))
        weights = _weights(files.folder)
    except Exception as error:  # libraries raise many kinds; all mean the same to a user
        raise _unreadable(files, key, error) from error
    shapes = {name: list(weight.shape) for name, weight in weights.items()}
    expected = {name: list(weight.shape) for name, weight in head.state_dict().items()}
    if files.rows is None:
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
        again = "export the head again" if files.rows is None else other
        raise PipelineError(
            f"{key}.path={files.folder}: {len(wrong)} weights are missing, unknown or not of the "
            f"shape in config.json ({', '.join(wrong[:3])}): {again}"
        )
    if files.rows is not None or vocabulary == "reduced":
        _check_vocabulary(files, weights, target, vocabulary, key)


def _check_vocabulary(
    files: HeadFiles, weights: Mapping[str, Tensor], target: LanguageModel, asked: str, key: str
) -> None:
    offsets, ours = weights.get(OFFSETS), files.rows is None
    if offsets is None:
        if ours:
            raise PipelineError(
                f"{key}.head.vocabulary=reduced: {files.folder} names no tokens ({OFFSETS}): give "
                "full"
            )
        return  # its projection has a row for every token
    if offsets.dtype.is_floating_point or offsets.ndim != 1:
        raise PipelineError(
            f"{key}.path={files.folder}: {OFFSETS} holds {str(offsets.dtype)[6:]} of shape "
            f"{tuple(offsets.shape)}, a list of integers is expected: its files are damaged"
        )
    ids, rows = drafted_ids(offsets), target.module.config.get_text_config().vocab_size
    if not len(ids) or ids.min() < 0 or ids.max() >= target.vocab_size or (ids.diff() < 1).any():
        raise PipelineError(
            f"{key}.head.vocabulary=reduced: {OFFSETS} in {files.folder} does not name increasing "
            f"ids below {target.vocab_size}, which {target.label} has: "
            + ("give full" if ours else "its files are damaged")
        )
    marked = weights.get(TARGETS)
    if marked is not None and not torch.equal(marked.nonzero()[:, 0], ids):
        raise PipelineError(
            f"{key}.path={files.folder}: {TARGETS} marks other tokens than {OFFSETS} names: its "
            "files are damaged"
        )
    if asked == "full" and len(ids) < rows:
        raise PipelineError(
            f"{key}.head.vocabulary=full: the head projects on {len(ids)} of {rows} tokens: give "
            "reduced"
        )


def drafted_ids(offsets: Tensor) -> Tensor:
    """Return the ids (n,) of tokens from how far each is from its index."""
    return torch.arange(len(offsets)) + offsets


def _unreadable(files: HeadFiles, key: str, error: Exception) -> PipelineError:
    return PipelineError(
        f"{key}.path={files.folder}: its weights can't be read: {type(error).__name__}: "
        f"{first_line(error)}"
    )


def load_head(
    config: Mapping[str, Any], settings: Mapping[str, Any], key: str, target: LanguageModel
) -> HiddenDrafter:
    """Load a head for `target`, on its device and in its dtype.

    Args:
        config: what determines its numbers: commit (of the hub), head (vocabulary).
        settings: path and label.
        key: its configuration key, for errors.
        target: loaded.

    Raises:
        PipelineError: it is no head, belongs to another target, or its files are damaged.
    """
    files = read_head(settings["path"], config.get("commit"), key)
    vocabulary, layers, label = (
        config["head"]["vocabulary"],
        files.layers_of(target),
        settings["label"],
    )
    check_head(files, target, vocabulary, key)
    head = files.empty(len(layers))
    try:
        beside = read_weights(head, files.folder)
    except Exception as error:  # as above
        raise _unreadable(files, key, error) from error
    broken = [
        name
        for name, weight in (dict(head.named_parameters()) | beside).items()
        if not weight.isfinite().all()
    ]
    if broken:
        raise PipelineError(f"{key}: {label} has NaN or infinite weights ({broken[0]})")
    device, dtype = target.device, target.module.dtype
    drafted = embedding = None
    if OFFSETS in beside and (files.rows is not None or vocabulary == "reduced"):
        drafted = drafted_ids(beside[OFFSETS]).to(device)
    if files.rows is None:
        projection = projection_of(target, drafted)
    else:
        projection = like_target(target, linear_of(beside[PROJECTION].to(device, dtype), None))
    if EMBEDDING in beside:
        embedding = nn.Embedding.from_pretrained(beside[EMBEDDING].to(device, dtype))
    parts = nn.ModuleList([head.eval().requires_grad_(False).to(device, dtype), projection])
    use_few_rows(parts, halves=True)
    size = target.vocab_size
    made = HiddenDrafter(target, head, parts[1], layers, label, drafted, size, embedding)
    if not made.gives_numbers():
        raise PipelineError(
            f"{key}: {label} gives NaN or infinite logits behind {target.label}: its weights are "
            "finite and too large, or of another target. Fetch or export the head again"
        )
    return made


def read_weights(head: FeatureHead, folder: Path) -> dict[str, Tensor]:
    """Read the weights of `head`; return what stands beside them: projection, embedding, d2t."""
    weights = _weights(folder)
    names = (PROJECTION, EMBEDDING, OFFSETS, TARGETS)
    beside = {name: weights.pop(name) for name in names if name in weights}
    head.load_state_dict(weights)
    return beside


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

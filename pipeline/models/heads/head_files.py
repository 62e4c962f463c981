"""The files of a head, ours or of a published EAGLE-3: checked against its target, and loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pipeline.errors import PipelineError, first_line
from pipeline.models.few_rows import use_few_rows
from pipeline.models.heads import eagle3_files
from pipeline.models.heads.eagle3_files import EMBEDDING, PROJECTION, TARGETS, Eagle3
from pipeline.models.heads.feature_head import FeatureHead
from pipeline.models.heads.hidden_drafter import HiddenDrafter, like_target, projection_of
from pipeline.models.language_model import LanguageModel, linear_of
from pipeline.store.identity import HEAD_FILES, hub_files, local_path

KIND = "feature_head"  # model_type in config.json
WEIGHTS = "model.safetensors"
DRAFTED = "d2t"  # by drafted token, how far its id in the target's vocabulary is from its index


@dataclass(frozen=True)
class HeadFiles:
    """What the config.json of a head says."""

    folder: Path
    shape: dict[str, Any]  # of its layer, as in a Llama's
    layers: tuple[int, ...]  # after how many of the target's layers it reads a hidden state
    eagle3: Eagle3 | None = None  # of a published head

    @property
    def width(self) -> int:
        """The width of the target's hidden states."""
        return self.shape["hidden_size"] if self.eagle3 is None else self.eagle3.width

    def layers_of(self, target: LanguageModel) -> tuple[int, ...]:
        """Return the layers; a published head may leave them to the depth of its target."""
        depth = target.module.config.get_text_config().num_hidden_layers
        return self.layers or eagle3_files.default_layers(depth)

    def empty(self, count: int) -> FeatureHead:
        """Return a head of this shape that reads `count` hidden states, with random weights."""
        residual = self.eagle3 is not None and self.eagle3.norm_before_residual
        return FeatureHead(self.shape, count, self.width, residual)


def read_head(path: str, commit: str | None, key: str) -> HeadFiles:
    """Return what the config.json in `path` says; `key` is the configuration key for errors.

    Raises:
        PipelineError: it is no head's.
    """
    folder = local_path(path) or hub_files(path, commit, list(HEAD_FILES), f"{key}.path")
    try:
        read = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if (found := eagle3_files.published(read)) is not None:
            return HeadFiles(folder, *found)
        if read["model_type"] != KIND:
            raise ValueError(f"model_type is {read['model_type']}")
        shape, layers = dict(read["shape"]), tuple(map(int, read["layers"]))
        if not layers or min(layers) < 0 or "hidden_size" not in shape:
            raise ValueError("layers is empty or negative, or shape lacks hidden_size")
        return HeadFiles(folder, shape, layers)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PipelineError(
            f"{key}.path={path} is no head: {type(error).__name__}: {first_line(error)}. Wanted: "
            f"config.json with model_type {KIND}, shape and layers, or that of a published EAGLE-3 "
            f"head; or {key}.head=null for a language model"
        ) from error


def check_head(files: HeadFiles, target: LanguageModel, vocabulary: str, key: str) -> None:
    """Check, before its weights are read, that a head can draft for `target`.

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
    wanted, given = config.hidden_size, files.width
    other = "take a drafter that was trained for this target"
    if wanted != given:
        raise PipelineError(
            f"{key}: the head reads hidden states of {given} numbers, {target.label} has {wanted}: "
            f"{other}"
        )
    layers = files.layers_of(target)
    if max(layers) > config.num_hidden_layers or min(layers) < 0:
        most = f"{max(layers)}" if files.layers else "2, L/2 and L - 3 of L"
        raise PipelineError(
            f"{key}: the head reads hidden states after {most} layers, {target.label} has "
            f"{config.num_hidden_layers}: {other}"
        )
    rows = files.shape.get("vocab_size")
    if files.eagle3 is not None and rows != config.vocab_size:
        raise PipelineError(
            f"{key}: the head is for a vocabulary of {rows} tokens, {target.label} has "
            f"{config.vocab_size}: {other}"
        )
    try:
        with torch.device("meta"):
            head = files.empty(len(layers))
        shapes, beside = _stored(files)
    except Exception as error:  # libraries raise many kinds; all mean the same to a user
        raise _unreadable(files, key, error) from error
    expected = {name: list(weight.shape) for name, weight in head.state_dict().items()}
    expected |= _expected_beside(files, shapes)
    if files.eagle3 is None:
        shapes.pop(DRAFTED, None)
    wrong = sorted(n for n in expected.keys() | shapes if expected.get(n) != shapes.get(n))
    if wrong:
        again = "export the head again" if files.eagle3 is None else other
        raise PipelineError(
            f"{key}.path={files.folder}: {len(wrong)} weights are missing, unknown or not of the "
            f"shape in config.json ({', '.join(wrong[:3])}): {again}"
        )
    _check_vocabulary(files, beside, target, vocabulary, key)


def _stored(files: HeadFiles) -> tuple[dict[str, list[int]], dict[str, Tensor]]:
    """Return the shapes of all weights, and the small ones that say which tokens are drafted."""
    if files.eagle3 is not None:
        shapes = eagle3_files.weight_shapes(files.folder)
        return shapes, eagle3_files.read_weights(files.folder, (DRAFTED, TARGETS))
    with safe_open(files.folder / WEIGHTS, "pt") as weights:
        shapes = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
        return shapes, {DRAFTED: weights.get_tensor(DRAFTED)} if DRAFTED in shapes else {}


def _expected_beside(files: HeadFiles, shapes: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the shapes of what stands beside the head's own weights; of ours nothing."""
    if files.eagle3 is None:
        return {}
    d, rows, drafted = files.shape["hidden_size"], files.shape["vocab_size"], files.eagle3.drafted
    needed = {PROJECTION: [drafted, d]}
    if files.width != d or EMBEDDING in shapes:  # else it is the target's
        needed[EMBEDDING] = [rows, d]
    if drafted != rows or DRAFTED in shapes:
        needed[DRAFTED] = [drafted]
    return needed | ({TARGETS: [rows]} if TARGETS in shapes else {})


def _check_vocabulary(
    files: HeadFiles, beside: Mapping[str, Tensor], target: LanguageModel, asked: str, key: str
) -> None:
    offsets = beside.get(DRAFTED)
    if files.eagle3 is None and asked == "full":
        return
    if offsets is None:
        if files.eagle3 is not None:
            return  # its projection has a row for every token
        raise PipelineError(
            f"{key}.head.vocabulary=reduced: {files.folder} names no tokens ({DRAFTED}): give full"
        )
    if offsets.dtype.is_floating_point or offsets.ndim != 1:
        raise PipelineError(
            f"{key}.path={files.folder}: {DRAFTED} holds {str(offsets.dtype)[6:]} of shape "
            f"{tuple(offsets.shape)}, a list of integers is expected: its files are damaged"
        )
    ids = drafted_ids(offsets)
    rows = target.module.config.get_text_config().vocab_size
    allowed = target.vocab_size
    if not len(ids) or ids.min() < 0 or ids.max() >= allowed or (ids.diff() < 1).any():
        way = "give full" if files.eagle3 is None else "its files are damaged"
        raise PipelineError(
            f"{key}.head.vocabulary=reduced: {DRAFTED} in {files.folder} does not name "
            f"increasing ids below {allowed}, which {target.label} has: {way}"
        )
    if files.eagle3 is None:
        return
    marked = beside.get(TARGETS)
    if marked is not None and not torch.equal(marked.nonzero()[:, 0], ids):
        raise PipelineError(
            f"{key}.path={files.folder}: {TARGETS} marks other tokens than {DRAFTED} names: its "
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
    vocabulary, layers = config["head"]["vocabulary"], files.layers_of(target)
    check_head(files, target, vocabulary, key)
    head = files.empty(len(layers))
    try:
        beside = _read(files, head)
    except Exception as error:  # as above
        raise _unreadable(files, key, error) from error
    projection, embedding = beside.get(PROJECTION), beside.get(EMBEDDING)
    named = {**dict(head.named_parameters()), **beside}
    broken = [name for name, weight in named.items() if not weight.isfinite().all()]
    if broken:
        raise PipelineError(f"{key}: {settings['label']} has NaN or infinite weights ({broken[0]})")
    drafted = None
    if DRAFTED in beside and (files.eagle3 is not None or vocabulary == "reduced"):
        drafted = drafted_ids(beside[DRAFTED]).to(target.device)
    if projection is None:
        rows = projection_of(target, drafted)
    else:
        cast = projection.to(target.device, target.module.dtype)
        rows = like_target(target, linear_of(cast, None))
    own = None
    if embedding is not None:
        own = nn.Embedding.from_pretrained(embedding.to(target.device, target.module.dtype))
    parts = nn.ModuleList([head.eval().requires_grad_(False), rows])
    parts[0].to(target.device, target.module.dtype)
    use_few_rows(parts, halves=True)
    label, size = settings["label"], target.vocab_size
    made = HiddenDrafter(target, head, parts[1], layers, label, drafted, size, own)
    if not made.gives_numbers():
        raise PipelineError(
            f"{key}: {label} gives NaN or infinite logits behind {target.label}: its weights are "
            "finite and too large, or of another target. Fetch or export the head again"
        )
    return made


def _read(files: HeadFiles, head: FeatureHead) -> dict[str, Tensor]:
    """Read the weights of `head`; return what stands beside them."""
    if files.eagle3 is None:
        offsets = read_weights(head, files.folder)
        return {} if offsets is None else {DRAFTED: offsets}
    weights = eagle3_files.read_weights(files.folder)
    weights.pop(TARGETS, None)
    names = (PROJECTION, EMBEDDING, DRAFTED)
    beside = {name: weights.pop(name) for name in names if name in weights}
    head.load_state_dict(weights)
    return beside


def read_weights(head: FeatureHead, folder: Path) -> Tensor | None:
    """Read the weights of `head`; return the offsets of its reduced vocabulary, if it has one."""
    weights = load_file(folder / WEIGHTS)
    offsets = weights.pop(DRAFTED, None)
    head.load_state_dict(weights)
    return offsets


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
    save_file(weights | {DRAFTED: drafted - torch.arange(len(drafted))}, directory / WEIGHTS)
    described = {"model_type": KIND, "layers": list(layers), "shape": dict(shape)}
    (directory / "config.json").write_text(json.dumps(described, indent=2) + "\n")

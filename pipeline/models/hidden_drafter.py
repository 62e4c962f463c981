"""A head on its target: what drafts, its vocabulary, and how it is read from a directory."""

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
from pipeline.models.feature_head import Depths, FeatureHead
from pipeline.models.few_rows import use_few_rows
from pipeline.models.heads import Head, linear_of
from pipeline.models.language_model import LanguageModel
from pipeline.store.identity import MODEL_FILES, hub_files, local_path

KIND = "feature_head"  # model_type in config.json
WEIGHTS = "model.safetensors"
DRAFTED = "d2t"  # by drafted token, how far its id in the target's vocabulary is from its index


@dataclass(frozen=True)
class HeadFiles:
    """What the config.json of a head says."""

    folder: Path
    shape: dict[str, Any]  # of its layer, as in a Llama's
    layers: tuple[int, ...]  # after how many of the target's layers it reads a hidden state


@dataclass(frozen=True)
class HiddenDrafter:
    """A loaded head, ready to draft for its target.

    Attributes:
        target: the model whose hidden states it reads; embedding and projection are its own.
        head: the weights.
        projection: what gives logits: the target's own, or its rows that can be drafted.
        layers: after how many of the target's layers it reads a hidden state.
        label: as printed.
        drafted: (n,) ids of the tokens that can be drafted; None is all.
        vocab_size: the length of a row of logits, as the target's.
    """

    target: LanguageModel
    head: FeatureHead
    projection: nn.Module
    layers: tuple[int, ...]
    label: str
    drafted: Tensor | None
    vocab_size: int

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.target.device

    def embed(self, ids: Tensor) -> Tensor:
        """Return the target's embeddings (..., d) of tokens."""
        embedded: Tensor = self.target.module.get_input_embeddings()(ids)
        return embedded

    def logits(self, outputs: Tensor) -> Tensor:
        """Return logits (..., V) of the head's outputs (..., d); -inf where nothing is drafted."""
        given: Tensor = self.projection(self.head.norm(outputs))
        if self.drafted is None:
            return given[..., : self.vocab_size]
        logits = given.new_full((*given.shape[:-1], self.vocab_size), -torch.inf)
        logits[..., self.drafted] = given
        return logits

    def memory_bytes(self) -> int:
        """Bytes of its own weights, and of the rows of the projection that it reads."""
        parts = (*self.head.parameters(), *self.projection.parameters())
        return sum(parameter.nbytes for parameter in parts)

    def cache_bytes(self) -> int:
        """Bytes of the keys and values of one token."""
        layer = self.head.midlayer.self_attn
        width = 2 * layer.k_proj.out_features * self.head.midlayer.groups
        return width * layer.k_proj.weight.element_size()


def projection_of(target: LanguageModel, drafted: Tensor | None) -> nn.Module:
    """Return the output projection of `target`, or a copy of the rows `drafted` (n,) of it."""
    given = target.module.get_output_embeddings()
    if drafted is None:
        return given
    own = given.projection if isinstance(given, Head) else given
    rows = linear_of(own.weight[drafted], None if own.bias is None else own.bias[drafted])
    return Head(rows, given.dtype) if isinstance(given, Head) else rows


class GivenText:
    """Reads given texts with a head, a block of tokens at a time, at depths 1 to D of a draft."""

    def __init__(self, model: HiddenDrafter, depth: int) -> None:
        """Read at `depth` depths."""
        self._model = model
        self._depths = Depths(model.head, depth)
        self._hidden: Tensor | None = None  # (B, 1, layers, d) of the last token
        self._real: Tensor | None = None  # (B, 1) whether it was no padding

    def read(self, ids: Tensor, hidden: Tensor, positions: Tensor, real: Tensor) -> list[Tensor]:
        """Return the outputs (B, n, d) of each depth after the next n tokens of each text.

        Args:
            ids: (B, n) the tokens.
            hidden: (B, n, layers, d) the target's hidden states after each of them.
            positions: (B, n) of the tokens in their text.
            real: (B, n) false for padding.
        """
        before = torch.zeros_like(hidden[:, :1]) if self._hidden is None else self._hidden
        began = torch.zeros_like(real[:, :1]) if self._real is None else self._real
        self._hidden, self._real = hidden[:, -1:], real[:, -1:]
        return self._depths.read(
            self._model.embed(ids),
            torch.cat([before, hidden[:, :-1]], 1),
            positions,
            real & torch.cat([began, real[:, :-1]], 1),
        )


def read_head(path: str, commit: str | None, key: str) -> HeadFiles:
    """Return what the config.json in `path` says; `key` is the configuration key for errors.

    Raises:
        PipelineError: it is no head's.
    """
    folder = local_path(path) or hub_files(path, commit, list(MODEL_FILES), f"{key}.path")
    try:
        read = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if read["model_type"] != KIND:
            raise ValueError(f"model_type is {read['model_type']}")
        shape, layers = dict(read["shape"]), tuple(map(int, read["layers"]))
        if not layers or min(layers) < 0 or "hidden_size" not in shape:
            raise ValueError("layers is empty or negative, or shape lacks hidden_size")
        return HeadFiles(folder, shape, layers)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PipelineError(
            f"{key}.path={path} is no head: {type(error).__name__}: {first_line(error)}. Wanted: "
            f"config.json with model_type {KIND}, shape and layers; or {key}.head=null for a "
            "language model"
        ) from error


def check_head(files: HeadFiles, target: LanguageModel, vocabulary: str, key: str) -> None:
    """Check, before its weights are read, that a head can draft for `target`.

    Args:
        files: of the head.
        target: loaded, or without weights.
        vocabulary: that is asked for, full or reduced.
        key: the drafter's configuration key, for errors.

    Raises:
        PipelineError: it was made for a model of another width or depth, its weights are not
            those of its shape, or it does not name its tokens.
    """
    config = target.module.config.get_text_config()
    wanted, given = config.hidden_size, files.shape["hidden_size"]
    if wanted != given:
        raise PipelineError(
            f"{key}: the head reads hidden states of {given} numbers, {target.label} has {wanted}: "
            "take a drafter that was trained for this target"
        )
    if max(files.layers) > config.num_hidden_layers:
        raise PipelineError(
            f"{key}: the head reads hidden states after {max(files.layers)} layers, {target.label} "
            f"has {config.num_hidden_layers}: take a drafter that was trained for this target"
        )
    try:
        with torch.device("meta"):
            head = FeatureHead(files.shape, len(files.layers))
        with safe_open(files.folder / WEIGHTS, "pt") as weights:
            shapes = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
            offsets = weights.get_tensor(DRAFTED) if DRAFTED in shapes else None
    except Exception as error:  # libraries raise many kinds; all mean the same to a user
        raise _unreadable(files, key, error) from error
    expected = {name: list(weight.shape) for name, weight in head.state_dict().items()}
    shapes.pop(DRAFTED, None)
    wrong = sorted(n for n in expected.keys() | shapes if expected.get(n) != shapes.get(n))
    if wrong:
        raise PipelineError(
            f"{key}.path={files.folder}: {len(wrong)} weights are missing, unknown or not of the "
            f"shape in config.json ({', '.join(wrong[:3])}): export the head again"
        )
    if vocabulary == "reduced":
        if offsets is None:
            raise PipelineError(
                f"{key}.head.vocabulary=reduced: {files.folder} names no tokens ({DRAFTED}): "
                "give full"
            )
        ids = drafted_ids(offsets)
        if (
            not len(ids)
            or ids.min() < 0
            or ids.max() >= target.vocab_size
            or (ids.diff() < 1).any()
        ):
            raise PipelineError(
                f"{key}.head.vocabulary=reduced: {DRAFTED} in {files.folder} does not name "
                f"increasing ids below {target.vocab_size}, which {target.label} has: give full"
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
    vocabulary = config["head"]["vocabulary"]
    check_head(files, target, vocabulary, key)
    head = FeatureHead(files.shape, len(files.layers))
    try:
        offsets = read_weights(head, files.folder)
    except Exception as error:  # as above
        raise _unreadable(files, key, error) from error
    broken = [name for name, weight in head.named_parameters() if not weight.isfinite().all()]
    if broken:
        raise PipelineError(f"{key}: {settings['label']} has NaN or infinite weights ({broken[0]})")
    drafted = None
    if vocabulary == "reduced":
        assert offsets is not None
        drafted = drafted_ids(offsets).to(target.device)
    parts = nn.ModuleList([head.eval().requires_grad_(False), projection_of(target, drafted)])
    parts[0].to(target.device, target.module.dtype)
    use_few_rows(parts)
    return HiddenDrafter(
        target, head, parts[1], files.layers, settings["label"], drafted, target.vocab_size
    )


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

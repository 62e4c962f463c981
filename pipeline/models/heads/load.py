"""Loads a head for its target, and checks that it can draft for it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pipeline.errors import PipelineError, first_line
from pipeline.models.heads.head_files import (
    EMBEDDING,
    OFFSETS,
    PROJECTION,
    TARGETS,
    HeadFiles,
    drafted_ids,
    read_head,
    read_weights,
)
from pipeline.models.heads.hidden_drafter import HiddenDrafter, like_target
from pipeline.models.language_model import LanguageModel, linear_of
from pipeline.models.skinny_matmul import use_skinny_matmul
from pipeline.models.spec import ModelSpec


def load_head(spec: ModelSpec, target: LanguageModel) -> HiddenDrafter:
    """Load a head for `target`, on its device and in its dtype.

    Raises:
        PipelineError: it is no head, belongs to another target, or its files are damaged.
    """
    assert spec.head is not None
    files = read_head(spec.settings.path, spec.identity.commit, spec.key)
    label, key = spec.settings.label, spec.key
    weights = check_head(files, target, key)
    layers = files.layers_of(target)
    head = files.empty(len(layers))
    head.load_state_dict({name: weights[name] for name in head.state_dict()})
    device, dtype = target.device, target.module.dtype
    drafted = embedding = None
    if OFFSETS in weights:
        drafted = drafted_ids(weights[OFFSETS]).to(device)
    projection = like_target(target, linear_of(weights[PROJECTION].to(device, dtype), None))
    if EMBEDDING in weights:
        embedding = nn.Embedding.from_pretrained(weights[EMBEDDING].to(device, dtype))
    parts = nn.ModuleList([head.eval().requires_grad_(False).to(device, dtype), projection])
    use_skinny_matmul(parts, halves=True)
    made = HiddenDrafter(
        target,
        head=head,
        projection=parts[1],
        layers=layers,
        label=label,
        drafted=drafted,
        vocab_size=target.vocab_size,
        embedding=embedding,
    )
    if not made.gives_numbers():
        raise PipelineError(
            f"{key}: {label} gives NaN or infinite logits behind {target.label}: its weights are "
            "damaged, too large, or of another target. Fetch the head again"
        )
    return made


def check_head(files: HeadFiles, target: LanguageModel, key: str) -> dict[str, Tensor]:
    """Check that a head can draft for `target`, and return its weights.

    Args:
        files: of the head.
        target: loaded, or without weights.
        key: the drafter's configuration key, for errors.

    Raises:
        PipelineError: it was made for a model of another width, depth or vocabulary, its weights
            are not those of its shape, or it does not name its tokens.
    """
    config = target.module.config.get_text_config()
    other = "take a drafter that was trained for this target"
    layers, depth = files.layers_of(target), config.num_hidden_layers
    rows = files.shape.get("vocab_size")
    most = max(layers) if files.layers else "2, L/2 and L - 3 of L"
    for fits, what, has in (
        (files.width == config.hidden_size, f"reads hidden states of {files.width} numbers",
         config.hidden_size),
        (0 <= min(layers) <= max(layers) <= depth, f"reads hidden states after {most} layers",
         depth),
        (rows == config.vocab_size, f"is for a vocabulary of {rows} tokens", config.vocab_size),
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
        raise PipelineError(
            f"{key}.path={files.folder}: {len(wrong)} weights are missing, unknown or not of the "
            f"shape in config.json ({', '.join(wrong[:3])}): {other}"
        )
    if OFFSETS in weights:
        _check_drafted(weights, target, f"{key}.path={files.folder}")
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

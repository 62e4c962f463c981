"""A target and its drafter with weights: loads them, checks that they fit, runs both on a text."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pipeline.core.stage import ModelSpec
from pipeline.drafters import NeuralDrafter, neural_kind
from pipeline.models.kv_session import KVSession
from pipeline.models.language_model import LanguageModel
from pipeline.models.loading import load_model, load_tokenizer, skeleton
from pipeline.models.tokens import check_same_tokens, common_rows

# Logits of the target; of the drafter by depth; of q' (`teacher_forced_logits`), or None.
PairLogits = tuple[Tensor, list[Tensor], Tensor | None]


def load_pair(target: ModelSpec, drafter: ModelSpec) -> tuple[LanguageModel, NeuralDrafter]:
    """Load target and drafter."""
    model = load_model(target)
    return model, neural_kind(drafter).load(drafter, model)


def check_decoding(*models: ModelSpec) -> None:
    """Check, before any weight is read, that rejected tokens can be removed from all caches.

    Stage drafts does not need this, because it reads known texts.
    """
    for spec in models:
        if spec.head is None:  # a head's layer is attention, so it can
            skeleton(spec).check_drafts(spec.key)


def check_pair(target: ModelSpec, drafter: ModelSpec) -> None:
    """Check, before any weight is read, that a drafter fits its target."""
    model = skeleton(target)
    rows = neural_kind(drafter).check_fit(drafter, model)
    if rows is not None:
        tokens = 1 + max(pair_tokenizer(target, drafter).get_vocab().values())
        common_rows(model.vocab_size, rows, tokens, _pair(target, drafter))


def pair_tokenizer(*models: ModelSpec) -> Any:
    """Return the target's tokenizer, after a check that its drafter has the same tokens."""
    tokenizer, *others = (
        load_tokenizer(spec.settings.path, spec.identity.commit, spec.key)
        for spec in models
        if spec.head is None
    )
    for other in others:
        check_same_tokens(tokenizer.get_vocab(), other.get_vocab(), _pair(*models))
    return tokenizer


def _pair(target: ModelSpec, drafter: ModelSpec) -> str:
    return " and ".join(f"{spec.key}.path={spec.settings.path}" for spec in (target, drafter))


def read_pair(
    target: LanguageModel, drafter: NeuralDrafter, ids: Tensor, keep: int, depths: int = 1
) -> PairLogits:
    """Return logits (keep, V) of both models after each of the last `keep` tokens of a text (1, n).

    See `NeuralDrafter.teacher_forced_logits` for those of the drafter.
    """
    logits, drafts, completed = read_pairs(target, drafter, ids, keep, depths)
    return logits[0], [draft[0] for draft in drafts], None if completed is None else completed[0]


@torch.inference_mode()
def read_pairs(
    target: LanguageModel,
    drafter: NeuralDrafter,
    ids: Tensor,
    keep: int,
    depths: int = 1,
    padding: Tensor | None = None,
) -> PairLogits:
    """Return what `read_pair` does, (B, keep, V), for texts (B, n) in one batch.

    `padding` (B,) are the columns before the first token of each text; None for none.
    """
    session = KVSession(target, ids.shape[1], drafter.layers, padding)
    logits = session.append(ids, keep=keep)
    return logits, *drafter.teacher_forced_logits(ids, session.hidden, keep, depths, padding)

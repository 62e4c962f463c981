"""A target and the drafter that the configuration names: loaded, checked and read together."""

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

# of the target; of the drafter, by depth; of q', None where q gives every token a probability
PairLogits = tuple[Tensor, list[Tensor], Tensor | None]


def load_pair(target: ModelSpec, drafter: ModelSpec) -> tuple[LanguageModel, NeuralDrafter]:
    """Load target and drafter."""
    model = load_model(target)
    return model, neural_kind(drafter).load(drafter, model)


def check_decoding(*models: ModelSpec) -> None:
    """Check, before any weight is read, that models can take drafts back.

    Along a text that is known nothing is taken back, so stage drafts reads other models, too.
    """
    for spec in models:
        if spec.head is None:  # a head's layer is attention
            skeleton(spec).check_drafts(spec.key)


def check_pair(target: ModelSpec, drafter: ModelSpec) -> None:
    """Check, before any weight is read, that a pair fits."""
    model = skeleton(target)
    rows = neural_kind(drafter).check(drafter, model)
    if rows is not None:
        tokens = 1 + max(pair_tokenizer(target, drafter).get_vocab().values())
        common_rows(model.vocab_size, rows, tokens, _pair(target, drafter))


def pair_tokenizer(*models: ModelSpec) -> Any:
    """Return the tokenizer of a target, which is its drafter's."""
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
    """Return the logits (keep, V) of both models after the last `keep` tokens of a text (1, n).

    They are the target's, and those of `NeuralDrafter.teacher_forced_logits`.
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
    """Return what `read_pair` does, (B, keep, V), of texts (B, n) that are read together.

    `padding` (B,) are columns before the first token of each, None is none.
    """
    session = KVSession(target, ids.shape[1], drafter.layers, padding)
    logits = session.append(ids, keep=keep)
    return logits, *drafter.teacher_forced_logits(ids, session.hidden, keep, depths, padding)

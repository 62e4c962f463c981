"""Both models read an answer again, in one pass each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pipeline.models.heads.feature_head import GivenText
from pipeline.models.heads.hidden_drafter import HiddenDrafter
from pipeline.models.language_model import LanguageModel
from pipeline.models.passes import Text


def compared(tokens: Sequence[int], baseline: Sequence[int]) -> dict[str, Any]:
    """Return how far an answer agrees with the baseline's; lengths may differ."""
    same = [a == b for a, b in zip(tokens, baseline, strict=False)]
    return {
        "agreement": sum(same) / max(len(tokens), len(baseline)),
        "common_prefix": same.index(False) if False in same else len(same),
    }


@torch.inference_mode()
def read_again(model: LanguageModel, prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
    """Return the logits (n, V) from which the n tokens of an answer were chosen, in one pass."""
    text = torch.tensor([*prompt, *answer[:-1]], device=model.device)
    return Text(model, len(text)).read(text, keep=len(answer))


@torch.inference_mode()
def read_both(
    target: LanguageModel,
    drafter: LanguageModel | HiddenDrafter,
    prompt: Sequence[int],
    answer: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Return the logits (n, V) of both models at the n tokens of an answer."""
    if isinstance(drafter, LanguageModel):
        return read_again(target, prompt, answer), read_again(drafter, prompt, answer)
    text = torch.tensor([*prompt, *answer[:-1]], device=target.device)
    sequence = Text(target, len(text), drafter.layers)
    logits = sequence.read(text, keep=len(answer))
    assert sequence.hidden is not None
    at = torch.arange(len(text), device=target.device)[None]
    given, hidden = GivenText(drafter.head, 1), sequence.hidden[None]
    outputs = given.read(drafter.embed(text[None]), hidden, at, at >= 0)[0]
    return logits, drafter.logits(outputs[0, -len(answer) :])


def log_likelihood(logits: Tensor, answer: Sequence[int]) -> float:
    """Return the log-probability of the tokens of an answer, given the logits (n, V)."""
    exact = logits.double()
    chosen = torch.tensor(answer, device=logits.device)[:, None]
    return float((exact.gather(1, chosen)[:, 0] - exact.logsumexp(1)).sum())

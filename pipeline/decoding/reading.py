"""Both models read an answer again, in one pass each: likelihoods, divergences, certificates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from analysis.acceptance.divergences import compare_logits
from analysis.acceptance.realised import Steps
from analysis.topk import TopK
from pipeline.models.devices import read
from pipeline.models.heads.feature_head import GivenText
from pipeline.models.heads.hidden_drafter import HiddenDrafter
from pipeline.models.language_model import LanguageModel
from pipeline.models.logit_statistics import logit_statistics
from pipeline.models.passes import Text


class Reader:
    """Both models reading the answers to one prompt again, each answer once."""

    def __init__(
        self, target: LanguageModel, drafter: LanguageModel | HiddenDrafter, prompt: Sequence[int]
    ) -> None:
        """Take the models and the tokens of the prompt."""
        self._target, self._drafter, self._prompt = target, drafter, prompt
        self._both: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def both(self, answer: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the logits (n, V) of both models at the n tokens of an answer."""
        tokens = tuple(answer)
        if tokens not in self._both:
            self._both[tokens] = read_both(self._target, self._drafter, self._prompt, tokens)
        return self._both[tokens]

    def log_likelihood(self, answer: Sequence[int]) -> float:
        """Return the log-likelihood of an answer under the target at temperature 1, in nats."""
        known = self._both.get(tuple(answer))
        logits = read_again(self._target, self._prompt, answer) if known is None else known[0]
        return log_likelihood(logits, answer)


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


def ranked(logits: Tensor, tokens: Tensor, k: int) -> tuple[TopK, np.ndarray, np.ndarray]:
    """Return the top K of raw logits (n, V), ranks and log-probabilities of `tokens` (n,)."""
    size = logits.shape[1]
    found = logit_statistics(logits, min(k, size))
    mine = logits.gather(1, tokens[:, None])
    before = torch.arange(size, device=logits.device)[None] < tokens[:, None]
    before_it = ((logits > mine) | ((logits == mine) & before)).sum(1)
    ids, top, surprisal, log_tail, entropy, ahead, given = read(
        found.top_ids,
        found.top_logits,
        found.top_surprisal,
        found.log_tail,
        found.entropy,
        before_it,
        mine[:, 0].double(),
    )
    dist = TopK(ids.astype(np.int32), top, surprisal, log_tail, entropy, size)
    return dist, 1 + ahead, (given - top[:, 0]) - surprisal


def compared_steps(target: Tensor, drafts: Tensor, stored: int) -> Steps:
    """Return the logits (n, V) of both models at n steps as those of one answer, so many stored."""
    logits, others = (one.double().cpu().numpy() for one in (target, drafts))
    found = compare_logits(logits, others)
    return Steps(
        TopK.from_logits(logits, k=min(stored, logits.shape[1])),
        np.arange(len(logits), dtype=np.int32),
        found.kl,
        found.draft_rank.astype(np.int32),
        found.draft_log_prob,
        found.argmax_rank.astype(np.int32),
    )

"""Scores decoded answers: the target's and drafter's logits along them, and what follows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from analysis.trees.index_entropies import index_entropies
from pipeline.core.columns import Row
from pipeline.decoding.loop import Prefill
from pipeline.decoding.sampling import tempered
from pipeline.drafters import NeuralDrafter
from pipeline.models.logit_statistics import argmax, logit_statistics, ranks_of


def compare_with_baseline(tokens: Sequence[int], baseline: Sequence[int]) -> Row:
    """Return how far an answer agrees with the baseline's; their lengths may differ."""
    same = [a == b for a, b in zip(tokens, baseline, strict=False)]
    return {
        "agreement": sum(same) / max(len(tokens), len(baseline)),
        "common_prefix": same.index(False) if False in same else len(same),
    }


@torch.inference_mode()
def answer_logits(prefill: Prefill, answer: Sequence[int]) -> tuple[Tensor, Tensor | None]:
    """Return the target's logits (n, V) that the n tokens of an answer were chosen from.

    Also its hidden states (1, m, layers, d) after prompt and answer without the last token; None
    if the prefill kept none.
    """
    logits = prefill.logits
    hidden = prefill.cache.hidden
    if len(answer) > 1:
        cache = prefill.cache.copy(prefill.cache.layers)
        ids = torch.tensor([answer[:-1]], device=logits.device)
        logits = torch.cat([logits, cache.append(ids)[0]])
        if hidden is not None and cache.hidden is not None:
            hidden = torch.cat([hidden, cache.hidden], 1)
    return logits, hidden


def draft_logits(
    drafter: NeuralDrafter, prompt: Sequence[int], answer: Sequence[int], hidden: Tensor | None
) -> Tensor:
    """Return the drafter's logits (n, V) for the n tokens of an answer; a head reads `hidden`."""
    text = torch.tensor([[*prompt, *answer[:-1]]], device=drafter.model.device)
    logits, _ = drafter.teacher_forced_logits(text, hidden, len(answer))
    return logits[0][0]


def log_probability_given_up(logits: Tensor, answer: Sequence[int]) -> Tensor:
    """Return log(p0 / p(token)) (n,), float64, of the tokens of an answer with logits (n, V)."""
    chosen = logits.gather(1, torch.tensor(answer, device=logits.device)[:, None])[:, 0]
    return logits.amax(1).double() - chosen.double()


def drafted_columns(logits: Tensor, drafts: Tensor) -> dict[str, list[float]]:
    """Return the greedy draft at each step and the target's view of it, from logits (n, V) of both.

    The drafter takes the first of equal logits, as `GreedySampler` does.
    """
    token = argmax(drafts)
    statistics = logit_statistics(logits, 2)
    top = statistics["top_logits"]
    surprisal = statistics["top_surprisal"]
    # padded, since a vocabulary of one token has no second
    z1, z2 = pad(top, (0, 1), value=-torch.inf)[:, :2].unbind(1)
    log_prob = logits.gather(1, token[:, None])[:, 0].double() - z1 - surprisal
    columns = {
        "draft_token_id": token,
        "draft_rank": ranks_of(token, logits),
        "draft_log_prob": log_prob,
        "z1": z1,
        "z2": z2,
        "top_surprisal": surprisal,
    }
    return {name: values.tolist() for name, values in columns.items()}


def entropy_columns(
    logits: Tensor, drafts: Tensor, temperature: float
) -> dict[str, tuple[float, ...]]:
    """Return KL(p‖q) and the index entropies H[R] at each step, from logits (n, V) of both."""
    log_p, log_q = (
        tempered(values, temperature).log_softmax(1).cpu().numpy() for values in (logits, drafts)
    )
    steps = [index_entropies(p, q) for p, q in zip(log_p, log_q, strict=True)]
    kl, greedy, races = zip(*steps, strict=True)
    return {"kl": kl, "greedy_entropy": greedy, "races_entropy": races}

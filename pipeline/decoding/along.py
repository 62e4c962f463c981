"""Both models along the answers of the target alone: greedy drafts, KL and H[R]."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from analysis.trees.entropy import index_entropies
from pipeline.decoding.choices import tempered
from pipeline.models.logit_statistics import argmax, logit_statistics, ranks_of


def drafted_columns(logits: Tensor, drafts: Tensor) -> dict[str, list[float]]:
    """Return the greedy draft at every step and the target's view of it, of logits (n, V) of both.

    Of equal logits the drafter takes the first, as `choices.Greedy` does.
    """
    token, statistics = argmax(drafts), logit_statistics(logits, 2)
    top, surprisal = statistics["top_logits"], statistics["top_surprisal"]
    z1, z2 = pad(top, (0, 1), value=-torch.inf)[:, :2].unbind(1)  # a single token has no second
    below = logits.gather(1, token[:, None])[:, 0].double() - z1 - surprisal
    columns = {
        "draft_token_id": token,
        "draft_rank": ranks_of(token, logits),
        "draft_log_prob": below,
        "z1": z1,
        "z2": z2,
        "top_surprisal": surprisal,
    }
    return {name: values.tolist() for name, values in columns.items()}


def entropy_columns(
    logits: Tensor, drafts: Tensor, temperature: float
) -> dict[str, tuple[float, ...]]:
    """Return KL and H[R] at every step, of logits (n, V) of both."""
    log_p, log_q = (
        tempered(of, temperature).log_softmax(1).cpu().numpy() for of in (logits, drafts)
    )
    found = [index_entropies(p, q) for p, q in zip(log_p, log_q, strict=True)]
    return dict(
        zip(("kl", "greedy_entropy", "races_entropy"), zip(*found, strict=True), strict=True)
    )

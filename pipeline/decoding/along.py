"""Both models along the answers of the target alone: greedy drafts, KL and H[R]."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from analysis.trees.entropy import index_entropies
from pipeline.columns import Row
from pipeline.decoding.choices import tempered
from pipeline.decoding.pair import DecodingPair, Prompt, read_both
from pipeline.methods import RACES, SPECULATIVE, Method
from pipeline.models.logit_statistics import argmax, logit_statistics, ranks_of


def trajectory(pair: DecodingPair, prompt: Prompt, answer: Sequence[int]) -> list[Row]:
    """Return the drafts at every step of the greedy baseline's answer."""
    columns = drafted_columns(*read_both(pair, prompt.token_ids, answer))
    return [
        {"prompt_id": prompt.prompt_id, "position": position, "token_id": token}
        | {name: values[position] for name, values in columns.items()}
        for position, token in enumerate(answer)
    ]


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


def drawn_baselines(runs: Sequence[Method]) -> list[Method]:
    """Return the baselines at whose temperatures trees are drafted by draws or races."""
    alone: dict[float, Method] = {}
    for run in runs:
        alone.setdefault(run.temperature, run)  # baselines come first
    return list(
        dict.fromkeys(
            alone[run.temperature]
            for run in runs
            if run.tree is not None and run.sampling in (SPECULATIVE, RACES)
        )
    )


def contexts(pair: DecodingPair, prompt: Prompt, run: Method, answer: Sequence[int]) -> list[Row]:
    """Return KL and H[R] at every token of an answer of the target alone."""
    both = read_both(pair, prompt.token_ids, answer)
    log_probs = [tempered(logits, run.temperature).log_softmax(1).cpu().numpy() for logits in both]
    names = ("kl", "greedy_entropy", "races_entropy")
    key = {"prompt_id": prompt.prompt_id, "run": pair.runs.index(run)}
    return [
        key | {"position": at, **dict(zip(names, index_entropies(p, q), strict=True))}
        for at, (p, q) in enumerate(zip(*log_probs, strict=True))
    ]

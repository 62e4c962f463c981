"""The target's distributions along its own answers, along those of rules, and behind rejections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from analysis.acceptance.texts import OWN, REJECTED, TARGET
from analysis.certificates.certify import certify
from analysis.topk import TopK
from pipeline.decoding.loop import Answer
from pipeline.decoding.pair import DecodingPair, Prompt, read_both
from pipeline.models.divergences import divergence_sums
from pipeline.models.language_model import LanguageModel
from pipeline.models.passes import Text
from pipeline.plan.method import Method, baseline
from pipeline.store.columns import Row

K = 256  # most probable tokens from which certificates are computed


def text_rows(
    pair: DecodingPair,
    prompt: Prompt,
    answers: Sequence[Answer],
    alone: Mapping[Method, Sequence[int]],
) -> list[Row]:
    """Return the rows of table texts, of runs in which a rule judges chains by the drafter."""
    ids, rows = prompt.token_ids, list[Row]()

    @cache
    def along(tokens: tuple[int, ...]) -> tuple[Tensor, list[float]]:
        logits, drafts = read_both(pair, ids, tokens)
        return logits, divergences(logits, drafts)

    for at, (run, answer) in enumerate(zip(pair.runs, answers, strict=True)):
        rule = run.rule
        if rule is None or not run.uses_model or run.tree is not None or run.temperature > 0:
            continue
        rejected, places = behind_rejections(pair.target, ids, answer)
        texts: dict[str, Any] = {}
        for text, tokens in ((TARGET, alone[baseline(run)]), (OWN, answer.tokens)):
            texts[text] = (
                *along(tuple(tokens)),
                [(position, 0) for position in range(len(tokens))],
            )
        if places:
            texts[REJECTED] = rejected, [None] * len(places), places
        for text, (logits, kl, at_places) in texts.items():
            dist = TopK.from_logits(logits, min(max(K, rule.minimum_k), logits.shape[1]))
            columns = {
                "position": [position for position, _ in at_places],
                "place": [place for _, place in at_places],
                "entropy": dist.entropy.tolist(),
                "top_probability": dist.top_probability.tolist(),
                "certificate": certify(dist, rule).lower[:, 0].tolist(),
                "kl": kl,
            }
            key = {"prompt_id": prompt.prompt_id, "run": at, "text": text}
            rows += [
                key | dict(zip(columns, row, strict=True))
                for row in zip(*columns.values(), strict=True)
            ]
    return rows


@torch.inference_mode()
def behind_rejections(
    target: LanguageModel, prompt: Sequence[int], answer: Answer
) -> tuple[Tensor, list[tuple[int, int]]]:
    """Return the target's logits (n, V) for drafted tokens behind the first rejected one.

    Of each it returns the drafted token's position in the answer and its place in the draft.
    """
    tokens = [*prompt, *answer.tokens]
    text = Text(target, len(tokens) + max([call.depth for call in answer.calls], default=0))
    logits, places = [], list[tuple[int, int]]()
    for call in answer.calls:
        rejected = call.tokens[call.accepted : -1]
        if not rejected or call.emitted != call.accepted + 1:  # an end was accepted
            continue
        end = len(prompt) + call.position + call.accepted
        ids = torch.tensor([*tokens[text.length : end], *rejected], device=target.device)
        logits.append(text.read(ids, keep=len(rejected)))
        text.crop(end)
        behind = range(call.accepted + 1, len(call.tokens))
        places += [(call.position + at, at + 1) for at in behind]
    return torch.cat(logits) if logits else torch.empty(0), places


def divergences(logits: Tensor, drafts: Tensor) -> list[float]:
    """Return KL(p‖q) of logits (n, V) of both models, nats; inf where q lacks a token of p."""
    log_p, log_q = (values.double().log_softmax(1) for values in (logits, drafts))
    kl: list[float] = divergence_sums(log_p, log_p.exp(), log_q, log_q.exp())["kl"].tolist()
    return kl

"""The target's distributions along its own answers, along those of rules, and behind rejections.

A relaxed rule emits tokens that the target would not, and so leads it into other contexts. The
rows of table texts compare both texts of a prompt, step by step, outside the timed decoding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from analysis.acceptance.texts import OWN, REJECTED, TARGET
from analysis.certificates.certify import certify
from analysis.rules import Rule
from analysis.topk import TopK
from pipeline.decoding.loop import Answer
from pipeline.decoding.pair import DecodingPair, Prompt, read_both
from pipeline.models.language_model import LanguageModel
from pipeline.models.logit_statistics import STATISTICS, logit_statistics
from pipeline.models.passes import Text
from pipeline.plan.method import Method, baseline
from pipeline.store.columns import Row

K = 256  # most probable tokens from which certificates are computed


def judging_rules(runs: Sequence[Method]) -> dict[int, Rule]:
    """Return the rules of the runs in which one judges chains by the drafter, by run."""
    return {
        at: run.rule
        for at, run in enumerate(runs)
        if run.rule is not None and run.uses_model and run.tree is None and run.temperature == 0
    }


def text_rows(
    pair: DecodingPair,
    prompt: Prompt,
    answers: Sequence[Answer],
    alone: Mapping[Method, Sequence[int]],
) -> list[Row]:
    """Return the rows of table texts for a prompt.

    Args:
        pair: both models.
        prompt: the prompt.
        answers: of every run.
        alone: answers of the target alone, by baseline.
    """
    rules = judging_rules(pair.runs)
    k = max([K, *(rule.minimum_k for rule in rules.values())])
    ids = prompt.token_ids

    @cache
    def along(tokens: tuple[int, ...]) -> tuple[TopK, list[float]]:
        logits, drafts = read_both(pair, ids, tokens)
        return distributions(logits, k), divergence(logits, drafts)

    rows = []
    for at, rule in rules.items():
        texts = {TARGET: alone[baseline(pair.runs[at])], OWN: answers[at].tokens}
        read: dict[str, Any] = {
            text: (*along(tuple(tokens)), [(place, 0) for place in range(len(tokens))])
            for text, tokens in texts.items()
        }
        logits, places = behind_rejections(pair.target, ids, answers[at])
        if places:
            read[REJECTED] = distributions(logits, k), [None] * len(places), places
        for text, (dist, kl, places) in read.items():
            columns = zip(
                places,
                dist.entropy.tolist(),
                dist.top_probability.tolist(),
                certify(dist, rule).lower[:, 0].tolist(),
                kl,
                strict=True,
            )
            names = ("entropy", "top_probability", "certificate", "kl")
            key = {"prompt_id": prompt.prompt_id, "run": at, "text": text}
            for (position, place), *values in columns:
                row = {"position": position, "place": place} | dict(zip(names, values, strict=True))
                rows.append(key | row)
    return rows


@torch.inference_mode()
def behind_rejections(
    target: LanguageModel, prompt: Sequence[int], answer: Answer
) -> tuple[Tensor, list[tuple[int, int]]]:
    """Return the target's logits (n, V) after rejected tokens, and the drafted tokens there.

    Verification computes them and drops them: a draft's tokens behind its first rejected one.

    Returns:
        The logits, and of each the drafted token's position in the answer and its place in the
        draft, from 2.
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


def distributions(logits: Tensor, k: int) -> TopK:
    """Return the distributions of logits (n, V), with their k most probable tokens."""
    statistics = {
        name: values.cpu().numpy()
        for name, values in logit_statistics(logits, min(k, logits.shape[1])).items()
    }
    surprisal, tail, entropy = (statistics[name] for name in STATISTICS)
    ids = statistics["top_ids"].astype(np.int32)
    return TopK(ids, statistics["top_logits"], surprisal, tail, entropy, logits.shape[1])


def divergence(logits: Tensor, drafts: Tensor) -> list[float]:
    """Return KL(p||q) of two models' logits (n, V), nats; inf where q lacks a token of p."""
    log_p, log_q = (values.double().log_softmax(1) for values in (logits, drafts))
    p = log_p.exp()
    terms = torch.where(p > 0, p * (log_p - log_q), 0.0)
    values: list[float] = terms.sum(1).clamp(min=0).tolist()
    return values

"""The rows of one prompt: answers, calls, timings, and what both models say of the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from analysis.rules import Rule, Tree
from pipeline.decoding.choices import first
from pipeline.decoding.judging import ranked, rule_accepts
from pipeline.decoding.loop import Answer
from pipeline.decoding.reading import Reader, compared
from pipeline.plan.method import Method, baseline


def shard(
    reader: Reader,
    prompt: dict[str, Any],
    runs: Sequence[Method],
    answers: Sequence[tuple[Answer, int | None]],
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a prompt by table; nothing in here is timed."""
    rows: dict[str, list[dict[str, Any]]] = {
        "data": [],
        "calls": [],
        "levels": [],
        "timings/runs": [],
        "timings/calls": [],
    }
    alone = {
        run: answer.tokens
        for run, (answer, _) in zip(runs, answers, strict=True)
        if run.drafter == "none"
    }
    likelihoods: dict[tuple[int, ...], float] = {}
    for at, (run, (answer, peak)) in enumerate(zip(runs, answers, strict=True)):
        key = {"prompt_id": prompt["prompt_id"], "run": at}
        tokens = tuple(answer.tokens)
        if tokens not in likelihoods:
            likelihoods[tokens] = reader.log_likelihood(answer.tokens)
        rows["data"].append(
            key
            | {
                "source": prompt["source"],
                "method": run.name,
                "drafter": run.drafter,
                "draft_length": run.draft_length,
                "temperature": run.temperature,
                "token_ids": answer.tokens,
                "n_tokens": len(tokens),
                "text_tokens": len(prompt["token_ids"]) + len(tokens),
                "ended": answer.ended,
                "log_likelihood": likelihoods[tokens],
                **compared(answer.tokens, alone[baseline(run)]),
            }
        )
        rows["timings/runs"].append(
            key
            | {
                "first_seconds": answer.first_seconds,
                "begin_seconds": answer.begin_seconds,
                "seconds": answer.seconds,
                "peak_bytes": peak,
            }
        )
        for call in answer.calls:
            rows["calls"].append(
                key
                | {
                    "position": call.position,
                    "drafted": call.drafted,
                    "depth": call.depth,
                    "reach": call.reach,
                    "tested": call.tested,
                    "accepted": call.accepted,
                    "emitted": call.emitted,
                }
            )
            rows["levels"] += [
                key | {"position": call.position, "level": at, **level._asdict()}
                for at, level in enumerate(call.levels, start=1)
            ]
            rows["timings/calls"].append(
                key
                | {
                    "drafted": call.drafted,
                    "depth": call.depth,
                    "emitted": call.emitted,
                    "draft_seconds": call.draft_seconds,
                    "verify_seconds": call.verify_seconds,
                    "other_seconds": call.other_seconds,
                }
            )
    greedy = next((tokens for run, tokens in alone.items() if run.temperature == 0), None)
    if greedy is not None:
        rows |= trajectory(reader, prompt, greedy, runs)
    return rows


def trajectory(
    reader: Reader, prompt: dict[str, Any], answer: Sequence[int], runs: Sequence[Method]
) -> dict[str, list[dict[str, Any]]]:
    """Return what the drafter would draft at every step of the greedy baseline's answer.

    Both models read the answer in one pass; each rule that decodes with the model drafter is
    asked for every step, tested there or not.
    """
    logits, drafts = reader.both(answer)
    drafted = drafts.argmax(1)
    dist, rank, log_prob = ranked(logits, drafted, 2)
    assert dist.logits is not None
    steps = [{"prompt_id": prompt["prompt_id"], "position": at} for at in range(len(answer))]
    rows = [
        step
        | {
            "token_id": answer[at],
            "draft_token_id": int(drafted[at]),
            "draft_rank": int(rank[at]),
            "draft_log_prob": float(log_prob[at]),
            "z1": float(dist.logits[at, 0]),
            "z2": float(dist.logits[at, 1]),
            "top_surprisal": float(dist.top_surprisal[at]),
        }
        for at, step in enumerate(steps)
    ]
    rules = {
        run.rule.label: run.rule
        for run in runs
        if run.rule is not None and run.uses_model and run.temperature == 0
    }
    indicators = [
        step | {"rule": label, "accepted": bool(accepted)}
        for label, rule in rules.items()
        for step, accepted in zip(steps, teacher_forced(rule, logits, drafts), strict=True)
    ]
    return {"trajectory": rows, "indicators": indicators}


def teacher_forced(rule: Rule, logits: Tensor, drafts: Tensor) -> np.ndarray:
    """Say at which of n steps a rule accepts what is drafted from the drafter's logits (n, V).

    A rule of trees accepts where the target's argmax is among the tokens that a tree drafts.
    """
    argmax = logits.argmax(1)
    if isinstance(rule, Tree):
        covered = first(drafts, rule.m) == argmax[:, None]
        return np.asarray(covered.any(1).cpu().numpy())
    return rule_accepts(rule, logits, drafts.argmax(1), argmax)
